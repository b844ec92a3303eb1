"""Gemma-4 and Gemma-3n: wide global heads, K = V, layers that reuse KV, per-layer embeddings."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import Attention, DenseMLP, Layer, ModelSpec, MoE

KINDS = {"full_attention": "full", "sliding_attention": "sliding"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """The last ``num_kv_shared_layers`` read the KV of the last own layer of their kind."""
    count = f.layer_count()
    kinds = common.listed(f, "layer_types", KINDS, count)
    three = "n" in str(f.data.get("model_type") or root.data.get("model_type"))[:7]
    window = common.sliding(f) if "sliding" in kinds else None
    sliding = common.attention(f, quotient=False, qk_norm="head", window=window)
    plain = replace(sliding, window=None)
    mixers = {"sliding": sliding, "full": plain if three else _global(f, plain)}
    sources = _kv_sources(f, count, kinds)
    hidden = common.hidden_size(f)
    ple = f.maybe_whole("model.per_layer_input", "hidden_size_per_layer_input", least=0) or 0
    extra = {"mixing_per_layer_input": 2 * hidden * ple + hidden} if ple else {}
    scalar = {} if three else {"layer_scalar": 1}
    moe = _experts(f)
    mlps = _widths(f, count, sources)
    layers = [
        Layer(
            i,
            (replace(mixers[kind], kv_source_layer=sources.get(i)),),
            replace(moe, dense_beside=mlp) if moe is not None else mlp,
            norms=7 if moe is not None else 4,
            extra_params=extra
            | scalar
            | ({"mlp_router_scales": hidden + moe.experts} if moe else {}),
        )
        for i, (kind, mlp) in enumerate(zip(kinds, mlps, strict=True))
    ]
    if three:
        f.notes.append("Gemma-3n's LAuReL and AltUp weights are not counted")
    return common.model(
        f,
        root,
        layers=layers,
        tied_absent=True,
        context_absent=Absent(32768, "max_position_embeddings absent: 32,768") if three else None,
        extra_params=_tables(f, count, ple, hidden),
    )


def _global(f: Fields, plain: Attention) -> Attention:
    """Full layers have heads of their own width and number, and K = V with attention_k_eq_v."""
    width = f.whole("attention.global.key_dim", "global_head_dim", most=1 << 16)
    kv_heads = plain.kv_heads
    same = f.flag("attention.shared_kv_weights", "attention_k_eq_v", False)
    if same:
        key = "num_global_key_value_heads"
        absent = Absent(kv_heads, f"{f.at(key)} absent: as num_key_value_heads", "derived")
        kv_heads = f.whole("attention.global.kv_heads", key, most=1 << 16, absent=absent)
    return replace(plain, key_dim=width, value_dim=width, kv_heads=kv_heads, shared_kv_weights=same)


def _kv_sources(f: Fields, count: int, kinds: list[str]) -> dict[int, int]:
    shared = f.whole("attention.kv_source_layer", "num_kv_shared_layers", least=0, most=count - 1)
    first = count - shared
    sources = {}
    for index in range(first, count):
        own = [i for i in range(first) if kinds[i] == kinds[index]]
        if not own:
            raise f.fail(
                f"{f.at('num_kv_shared_layers')} {shared} leaves no {kinds[index]} layer whose KV "
                f"layer {index} could read"
            )
        sources[index] = own[-1]
    return sources


def _widths(f: Fields, count: int, sources: dict[int, int]) -> list[DenseMLP]:
    """``intermediate_size``, a number or one per layer; doubled in KV readers if so flagged."""
    if isinstance(f.data.get("intermediate_size"), list):
        widths = f.wholes("intermediate_size", least=1)
        f.per_layer("intermediate_size", count, widths)
    else:
        widths = [common.dense(f).intermediate] * count
    double = f.flag("mlp.double_wide", "use_double_wide_mlp", False)
    return [DenseMLP(w * (2 if double and i in sources else 1)) for i, w in enumerate(widths)]


def _experts(f: Fields) -> MoE | None:
    if not f.flag("moe.enabled", "enable_moe_block", False):
        return None
    return common.moe(f, experts=("num_experts",), topk=("top_k_experts", "num_experts_per_tok"))


def _tables(f: Fields, count: int, ple: int, hidden: int) -> dict[str, int]:
    """The per-layer embedding table, which may sit in host memory, and its projection."""
    if not ple:
        return {}
    rows = f.whole("model.per_layer_vocab", "vocab_size_per_layer_input")
    return {
        "per_layer_embeddings": rows * count * ple,
        "per_layer_projection": hidden * count * ple + ple,
    }
