"""Qwen3.8-Flash-Next (qwen4_exp): Gated DeltaNet beside attention with a pooled token index."""

from __future__ import annotations

from hybridplan.config.families import common, gdn
from hybridplan.config.fields import Fields
from hybridplan.config.spec import Indexer, ModelSpec, NGramConv

QSA_KEYS = (
    "indexer_n_heads",
    "indexer_kv_heads",
    "indexer_head_dim",
    "indexer_budget",
    "indexer_compress_ratio",
)


def read(f: Fields, root: Fields) -> ModelSpec:
    """Gated DeltaNet, an n-gram window before some of it, attention with pooled index keys."""
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
    placed = _ngram_layers(f, kinds)
    linear = gdn.mixer(f)
    ngram = (_ngram(f, wide),) if placed else ()
    draft = common.draft_count(f, "mtp_num_hidden_layers")
    return common.model(
        f,
        root,
        layers=common.stack(
            ["ngram" if index in placed else kind for index, kind in enumerate(kinds)],
            {"gdn": (linear,), "ngram": (*ngram, linear), "full": (full,)},
            [experts] * count,
            norms=0,
            extra={"gdn": mixing, "ngram": mixing, "full": mixing},
        ),
        draft_layers=common.drafts(
            draft, (full,), experts, count, {"mtp_projection": 2 * hidden * hidden + 3 * hidden}
        ),
        extra_params={"mixing_streams": wide + 2 * wide * rank},
        final_norm_params=0,
    )


def _ngram_layers(f: Fields, kinds: list[str]) -> set[int]:
    """Layers with an n-gram embedding; ``ple_layer_ids`` counts from 1. None where it is null."""
    uncounted = "tens of billions of parameters that may sit in host memory"
    if not f.has("ple_layer_ids"):
        f.notes.append(
            f"{f.at('ple_layer_ids')} is not given: the per-layer n-gram embedding ({uncounted}) "
            "and its convolution state are not counted, nor the group of states a vLLM pool has "
            "for them"
        )
        return set()
    f.notes.append(f"the per-layer n-gram embedding ({uncounted}) is not counted, its state is")
    placed = {one - 1 for one in f.wholes("ple_layer_ids", least=1, most=len(kinds))}
    for index in sorted(placed):
        if kinds[index] != "gdn":
            raise f.fail(
                f"{f.at('ple_layer_ids')} names layer {index + 1}, which is no linear_attention "
                "layer"
            )
    return placed


def _ngram(f: Fields, channels: int) -> NGramConv:
    return NGramConv(
        channels=channels,
        conv_kernel=f.whole("ngram.conv_kernel", "ple_conv_kernel_size", most=1024),
        dilation=f.whole("ngram.dilation", "ngram_size", most=1024),
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
