"""Jamba: Mamba-1 with attention at ``i % attn_layer_period == attn_layer_offset``."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import MLP, Mamba1, Mixer, ModelSpec, Source


def read(f: Fields, root: Fields) -> ModelSpec:
    """Attention by period and offset; ``layers_block_type``, where given, must agree."""
    count = f.layer_count()
    kinds = _cycle(f, count, "attn_layer", "full", "mamba", "model.pattern")
    both = f"{f.at('attn_layer_period')}, {f.at('attn_layer_offset')}"
    f.sources["model.pattern"] = Source(both, "derived")
    if f.has("layers_block_type"):
        words = {"mamba": "mamba", "attention": "full"}
        listed = common.listed(f, "layers_block_type", words, count)
        f.agree("the layers", "layers_block_type", listed, "attn_layer_period", kinds)
    mixers: dict[str, tuple[Mixer, ...]] = {"full": (common.attention(f),), "mamba": (_mamba(f),)}
    return common.model(f, root, layers=common.stack(kinds, mixers, _mlps(f, count)))


def _cycle(f: Fields, count: int, stem: str, hit: str, miss: str, field: str) -> list[str]:
    period = f.whole(field, f"{stem}_period", most=1 << 16)
    offset = f.whole(field, f"{stem}_offset", least=0, most=1 << 16)
    if offset >= period:
        raise f.fail(f"{f.at(stem + '_offset')} {offset} must be below the period {period}")
    return common.every(count, period, offset, hit, miss)


def _mamba(f: Fields) -> Mamba1:
    hidden = common.hidden_size(f)
    return Mamba1(
        inner=common.expanded(f, "mamba1.inner", "mamba_expand", hidden),
        state_dim=f.whole("mamba1.state_dim", "mamba_d_state", most=1 << 20),
        conv_kernel=f.whole("mamba1.conv_kernel", "mamba_d_conv", most=1024),
        dt_rank=dt_rank(f, hidden),
        norms=True,
        conv_bias=f.flag("mamba1.conv_bias", "mamba_conv_bias", True),
        proj_bias=f.flag("mamba1.proj_bias", "mamba_proj_bias", False),
    )


def dt_rank(f: Fields, hidden: int) -> int:
    """``mamba_dt_rank``: a number, or "auto" for ceil(hidden / 16)."""
    if f.data.get("mamba_dt_rank") in (None, "auto"):
        f.record("mamba1.dt_rank", "mamba_dt_rank auto: ceil(hidden_size / 16)")
        return -(-hidden // 16)
    return f.whole("mamba1.dt_rank", "mamba_dt_rank")


def _mlps(f: Fields, count: int) -> list[MLP | None]:
    one = Absent(1, "num_experts absent: dense")
    if f.whole("moe.experts", "num_experts", absent=one) == 1:
        return [common.dense(f)] * count
    kinds = _cycle(f, count, "expert_layer", "moe", "dense", "mlp.pattern")
    plain = common.dense(f)
    experts = common.moe(f, experts=("num_experts",), width=("intermediate_size",))
    return [experts if kind == "moe" else plain for kind in kinds]
