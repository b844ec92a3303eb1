"""What each layer holds on one rank: per-token caches and fixed states.

The one place where a mixer becomes bytes. Conventions of the engines stand in ``conventions``,
storage formats in ``kv_formats``, cuts over ranks in ``sharding``. Page padding, blocks and groups
belong to the plan, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal, TypeAlias

from hybridplan.config.spec import (
    RGLRU,
    RWKV7,
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    GatedMemoryUnit,
    Indexer,
    KimiDelta,
    LatentAttention,
    Layer,
    Lightning,
    Mamba1,
    Mamba2,
    Mixer,
    ModelSpec,
    Recurrent,
    ShortConv,
    Window,
)
from hybridplan.errors import InputError
from hybridplan.ledger import conventions
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import element_bytes
from hybridplan.ledger.kv_formats import head_bytes, latent_bytes, quantised_index_bytes
from hybridplan.ledger.sharding import kv_heads_per_rank, split

CacheName: TypeAlias = Literal["kv", "mla", "index", "compressed"]
StateName: TypeAlias = Literal["state", "conv", "token_shift", "tail_ring"]


@dataclass(frozen=True, slots=True)
class TokenCache:
    """A cache that grows with the sequence, as one rank holds it in one layer.

    ``heads`` x (``key_dim`` + ``value_dim``) elements make an entry (MLA: 1 head, value_dim 0).
    ``bytes_per_entry`` includes scales of packed formats. ``copies`` ranks of the tensor parallel
    group hold the same bytes. ``window_tokens`` bounds the tokens held; ``sink_tokens`` are held
    besides (learnt prefixes). ``context_ranks`` share the tokens (DCP).
    """

    name: CacheName
    heads: int
    key_dim: int
    value_dim: int
    dtype: str
    bytes_per_entry: int
    tokens_per_entry: int = 1
    window: Window | None = None
    window_tokens: int | None = None
    sink_tokens: int = 0
    copies: int = 1
    context_ranks: int = 1
    step_tokens: int = 1

    @property
    def elements_per_entry(self) -> int:
        """Elements of one entry on this rank, scales left out."""
        return self.heads * (self.key_dim + self.value_dim)

    def held_tokens(self, tokens: int) -> int:
        """Tokens this rank keeps of a sequence of ``tokens`` (the fullest DCP rank)."""
        held = -(-tokens // self.step_tokens) * self.step_tokens
        if self.window_tokens is not None:
            held = min(held, self.window_tokens)
        return -(-(held + self.sink_tokens) // self.context_ranks)

    def bytes(self, tokens: int) -> int:
        """Bytes of a sequence of ``tokens``; an unfinished entry is not stored yet."""
        return self.held_tokens(tokens) // self.tokens_per_entry * self.bytes_per_entry


@dataclass(frozen=True, slots=True)
class State:
    """A fixed-size tensor per request, as one rank holds it in one layer.

    ``copies`` ranks hold the same bytes. ``checkpointed`` False: not part of a cached prefix.
    """

    name: StateName
    shape: tuple[int, ...]
    dtype: str
    copies: int = 1
    checkpointed: bool = True

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * element_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class LayerCaches:
    """All one layer keeps between steps. ``reads_layer``: it reads that layer's KV, stores none."""

    index: int
    kinds: tuple[str, ...]
    tokens: tuple[TokenCache, ...]
    states: tuple[State, ...]
    reads_layer: int | None = None

    def token_bytes(self, tokens: int) -> int:
        """Bytes of the per-token caches for a sequence of ``tokens``."""
        return sum(cache.bytes(tokens) for cache in self.tokens)

    @property
    def state_bytes(self) -> int:
        """Bytes of everything that does not grow."""
        return sum(state.bytes for state in self.states)


def number(value: Fraction) -> float:
    """An int where the fraction is one."""
    return value.numerator if value.denominator == 1 else float(value)


def token_rate(layers: Sequence[LayerCaches], *, windowed: bool | None = None) -> float:
    """Bytes a token adds on one rank: in all caches, or in those with (without) a window."""
    rate = Fraction(0)
    for layer in layers:
        for cache in layer.tokens:
            if windowed is None or (cache.window_tokens is not None) == windowed:
                share = cache.tokens_per_entry * cache.context_ranks
                rate += Fraction(cache.bytes_per_entry, share)
    return number(rate)


def model_caches(spec: ModelSpec, deployment: Deployment) -> tuple[LayerCaches, ...]:
    """The caches of every decoder layer on one rank, in order; drafts' layers are apart."""
    conventions.check_parallel(deployment)
    return tuple(layer_caches(layer, spec, deployment) for layer in spec.layers)


def draft_caches(spec: ModelSpec, deployment: Deployment) -> tuple[LayerCaches, ...]:
    """The caches of the MTP layers the checkpoint carries."""
    conventions.check_parallel(deployment)
    return tuple(layer_caches(layer, spec, deployment) for layer in spec.draft_layers)


def layer_caches(layer: Layer, spec: ModelSpec, deployment: Deployment) -> LayerCaches:
    """What ``layer`` holds on one rank of ``deployment``.

    Raises InputError where sizes do not divide over the ranks or a dtype does not fit the cache.
    """
    tokens: list[TokenCache] = []
    states: list[State] = []
    reads: int | None = None
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            tokens += _attention(mixer, spec, deployment)
            reads = mixer.kv_source_layer if mixer.kv_source_layer is not None else reads
        elif isinstance(mixer, LatentAttention):
            tokens += _latent(mixer, spec, deployment)
        elif isinstance(mixer, CompressedAttention):
            tokens += _compressed(mixer, spec, deployment)
        elif not isinstance(mixer, GatedMemoryUnit):
            states += _recurrent(mixer, spec, deployment)
        states += _tail_ring(mixer, deployment)
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
    return [kv, *_index(mixer.indexer, spec, deployment)]


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
    return [latent, *_index(mixer.indexer, spec, deployment)]


def _compressed(
    mixer: CompressedAttention, spec: ModelSpec, deployment: Deployment
) -> list[TokenCache]:
    split(mixer.heads, deployment.tp, "attention heads")
    dtype = conventions.kv_dtype(spec, deployment)
    entry_bytes = latent_bytes(mixer.head_dim, dtype)
    window = Window("sliding", mixer.window_tokens)
    caches = [
        TokenCache(
            "kv",
            1,
            mixer.head_dim,
            0,
            dtype,
            entry_bytes,
            window=window,
            window_tokens=conventions.window_tokens(window, deployment),
            copies=deployment.tp,
        )
    ]
    if mixer.compress_ratio and mixer.kv_owned:
        caches.append(
            TokenCache(
                "compressed",
                1,
                mixer.head_dim,
                0,
                dtype,
                entry_bytes,
                tokens_per_entry=mixer.compress_ratio,
                copies=deployment.tp,
            )
        )
    return caches + _index(mixer.indexer, spec, deployment)


def _index(indexer: Indexer | None, spec: ModelSpec, deployment: Deployment) -> list[TokenCache]:
    """Index keys: fp8 with a scale in the serving engines, plain model dtype in the others."""
    if indexer is None or not indexer.owned:
        return []
    if deployment.engine in ("vllm", "sglang"):
        dtype, key_bytes = "uint8", quantised_index_bytes(indexer.head_dim)
    else:
        dtype = conventions.model_dtype(spec, deployment)
        key_bytes = indexer.head_dim * element_bytes(dtype)
    return [
        TokenCache(
            "index",
            indexer.key_heads,
            indexer.head_dim,
            0,
            dtype,
            indexer.key_heads * key_bytes,
            tokens_per_entry=indexer.tokens_per_entry,
            copies=deployment.tp // deployment.dcp,
            context_ranks=deployment.dcp,
            step_tokens=conventions.growth_step_tokens(deployment),
        )
    ]


def _tail_ring(mixer: Mixer, deployment: Deployment) -> list[State]:
    """The ring where tokens of an unfinished index pool wait: key and gate, bf16 (vllm.md 1.1)."""
    indexer = getattr(mixer, "indexer", None)
    if indexer is None or not (indexer.owned and indexer.tail_ring):
        return []
    pool = indexer.tokens_per_entry
    pools = 1
    while pools * pool < pool + deployment.drafts:
        pools *= 2
    shape = (2, pools * pool, indexer.head_dim)
    return [State("tail_ring", shape, "bfloat16", deployment.tp, checkpointed=False)]


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
        states.append(State("conv", (columns, cut.conv_channels), dtype))
    if isinstance(mixer, RWKV7):
        dtype = conventions.conv_dtype(spec, deployment)
        states.append(State("token_shift", (2, spec.hidden_size), dtype, deployment.tp))
    return states
