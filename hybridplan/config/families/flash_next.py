"""Qwen3.8-Flash-Next (qwen4_exp): Gated DeltaNet beside attention with a pooled token index."""

from __future__ import annotations

from hybridplan.config.families import common, gdn
from hybridplan.config.fields import Fields
from hybridplan.config.spec import Indexer, ModelSpec

QSA_KEYS = (
    "indexer_n_heads",
    "indexer_kv_heads",
    "indexer_head_dim",
    "indexer_budget",
    "indexer_compress_ratio",
)


def read(f: Fields, root: Fields) -> ModelSpec:
    count = f.layer_count()
    hidden = common.hidden_size(f)
    kinds = gdn.layer_kinds(f, count)
    full = common.attention(
        f, quotient=False, output_gate=True, qk_norm="head", indexer=_indexer(f)
    )
    experts = common.moe(
        f,
        experts=("num_experts",),
        shared_intermediate=f.whole("moe.shared_intermediate", "shared_expert_intermediate_size"),
        shared_gate=True,
    )
    streams = f.whole("model.streams", "hc_count", most=64)
    rank = f.whole("model.stream_rank", "hc_lowrank", most=1 << 20)
    wide = streams * hidden
    mixing = {"mixing_streams": 2 * (wide + 2 * wide * rank + wide * streams)}
    if f.has("ple_layer_ids") or not f.has("ple_embed_dim"):
        f.notes.append(
            "the per-layer n-gram embedding (ple_*, tens of billions of parameters that may sit in "
            "host memory, and its small convolution state) is not counted: the file does not size "
            "it"
        )
    draft = common.draft_count(f, "mtp_num_hidden_layers")
    return common.model(
        f,
        root,
        layers=common.stack(
            kinds,
            {"gdn": (gdn.mixer(f),), "full": (full,)},
            [experts] * count,
            norms=0,
            extra={"gdn": mixing, "full": mixing},
        ),
        draft_layers=common.drafts(
            draft, (full,), experts, count, {"mtp_projection": 2 * hidden * hidden + 3 * hidden}
        ),
        extra_params={"mixing_streams": wide + 2 * wide * rank},
        final_norm_params=0,
    )


def _indexer(f: Fields) -> Indexer | None:
    if not any(f.has(key) for key in QSA_KEYS):
        return None
    return Indexer(
        head_dim=f.whole("indexer.head_dim", "indexer_head_dim", most=1 << 16),
        query_heads=f.whole("indexer.query_heads", "indexer_n_heads", most=1 << 16),
        tokens_per_entry=f.whole(
            "indexer.tokens_per_entry", "indexer_compress_ratio", most=1 << 16
        ),
        key_heads=f.whole("indexer.key_heads", "indexer_kv_heads", most=1 << 10),
        tail_ring=True,
        topk_tokens=f.whole("indexer.topk_tokens", "indexer_budget"),
        form="qsa",
    )
