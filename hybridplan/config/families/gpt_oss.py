"""gpt-oss: sliding and full attention with sinks, experts with biases in every layer."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common
from hybridplan.config.fields import Fields
from hybridplan.config.spec import ModelSpec

KINDS = {"full_attention": "full", "sliding_attention": "sliding"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """Full or sliding by ``layer_types``; sinks and biases in every attention layer."""
    count = f.layer_count()
    kinds = common.listed(f, "layer_types", KINDS, count)
    bias = f.flag("attention.qkv_bias", "attention_bias", True)
    window = common.sliding(f) if "sliding" in kinds else None
    full, sliding = (
        common.attention(
            f, quotient=False, qkv_bias=bias, output_bias=bias, sinks=True, window=each
        )
        for each in (None, window)
    )
    experts = common.moe(
        f,
        experts=("num_local_experts", "num_experts"),
        topk=("num_experts_per_tok", "experts_per_token"),
        width=("intermediate_size",),
        router_bias=True,
    )
    mlp = replace(experts, expert_bias=True)
    return common.model(
        f,
        root,
        layers=common.stack(kinds, {"full": (full,), "sliding": (sliding,)}, [mlp] * count),
    )
