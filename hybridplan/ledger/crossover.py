"""The all-attention twin of a model, and the context length from which the hybrid is smaller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from hybridplan.config.spec import (
    Attending,
    Attention,
    CompressedAttention,
    GatedMemoryUnit,
    LatentAttention,
    Layer,
    ModelSpec,
)
from hybridplan.errors import InputError
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import element_bytes

_SEARCH_LIMIT_TOKENS = 1 << 40
_ATTENDING = (Attention, LatentAttention, CompressedAttention)


@dataclass(frozen=True, slots=True)
class Mover:
    """The crossover after one change. ``tokens`` None: it has none, or the cut is impossible."""

    change: str
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Crossover:
    """``tokens``: the shortest context at which the hybrid holds no more bytes than its twin.

    None with a ``reason`` when there is no twin or the two never meet. ``twin_pattern_layers``
    counts the attention layers of the twin.
    """

    tokens: int | None
    reason: str
    twin_attention_layers: int
    hybrid_attention_layers: int
    movers: tuple[Mover, ...]


def twin_attention(spec: ModelSpec) -> Attending | None:
    """The attention that the twin has in every mixing layer: the model's first unwindowed one."""
    found = [m for layer in spec.layers for m in layer.mixers if isinstance(m, _ATTENDING)]
    own = [m for m in found if not (isinstance(m, Attention) and m.kv_source_layer is not None)]
    full = [m for m in own if not (isinstance(m, Attention) and m.window is not None)]
    return next(iter(full or own), None)


def attention_twin(spec: ModelSpec) -> ModelSpec | None:
    """The same model with its attention in every mixing layer; None if it has no attention."""
    attention = twin_attention(spec)
    if attention is None:
        return None
    layers = tuple(_twin_layer(layer, attention) for layer in spec.layers)
    return replace(spec, name=f"{spec.name} (all attention)", layers=layers)


def _twin_layer(layer: Layer, attention: Attending) -> Layer:
    kept = tuple(m for m in layer.mixers if isinstance(m, _ATTENDING))
    if len(kept) == len(layer.mixers):
        return layer
    if not kept and all(isinstance(m, GatedMemoryUnit) for m in layer.mixers):
        return layer
    return replace(layer, mixers=kept or (attention,))


def recurrent_layers(spec: ModelSpec) -> int:
    """Layers that hold a state or a convolution window."""
    return sum(
        any(not isinstance(m, (*_ATTENDING, GatedMemoryUnit)) for m in layer.mixers)
        for layer in spec.layers
    )


def attention_layers(spec: ModelSpec) -> int:
    """Layers with attention of any kind, whether or not they own its KV."""
    return sum(any(isinstance(m, _ATTENDING) for m in layer.mixers) for layer in spec.layers)


def request_bytes(spec: ModelSpec, deployment: Deployment) -> Callable[[int], int]:
    """Bytes of one request on a tensor parallel rank, over all layers, by its length in tokens."""
    layers = model_caches(spec, deployment)
    fixed = sum(layer.state_bytes for layer in layers)
    kinds = Counter(cache for layer in layers for cache in layer.tokens)
    return lambda tokens: fixed + sum(count * cache.bytes(tokens) for cache, count in kinds.items())


def crossover_tokens(spec: ModelSpec, deployment: Deployment) -> int | None:
    """Shortest context at which hybrid <= twin; None if there is none.

    The gap between twin and hybrid never shrinks as the context grows, so it is bisected.
    """
    twin = attention_twin(spec)
    if twin is None or not recurrent_layers(spec):
        return None
    hybrid_at, twin_at = request_bytes(spec, deployment), request_bytes(twin, deployment)
    low, high = 0, _SEARCH_LIMIT_TOKENS
    if hybrid_at(high) > twin_at(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if hybrid_at(middle) <= twin_at(middle):
            high = middle
        else:
            low = middle + 1
    return low


def crossover(spec: ModelSpec, deployment: Deployment) -> Crossover:
    """The crossover and how far single changes move it."""
    twin = attention_twin(spec)
    tokens = crossover_tokens(spec, deployment)
    if not recurrent_layers(spec):
        reason = "no layer holds a recurrent state, so the model is its own twin"
    elif twin is None:
        reason = "the model has no attention layer to build a twin from"
    elif attention_layers(twin) == attention_layers(spec):
        reason = "every mixing layer has attention already; the states come on top"
    elif tokens is None:
        reason = "the states outweigh what attention in their place would hold at any context"
    else:
        reason = (
            "state bytes of the recurrent layers / KV bytes a token that attention in their place "
            "would add; the share of attention layers cancels out"
        )
    return Crossover(
        tokens,
        reason,
        attention_layers(twin) if twin is not None else 0,
        attention_layers(spec),
        _movers(spec, deployment) if tokens is not None else (),
    )


def _movers(spec: ModelSpec, deployment: Deployment) -> tuple[Mover, ...]:
    changes: list[tuple[str, ModelSpec, Deployment]] = []
    state = _widest_state_bytes(spec, deployment)
    if state == 4:
        changes.append(("bf16 state", spec, replace(deployment, state_dtype="bfloat16")))
    elif state is not None:
        changes.append(("fp32 state", spec, replace(deployment, state_dtype="float32")))
    if deployment.engine in ("vllm", "sglang") and _kv_is_16_bit(spec, deployment):
        changes.append(("fp8 KV", spec, replace(deployment, kv_dtype="fp8")))
    if isinstance(twin_attention(spec), Attention):
        changes.append(("twice the KV heads", _scaled_kv_heads(spec), deployment))
    if deployment.engine == "vllm":
        drafts = deployment.drafts + 1
        label = f"{drafts} draft" + ("s" if drafts > 1 else "")
        changes.append((label, spec, replace(deployment, drafts=drafts)))
    if deployment.engine not in ("llama.cpp", "mlx"):
        sizes = [tp for tp in (1, 2, 4, 8) if tp != deployment.tp and tp % deployment.dcp == 0]
        changes += [(f"TP {tp}", spec, replace(deployment, tp=tp)) for tp in sizes]
    movers = []
    for change, changed, deployed in changes:
        try:
            movers.append(Mover(change, crossover_tokens(changed, deployed)))
        except InputError:
            continue
    return tuple(movers)


def _widest_state_bytes(spec: ModelSpec, deployment: Deployment) -> int | None:
    states = [s for layer in model_caches(spec, deployment) for s in layer.states]
    return max((element_bytes(s.dtype) for s in states if s.name == "state"), default=None)


def _kv_is_16_bit(spec: ModelSpec, deployment: Deployment) -> bool:
    caches = [c for layer in model_caches(spec, deployment) for c in layer.tokens]
    return any(c.dtype in ("bfloat16", "float16") for c in caches)


def _scaled_kv_heads(spec: ModelSpec) -> ModelSpec:
    def scaled(layer: Layer) -> Layer:
        mixers = tuple(
            replace(m, kv_heads=2 * m.kv_heads) if isinstance(m, Attention) else m
            for m in layer.mixers
        )
        return replace(layer, mixers=mixers)

    return replace(spec, layers=tuple(scaled(layer) for layer in spec.layers))
