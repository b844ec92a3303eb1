"""MiniMax-M2 (full attention in every layer) and M3 (block-sparse, memory still full)."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common, minimax, moe_layers
from hybridplan.config.fields import Fields
from hybridplan.config.spec import MLP, Attention, Indexer, Layer, ModelSpec, QKNorm


def read(f: Fields, root: Fields) -> ModelSpec:
    """``attn_type_list`` of an M2 is all 1; a 0 there would be a model this class cannot run."""
    count = f.layer_count()
    if f.has("attn_type_list") and "linear" in minimax.layer_kinds(f, count):
        raise f.fail(f"{f.at('attn_type_list')} names lightning layers, which M2 does not have")
    f.record("model.pattern", "num_hidden_layers alone: full attention in every layer")
    full = common.attention(f, quotient=False, qk_norm=_qk_norm(f))
    indexers = _indexers(f, count)
    mlps = _mlps(f, count)
    layers = [
        Layer(i, (replace(full, indexer=indexer),), mlp)
        for i, (indexer, mlp) in enumerate(zip(indexers, mlps, strict=True))
    ]
    return common.model(f, root, layers=layers, draft_layers=_drafts(f, count, full, mlps))


def _indexers(f: Fields, count: int) -> list[Indexer | None]:
    """M3: block-sparse layers store full KV and, beside it, one index key per token."""
    if not f.has("sparse_attention_config"):
        return [None] * count
    sparse = f.section("sparse_attention_config")
    flags = sparse.wholes("sparse_attention_freq", most=1)
    sparse.per_layer("sparse_attention_freq", count, flags)
    indexer = Indexer(
        head_dim=sparse.whole("indexer.head_dim", "sparse_index_dim", most=1 << 16),
        query_heads=sparse.whole("indexer.query_heads", "sparse_num_index_heads", most=1 << 16),
        form="block",
    )
    return [indexer if flag else None for flag in flags]


def _qk_norm(f: Fields) -> QKNorm:
    if not f.flag("attention.qk_norm", "use_qk_norm", False):
        return "none"
    return "full" if f.data.get("qk_norm_type") == "per_layer" else "head"


def _mlps(f: Fields, count: int) -> list[MLP | None]:
    width = ("moe_intermediate_size",) if f.has("moe_intermediate_size") else ("intermediate_size",)
    each = f.maybe_whole("moe.shared_intermediate", "shared_intermediate_size", least=0) or 0
    shared = each
    if f.has("n_shared_experts"):
        shared = common.shared_width(f, "n_shared_experts", each=each)
    experts = common.moe(
        f,
        experts=("num_local_experts",),
        width=width,
        shared_intermediate=shared,
        router_bias=f.flag("moe.router_bias", "use_routing_bias", False),
    )
    if not f.has("moe_layer_freq") and not f.has("first_k_dense_replace"):
        return [experts] * count
    plain = common.dense(f, "dense_intermediate_size")
    return [experts if yes else plain for yes in moe_layers.sparse_layers(f, count)]


def _drafts(f: Fields, count: int, full: Attention, mlps: list[MLP | None]) -> list[Layer]:
    modules = common.draft_count(f, "num_mtp_modules") or common.draft_count(
        f, "num_nextn_predict_layers"
    )
    return common.drafts(modules, (full,), mlps[-1], count, moe_layers.mtp_extra(f))
