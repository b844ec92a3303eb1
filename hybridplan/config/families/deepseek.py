"""MLA with DeepSeek's names: DeepSeek-V2, V3, V3.2, Kimi-K2, GLM-5 (DSA), GLM-4.7-Flash, Hy4."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common, moe_layers
from hybridplan.config.fields import Fields
from hybridplan.config.spec import Indexer, LatentAttention, Layer, ModelSpec, Source

INDEXED = ("deepseek_v32", "glm_moe_dsa", "hy_v4")


def read(f: Fields, root: Fields) -> ModelSpec:
    """MLA in every layer; the DSA models keep index keys in the layers that own them."""
    kind = str(f.data.get("model_type") or root.data.get("model_type"))
    count = f.layer_count()
    f.record("model.pattern", "num_hidden_layers alone: MLA in every layer")
    hy4 = kind == "hy_v4"
    gate = hy4 and f.flag("mla.output_gate", "gated_mla", False)
    indexer = dsa_indexer(f) if kind in INDEXED else None
    mla = common.latent(f, indexer=indexer, output_gate=gate)
    owned = indexer_owners(f, count) if indexer else [True] * count
    mlps = moe_layers.deepseek_mlps(f, count)
    sinks = (
        {"mixer_sinks": mla.heads} if hy4 and f.flag("mla.sinks", "learnable_sink", False) else {}
    )
    streams, at_head = _streams(f) if hy4 else ({}, {})
    layers = [
        Layer(i, (with_owner(mla, owns),), mlp, extra_params=sinks | streams)
        for i, (owns, mlp) in enumerate(zip(owned, mlps, strict=True))
    ]
    draft = common.draft_count(f, "num_nextn_predict_layers")
    extra = moe_layers.mtp_extra(f, copies=kind.startswith(("deepseek", "kimi")))
    return common.model(
        f,
        root,
        layers=layers,
        draft_layers=common.drafts(draft, (mla,), mlps[-1], count, extra | sinks),
        extra_params=at_head,
    )


def _streams(f: Fields) -> tuple[dict[str, int], dict[str, int]]:
    """Hy4's hyper-connections: two sites in a layer, and the collapse before the last norm."""
    if not f.flag("model.hyper_connections", "enable_ihc", False):
        return {}, {}
    n = f.whole("model.streams", "hc_mult", most=64)
    wide = n * common.hidden_size(f)
    return {"mixing_streams": 2 * (2 * n * (wide + 1) + 2)}, {"mixing_streams": n * (wide + 1) + 1}


def dsa_indexer(f: Fields) -> Indexer:
    """The index of DSA: one key a token, ``index_head_dim`` wide."""
    return Indexer(
        head_dim=f.whole("indexer.head_dim", "index_head_dim", most=1 << 16),
        query_heads=f.whole("indexer.query_heads", "index_n_heads", most=1 << 16),
        topk_tokens=f.maybe_whole("indexer.topk_tokens", "index_topk"),
    )


def with_owner(mla: LatentAttention, owns: bool) -> LatentAttention:
    """The same MLA whose index keys are its own, or an earlier layer's."""
    if mla.indexer is None or owns:
        return mla
    return replace(mla, indexer=replace(mla.indexer, owned=False))


def indexer_owners(f: Fields, count: int) -> list[bool]:
    """Which layers store index keys of their own.

    ``indexer_types`` full/shared; else ``index_topk_pattern`` (F/S); else ``index_topk_freq`` with
    ``index_skip_topk_offset``: full where max(i - offset + 1, 0) % freq == 0 (transformers 5.24
    GlmMoeDsaConfig). Given together they must agree; none of them means every layer.
    """
    named: list[tuple[str, list[bool]]] = []
    if f.has("indexer_types"):
        words = f.words("indexer_types")
        f.per_layer("indexer_types", count, words)
        if any(word not in ("full", "shared") for word in words):
            raise f.fail(f"{f.at('indexer_types')} must hold only full and shared")
        named.append(("indexer_types", [word == "full" for word in words]))
    if f.has("index_topk_pattern"):
        pattern = f.text("indexer.owned", "index_topk_pattern")
        f.per_layer("index_topk_pattern", count, pattern)
        if set(pattern) - {"F", "S"}:
            raise f.fail(f"{f.at('index_topk_pattern')} must hold only F and S")
        named.append(("index_topk_pattern", [letter == "F" for letter in pattern]))
    elif f.has("index_topk_freq"):
        freq = f.whole("indexer.owned", "index_topk_freq")
        if freq > 1 or not named:
            offset = f.whole("indexer.owned", "index_skip_topk_offset", least=0)
            rule = [max(i - offset + 1, 0) % freq == 0 for i in range(count)]
            named.append(("index_topk_freq", rule))
    if not named:
        f.record("indexer.owned", "no indexer_types: every layer has index keys of its own")
        return [True] * count
    for key, owners in named[1:]:
        f.agree("which layers own index keys", named[0][0], named[0][1], key, owners)
    if not named[0][1][0]:
        raise f.fail(f"{f.at(named[0][0])} lets layer 0 share an index, but no layer precedes it")
    f.sources["indexer.owned"] = Source(f.at(named[0][0]))
    return named[0][1]
