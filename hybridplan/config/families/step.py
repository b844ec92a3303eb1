"""Step-3.7-Flash: full and sliding attention with per-head gates, then experts."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common, moe_layers
from hybridplan.config.fields import Fields
from hybridplan.config.spec import MLP, ModelSpec

KINDS = {"full_attention": "full", "sliding_attention": "sliding"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """Sliding layers may have other head counts (``attention_other_setting``)."""
    count = f.layer_count()
    drafts = common.draft_count(f, "num_nextn_predict_layers", "num_mtp_layers")
    words = f.words("layer_types")
    listed = len(words) if len(words) == count + drafts else count
    kinds = common.listed(f, "layer_types", KINDS, listed)[:count]
    full = common.attention(f, quotient=False, qk_norm="head")
    window = common.sliding(f) if "sliding" in kinds else None
    heads, kv_heads = full.heads, full.kv_heads
    if f.has("attention_other_setting"):
        other = f.section("attention_other_setting")
        heads = other.whole("attention.sliding.heads", "num_attention_heads", most=1 << 16)
        groups = ("num_attention_groups", "num_key_value_heads")
        if any(other.has(key) for key in groups):
            kv_heads = other.whole("attention.sliding.kv_heads", *groups, most=1 << 16)
    elif f.has("num_sliding_attention_heads"):
        heads = f.whole("attention.sliding.heads", "num_sliding_attention_heads", most=1 << 16)
    sliding = replace(full, heads=heads, kv_heads=kv_heads, window=window)
    hidden = common.hidden_size(f)
    extra = {
        "full": {"mixer_head_gate": hidden * full.heads},
        "sliding": {"mixer_head_gate": hidden * sliding.heads},
    }
    mlps = _mlps(f, count)
    return common.model(
        f,
        root,
        layers=common.stack(kinds, {"full": (full,), "sliding": (sliding,)}, mlps, extra=extra),
        draft_layers=common.drafts(
            drafts, (sliding,), common.dense(f), count, moe_layers.mtp_extra(f, copies=True)
        ),
    )


def _mlps(f: Fields, count: int) -> list[MLP | None]:
    experts = common.moe(
        f,
        experts=("n_routed_experts", "num_experts", "moe_num_experts"),
        topk=("num_experts_per_tok", "moe_top_k"),
        shared_intermediate=f.whole(
            "moe.shared_intermediate", "share_expert_dim", "share_expert_dims", least=0
        ),
        router_bias=f.flag("moe.router_bias", "use_moe_router_bias", True),
    )
    return moe_layers.deepseek_mlps(f, count, experts)
