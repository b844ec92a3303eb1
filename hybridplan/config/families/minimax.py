"""MiniMax-Text-01 and M1: lightning attention with softmax attention by ``attn_type_list``."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Fields
from hybridplan.config.spec import Lightning, ModelSpec, Source

KINDS = {"linear_attention": "linear", "full_attention": "full"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """0 is lightning and 1 softmax; transformers' own files say it in ``layer_types``."""
    count = f.layer_count()
    kinds = layer_kinds(f, count)
    heads = f.whole("lightning.heads", "num_attention_heads", most=1 << 16)
    linear = Lightning(heads, common.head_width(f, "lightning.head_dim", heads, "head_dim"))
    full = common.attention(f)
    shared = f.maybe_whole("moe.shared_intermediate", "shared_intermediate_size", least=0) or 0
    experts = common.moe(
        f,
        experts=("num_local_experts",),
        width=("intermediate_size",),
        shared_intermediate=shared,
    )
    return common.model(
        f,
        root,
        layers=common.stack(kinds, {"linear": (linear,), "full": (full,)}, [experts] * count),
    )


def layer_kinds(f: Fields, count: int) -> list[str]:
    """ "full" or "linear" per layer; both spellings, where given, must agree."""
    by_type = None
    if f.has("attn_type_list"):
        flags = f.wholes("attn_type_list", most=1)
        f.per_layer("attn_type_list", count, flags)
        by_type = ["full" if flag else "linear" for flag in flags]
        f.sources["model.pattern"] = Source(f.at("attn_type_list"))
    if not f.has("layer_types"):
        if by_type is None:
            raise f.missing("attn_type_list", "layer_types")
        return by_type
    kinds = common.listed(f, "layer_types", KINDS, count)
    if by_type is not None:
        f.agree("the layers", "layer_types", kinds, "attn_type_list", by_type)
    return kinds
