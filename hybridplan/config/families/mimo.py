"""MiMo-V2-Flash: full and sliding attention of unequal K and V widths, by hybrid_layer_pattern."""

from __future__ import annotations

from hybridplan.config.families import common, moe_layers
from hybridplan.config.fields import Fields
from hybridplan.config.spec import Attention, ModelSpec, Source, Window

KINDS = {"full_attention": "full", "sliding_attention": "sliding"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """In ``hybrid_layer_pattern`` 0 is full and 1 sliding; nothing here is recurrent."""
    count = f.layer_count()
    kinds = _layer_kinds(f, count)
    full = _attention(
        f, "", None, sinks=f.flag("mimo.full_sinks", "add_full_attention_sink_bias", False)
    )
    window = common.sliding(f, "sliding_window", "sliding_window_size")
    sinks = f.flag("mimo.sliding_sinks", "add_swa_attention_sink_bias", False)
    mixers = {"full": (full,), "sliding": (_attention(f, "swa_", window, sinks=sinks),)}
    return common.model(
        f, root, layers=common.stack(kinds, mixers, moe_layers.deepseek_mlps(f, count))
    )


def _layer_kinds(f: Fields, count: int) -> list[str]:
    by_pattern = None
    if f.has("hybrid_layer_pattern"):
        flags = f.wholes("hybrid_layer_pattern", most=1)
        f.per_layer("hybrid_layer_pattern", count, flags)
        by_pattern = ["sliding" if flag else "full" for flag in flags]
        f.sources["model.pattern"] = Source(f.at("hybrid_layer_pattern"))
    if not f.has("layer_types"):
        if by_pattern is None:
            raise f.missing("hybrid_layer_pattern", "layer_types")
        return by_pattern
    kinds = common.listed(f, "layer_types", KINDS, count)
    if by_pattern is not None:
        f.agree("the windowed layers", "layer_types", kinds, "hybrid_layer_pattern", by_pattern)
    return kinds


def _attention(f: Fields, stem: str, window: Window | None, *, sinks: bool) -> Attention:
    field = "attention.sliding" if stem else "attention"
    heads = f.whole(f"{field}.heads", f"{stem}num_attention_heads", most=1 << 16)
    kv_heads = f.whole(f"{field}.kv_heads", f"{stem}num_key_value_heads", most=1 << 16)
    if heads % kv_heads:
        raise f.fail(f"{heads} heads are not a multiple of {kv_heads} KV heads")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        key_dim=f.whole(f"{field}.key_dim", f"{stem}head_dim", most=1 << 16),
        value_dim=f.whole(f"{field}.value_dim", f"{stem}v_head_dim", most=1 << 16),
        window=window,
        sinks=sinks,
        qkv_bias=f.flag("attention.qkv_bias", "attention_bias", False),
    )
