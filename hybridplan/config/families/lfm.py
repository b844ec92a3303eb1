"""LFM2, LFM2-MoE and LFM3: gated short convolutions between a few attention layers."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import MLP, DenseMLP, ModelSpec, ShortConv, Source

KINDS = {"conv": "conv", "full_attention": "full", "sliding_attention": "sliding"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """``layer_types`` in later files, ``full_attn_idxs`` in the first; both must agree."""
    kind = str(f.data.get("model_type") or root.data.get("model_type"))
    count = f.layer_count()
    kinds = _layer_kinds(f, count)
    hidden = common.hidden_size(f)
    conv = ShortConv(
        channels=hidden,
        conv_kernel=f.whole("short_conv.conv_kernel", "conv_L_cache", most=1024),
        bias=f.flag("short_conv.bias", "conv_bias", False),
    )
    f.record("short_conv.channels", f"{f.at('hidden_size')}: the convolution is hidden wide")
    gated = kind == "lfm3" and f.flag("attention.head_gate", "use_attention_gate", True)
    window = common.sliding(f) if "sliding" in kinds else None
    full, sliding = (common.attention(f, qk_norm="head", window=each) for each in (None, window))
    extra = {"mixer_head_gate": hidden * full.heads} if gated else {}
    sandwich = kind == "lfm3" and f.flag("model.sandwich_norm", "use_sandwich_norm", True)
    return common.model(
        f,
        root,
        layers=common.stack(
            kinds,
            {"conv": (conv,), "full": (full,), "sliding": (sliding,)},
            _mlps(f, kind, count),
            norms=4 if sandwich else 2,
            extra={"full": extra, "sliding": extra},
        ),
        tied_absent=True,
    )


def _layer_kinds(f: Fields, count: int) -> list[str]:
    by_index = None
    if f.has("full_attn_idxs"):
        full = set(f.wholes("full_attn_idxs", most=count - 1))
        by_index = ["full" if i in full else "conv" for i in range(count)]
        f.sources["model.pattern"] = Source(f.at("full_attn_idxs"))
    if not f.has("layer_types"):
        if by_index is None:
            raise f.missing("layer_types", "full_attn_idxs")
        return by_index
    kinds = common.listed(f, "layer_types", KINDS, count)
    if by_index is not None:
        f.agree("the layers", "layer_types", kinds, "full_attn_idxs", by_index)
    return kinds


def _mlps(f: Fields, kind: str, count: int) -> list[MLP | None]:
    if kind == "lfm2_moe" or f.has("num_experts"):
        first = f.whole("mlp.first_dense", "num_dense_layers", least=0, most=count)
        experts = common.moe(
            f,
            experts=("num_experts",),
            router_bias=f.flag("moe.router_bias", "use_expert_bias", True),
        )
        return [common.dense(f) if i < first else experts for i in range(count)]
    return [DenseMLP(_width(f, kind))] * count


def _width(f: Fields, kind: str) -> int:
    """The MLP width after LFM2's adjustment: two thirds, scaled, rounded up."""
    key = "block_ff_dim" if f.has("block_ff_dim") else "intermediate_size"
    width = f.whole("mlp.intermediate", key)
    if kind == "lfm3" or not f.flag("mlp.adjust", "block_auto_adjust_ff_dim", True):
        return width
    width = 2 * width // 3
    scale = f.data.get("block_ffn_dim_multiplier")
    if scale is not None:
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < 1000:
            raise f.fail(f"{f.at('block_ffn_dim_multiplier')} must be a positive number")
        width = int(scale * width)
    absent = Absent(256, "block_multiple_of absent: 256, the class's own rule")
    multiple = f.whole("mlp.multiple_of", "block_multiple_of", absent=absent)
    return multiple * -(-width // multiple)
