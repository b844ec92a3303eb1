"""What each layer holds on one rank: per-token caches and fixed states.

The one place where a mixer becomes bytes. Conventions of the engines stand in ``conventions``,
storage formats in ``kv_formats``, cuts over ranks in ``sharding``. Page padding, blocks and groups
belong to the plan, not here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hybridplan.config.spec import (
    RGLRU,
    RWKV7,
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    GatedMemoryUnit,
    KimiDelta,
    LatentAttention,
    Layer,
    Lightning,
    Mamba1,
    Mamba2,
    Mixer,
    ModelSpec,
    NGramConv,
    Recurrent,
    ShortConv,
)
from hybridplan.errors import InputError
from hybridplan.ledger import conventions
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.held import STATE_PARTS, LayerCaches, State, TokenCache, number, token_rate
from hybridplan.ledger.kv_formats import head_bytes, latent_bytes
from hybridplan.ledger.sharding import kv_heads_per_rank, split
from hybridplan.ledger.sparse import (
    compressed_caches,
    compressor_states,
    index_caches,
    tail_ring,
)

__all__ = [
    "STATE_PARTS",
    "LayerCaches",
    "State",
    "TokenCache",
    "draft_caches",
    "layer_caches",
    "model_caches",
    "number",
    "token_rate",
]


def model_caches(spec: ModelSpec, deployment: Deployment) -> tuple[LayerCaches, ...]:
    """The caches of every decoder layer on one rank, in order; drafts' layers are apart."""
    return _stack(spec.layers, spec, deployment)


def draft_caches(spec: ModelSpec, deployment: Deployment) -> tuple[LayerCaches, ...]:
    """The caches of the MTP layers the checkpoint carries."""
    return _stack(spec.draft_layers, spec, deployment)


def _stack(
    layers: tuple[Layer, ...], spec: ModelSpec, deployment: Deployment
) -> tuple[LayerCaches, ...]:
    """Caches of each layer; layers with equal mixers are worked out once."""
    conventions.check_parallel(deployment)
    known: dict[tuple[Mixer, ...], LayerCaches] = {}
    made = []
    for layer in layers:
        first = known.get(layer.mixers)
        if first is None:
            first = known[layer.mixers] = layer_caches(layer, spec, deployment)
        made.append(replace(first, index=layer.index))
    return tuple(made)


def layer_caches(layer: Layer, spec: ModelSpec, deployment: Deployment) -> LayerCaches:
    """What ``layer`` holds on one rank of ``deployment``.

    Raises InputError where sizes do not divide over the ranks or a dtype does not fit the cache.
    """
    tokens: list[TokenCache] = []
    states: list[State] = []
    reads: int | None = None
    for mixer in layer.mixers:
        own: list[State] = []
        if isinstance(mixer, Attention):
            tokens += _attention(mixer, spec, deployment)
            reads = mixer.kv_source_layer if mixer.kv_source_layer is not None else reads
        elif isinstance(mixer, LatentAttention):
            tokens += _latent(mixer, spec, deployment)
        elif isinstance(mixer, CompressedAttention):
            split(mixer.heads, deployment.tp, "attention heads")
            tokens += compressed_caches(mixer, spec, deployment)
            own += compressor_states(mixer, deployment)
        elif not isinstance(mixer, GatedMemoryUnit):
            own += _recurrent(mixer, spec, deployment)
        own += tail_ring(mixer, deployment)
        states += [replace(state, mixer=mixer.kind) for state in own]
    kinds = tuple(mixer.kind for mixer in layer.mixers)
    return LayerCaches(layer.index, kinds, tuple(tokens), tuple(states), reads)


def _attention(mixer: Attention, spec: ModelSpec, deployment: Deployment) -> list[TokenCache]:
    if mixer.kv_source_layer is not None:
        return []
    split(mixer.heads, deployment.tp, "attention heads")
    heads, copies = kv_heads_per_rank(mixer.kv_heads, deployment.tp)
    dcp = deployment.dcp if mixer.window is None else 1
    if dcp > copies:
        raise InputError(
            f"dcp {dcp} needs each KV head on {dcp} ranks, but with {mixer.kv_heads} KV heads "
            f"tp {deployment.tp} holds it on {copies}; use --dcp {copies} "
            f"or --tp {mixer.kv_heads * dcp}"
        )
    dtype = conventions.kv_dtype(spec, deployment)
    kv = TokenCache(
        "kv",
        heads,
        mixer.key_dim,
        mixer.value_dim,
        dtype,
        heads * head_bytes(mixer.key_dim, mixer.value_dim, dtype),
        window=mixer.window,
        window_tokens=conventions.window_tokens(mixer.window, deployment),
        sink_tokens=spec.prefix_tokens,
        copies=copies // dcp,
        context_ranks=dcp,
        step_tokens=conventions.growth_step_tokens(deployment),
    )
    return [kv, *index_caches(mixer.indexer, spec, deployment)]


def _latent(mixer: LatentAttention, spec: ModelSpec, deployment: Deployment) -> list[TokenCache]:
    split(mixer.heads, deployment.tp, "attention heads")
    width = mixer.kv_lora_rank + mixer.rope_dim
    dtype = conventions.kv_dtype(spec, deployment)
    latent = TokenCache(
        "mla",
        1,
        width,
        0,
        dtype,
        latent_bytes(width, dtype),
        copies=deployment.tp // deployment.dcp,
        context_ranks=deployment.dcp,
        step_tokens=conventions.growth_step_tokens(deployment),
    )
    return [latent, *index_caches(mixer.indexer, spec, deployment, latent=True)]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A recurrent mixer on one rank: the state's shape, and the convolution's channels."""

    shape: tuple[int, ...]
    conv_channels: int = 0
    conv_kernel: int = 0


def _cut(mixer: Recurrent, tp: int) -> _Cut:
    if isinstance(mixer, GatedDeltaNet):
        key_heads = split(mixer.key_heads, tp, "key heads of the Gated DeltaNet layers")
        heads = split(mixer.value_heads, tp, "value heads of the Gated DeltaNet layers")
        channels = 2 * key_heads * mixer.key_dim + heads * mixer.value_dim
        return _Cut((heads, mixer.key_dim, mixer.value_dim), channels, mixer.conv_kernel)
    if isinstance(mixer, KimiDelta):
        heads = split(mixer.heads, tp, "heads of the KDA layers")
        channels = 3 * heads * mixer.head_dim
        return _Cut((heads, mixer.head_dim, mixer.head_dim), channels, mixer.conv_kernel)
    if isinstance(mixer, Lightning):
        heads = split(mixer.heads, tp, "heads of the lightning attention layers")
        return _Cut((heads, mixer.head_dim, mixer.head_dim))
    if isinstance(mixer, Mamba2):
        heads = split(mixer.heads, tp, "heads of the Mamba-2 layers")
        # Groups that do not divide over the ranks are repeated, one to a rank.
        groups = mixer.groups // tp if mixer.groups % tp == 0 else 1
        channels = heads * mixer.head_dim
        channels += 2 * groups * mixer.state_dim if mixer.conv_over_groups else 0
        return _Cut((heads, mixer.head_dim, mixer.state_dim), channels, mixer.conv_kernel)
    if isinstance(mixer, Mamba1):
        inner = split(mixer.inner, tp, "inner channels of the Mamba layers")
        return _Cut((inner, mixer.state_dim), inner, mixer.conv_kernel)
    if isinstance(mixer, RGLRU):
        width = split(mixer.lru_width, tp, "channels of the RG-LRU layers")
        return _Cut((width,), width, mixer.conv_kernel)
    if isinstance(mixer, RWKV7):
        heads = split(mixer.heads, tp, "heads of the RWKV-7 layers")
        return _Cut((heads, mixer.head_dim, mixer.head_dim))
    if isinstance(mixer, ShortConv):
        channels = split(mixer.channels, tp, "channels of the short convolutions")
        return _Cut((), channels, mixer.conv_kernel)
    if isinstance(mixer, NGramConv):
        return _Cut((), mixer.channels, mixer.window_tokens + 1)
    elements = split(mixer.state_elements, tp, "state elements")
    channels = split(mixer.conv_channels, tp, "convolution channels")
    return _Cut((elements,) if elements else (), channels, mixer.conv_kernel)


def _recurrent(mixer: Recurrent, spec: ModelSpec, deployment: Deployment) -> list[State]:
    cut = _cut(mixer, deployment.tp)
    states = []
    if cut.shape:
        dtype = conventions.state_dtype(spec, mixer, deployment)
        states.append(State("state", cut.shape, dtype))
    if cut.conv_channels:
        columns = conventions.conv_columns(cut.conv_kernel, mixer.kind, deployment)
        dtype = conventions.conv_dtype(spec, deployment)
        shape = (columns, cut.conv_channels)
        if isinstance(mixer, NGramConv):
            states.append(State("ngram_conv", shape, dtype, deployment.tp))
        else:
            states.append(State("conv", shape, dtype))
    if isinstance(mixer, RWKV7):
        dtype = conventions.conv_dtype(spec, deployment)
        states.append(State("token_shift", (2, spec.hidden_size), dtype, deployment.tp))
    return states
