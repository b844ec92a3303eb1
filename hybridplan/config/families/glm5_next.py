"""GLM-5.3-Flash: KDA beside MLA whose sparse index pools several tokens into one key."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common, deepseek, kda, moe_layers
from hybridplan.config.fields import Fields
from hybridplan.config.spec import Indexer, Layer, ModelSpec

KINDS = {
    "linear_attention": "kda",
    "deepseek_sparse_attention": "mla",
    "indexed_attention": "mla",
}


def read(f: Fields, root: Fields) -> ModelSpec:
    """``linear_attn_config`` and ``layer_types`` both name the layers and must agree."""
    count = f.layer_count()
    linear = f.section("linear_attn_config")
    kinds = kda.layer_kinds(f, linear, count, KINDS)
    delta = kda.mixer(linear)
    mla = common.latent(f, indexer=_indexer(f))
    owned = deepseek.indexer_owners(f, count)
    mlps = moe_layers.deepseek_mlps(f, count)
    streams = _streams(f)
    layers = [
        Layer(
            i,
            (delta if kind == "kda" else deepseek.with_owner(mla, owns),),
            mlp,
            extra_params=streams,
        )
        for i, (kind, owns, mlp) in enumerate(zip(kinds, owned, mlps, strict=True))
    ]
    draft = common.draft_count(f, "num_nextn_predict_layers")
    return common.model(
        f,
        root,
        layers=layers,
        draft_layers=common.drafts(
            draft, (mla,), mlps[-1], count, moe_layers.mtp_extra(f) | streams
        ),
    )


def _streams(f: Fields) -> dict[str, int]:
    """Hyper-connection weights of a layer: two sites that mix ``hc_mult`` residual streams."""
    if not f.flag("model.hyper_connections", "mhc", False):
        return {}
    n = f.whole("model.streams", "hc_mult", most=64)
    return {"mixing_streams": 2 * ((2 + n) * n * (n * common.hidden_size(f) + 1) + 3)}


def _indexer(f: Fields) -> Indexer:
    """One key per ``index_kpool`` tokens; the class default of 16 is no checkpoint's."""
    pool = f.whole("indexer.tokens_per_entry", "index_kpool", most=1 << 16)
    return replace(deepseek.dsa_indexer(f), tokens_per_entry=pool, tail_ring=pool > 1, form="kpool")
