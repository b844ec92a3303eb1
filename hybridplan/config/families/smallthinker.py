"""SmallThinker: sliding and full attention by sliding_window_layout, experts in every layer."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Fields
from hybridplan.config.spec import MLP, ModelSpec, Source


def read(f: Fields, root: Fields) -> ModelSpec:
    """In ``sliding_window_layout`` 1 is sliding."""
    count = f.layer_count()
    flags = f.wholes("sliding_window_layout", most=1)
    f.per_layer("sliding_window_layout", count, flags)
    f.sources["model.pattern"] = Source(f.at("sliding_window_layout"))
    kinds = ["sliding" if flag else "full" for flag in flags]
    window = common.sliding(f, "sliding_window_size", "sliding_window") if any(flags) else None
    full, sliding = (common.attention(f, window=each) for each in (None, window))
    mixers = {"full": (full,), "sliding": (sliding,)}
    return common.model(f, root, layers=common.stack(kinds, mixers, _mlps(f, count)))


def _mlps(f: Fields, count: int) -> list[MLP | None]:
    experts = common.moe(
        f,
        experts=("moe_num_primary_experts", "num_experts"),
        topk=("moe_num_active_primary_experts", "num_experts_per_tok"),
        width=("moe_ffn_hidden_size", "moe_intermediate_size"),
    )
    if not f.has("moe_layer_layout"):
        return [experts] * count
    flags = f.wholes("moe_layer_layout", most=1)
    f.per_layer("moe_layer_layout", count, flags)
    plain = common.dense(f, "ffn_hidden_size", "intermediate_size") if not all(flags) else experts
    return [experts if flag else plain for flag in flags]
