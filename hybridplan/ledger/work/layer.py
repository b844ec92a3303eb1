"""What the layers of a model cost a step: once, a row, a request, a key that attention reads.

``Tally`` adds layers up. Calls are counted by ``calls``, weights by ``ledger.weights``, KV and
states by ``ledger.caches``, so that bytes are those of the ledger. Norms, rotary embedding and
residual additions are left out, as in the steps that ``measure`` times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil

from hybridplan.config.spec import (
    Attention,
    CompressedAttention,
    DenseMLP,
    LatentAttention,
    Layer,
    Mixer,
    ModelSpec,
    MoE,
)
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.held import LayerCaches, TokenCache
from hybridplan.ledger.weights.parts import Part, mixer_parts, mlp_parts
from hybridplan.ledger.weights.storage import Storage
from hybridplan.ledger.work import calls
from hybridplan.ledger.work.features import Counts
from hybridplan.ledger.work.matrices import Shape, mixer_matrices, mlp_matrices
from hybridplan.ledger.work.positions import FULL, Reach
from hybridplan.ledger.work.shapes import (
    CHUNK_TOKENS,
    AttentionShape,
    attention_shape,
    recurrent_shape,
)

FLOP_PER_STATE_ELEMENT = 6
"""Of a token in a recurrent mixer without a kernel here: decay, update and read-out."""
_ROUTED_LAUNCHES = 6


class Tally:
    """Sums over layers, on one rank. See ``model.WorkModel`` for what each sum means."""

    def __init__(self, spec: ModelSpec, deployment: Deployment) -> None:
        self.once = self.row = Counts()
        self.decode_once = self.decode_row = Counts()
        self.chunk_once = self.chunk_row = self.chunk_request = Counts()
        self.state_bytes = self.window_bytes = 0
        self.chunk_scan_flop = self.before_flop = 0
        self.read_bytes: dict[Reach, Fraction] = {}
        self.pair_flop: dict[Reach, Fraction] = {}
        self.experts: Counter[tuple[int, int]] = Counter()
        self._spec = spec
        self._storage = Storage(spec)
        self._tp = deployment.tp

    def add(self, layer: Layer, caches: LayerCaches, reads: LayerCaches) -> None:
        """Add a layer; ``reads``: the caches its attention reads, another layer's or its own."""
        hidden = self._spec.hidden_size
        for mixer in layer.mixers:
            matrices = mixer_matrices(mixer, hidden)
            self._weights(layer, mixer_parts(mixer, hidden), matrices)
            self._mixer(mixer, caches, reads.tokens)
        self.state_bytes += sum(s.bytes for s in caches.states if s.name == "state")
        self.window_bytes += sum(s.bytes for s in caches.states if s.name != "state")
        if isinstance(layer.mlp, DenseMLP):
            first, last = mlp_matrices(layer, hidden)
            self._weights(layer, mlp_parts(layer.mlp, hidden), (first, last))
            gate = partial(calls.gate, self._cut(first[1]), self._cut(last[0]))
            self._every_row(gate(0), gate(1))
        elif isinstance(layer.mlp, MoE):
            self._routed(layer, layer.mlp)
        extra = (
            Part("mlp", name, count)
            for name, count in layer.extra_params.items()
            if count > 1 << 16 and "embedding" not in name
        )
        self._weights(layer, extra, ())

    # Weights and products

    def _weights(self, layer: Layer, parts: Iterable[Part], matrices: Sequence[Shape]) -> None:
        """Read the linear parts once and multiply each row by them. Where the products are not
        known one by one, each part is a product from or to the hidden width."""
        hidden = self._spec.hidden_size
        found = [part for part in parts if part.linear]
        shapes = matrices or [(hidden, max(1, part.params // hidden)) for part in found]
        for position, (inputs, outputs) in enumerate(shapes):
            last = position == len(shapes) - 1 and position > 0
            wide, narrow = (self._cut(inputs), outputs) if last else (inputs, self._cut(outputs))
            product = calls.product(wide, narrow, 1, 0)
            self.once = self.once.plus(Counts(launches=product.launches))
            self.row = self.row.plus(Counts(bytes=product.bytes))
        for part in found:
            bits = self._storage.bits(part, layer.index)
            self.once = self.once.plus(Counts(bytes=ceil(part.params * bits / 8 / self._tp)))
            self.row = self.row.plus(Counts(dense_flop=2 * self._cut(part.active)))

    def _routed(self, layer: Layer, mlp: MoE) -> None:
        """Router, the experts a token meets (read as often as ``model.distinct`` says), shared
        experts (one product as wide as all their matrices). Activations go in and out of each
        expert a token meets."""
        hidden, tp = self._spec.hidden_size, self._tp
        parts = [part for part in mlp_parts(mlp, hidden) if part.linear or part.module == "gate"]
        routed = [part for part in parts if part.component == "experts"]
        others = [part for part in parts if part.component != "experts"]
        for part in routed:
            bits = self._storage.bits(part, layer.index)
            self.experts[mlp.experts, mlp.topk] += ceil(part.params * bits / 8 / tp)
        width = mlp.latent_dim or hidden
        inner = self._cut(mlp.intermediate)
        per_expert = 2 * (2 * width + (mlp.matrices + 2) * inner)
        flop = sum(2 * self._cut(part.active) for part in routed)
        self.once = self.once.plus(Counts(launches=_ROUTED_LAUNCHES))
        self.row = self.row.plus(Counts(bytes=mlp.topk * per_expert, dense_flop=flop))
        self._weights(layer, (replace(part, linear=True) for part in others), ())

    def _cut(self, width: int) -> int:
        return -(-width // self._tp)

    def _every_row(self, none: Counts, one: Counts) -> None:
        """Add a call that every row takes part in, from its counts at 0 and at 1 rows."""
        self.once = self.once.plus(none)
        self.row = self.row.plus(one.less(none))

    # Mixers

    def _mixer(self, mixer: Mixer, caches: LayerCaches, reads: Sequence[TokenCache]) -> None:
        if isinstance(mixer, (Attention, LatentAttention, CompressedAttention)):
            self._attend(mixer, caches.tokens, reads)
            return
        own = [state for state in caches.states if state.mixer == mixer.kind]
        for state in own:
            if state.name != "state":
                columns, channels = state.shape[0], state.shape[-1]
                none = calls.convolution(channels, columns + 1, 0, 0)
                self.decode_once = self.decode_once.plus(none)
                self.chunk_once = self.chunk_once.plus(none)
                one = calls.convolution(channels, columns + 1, 1, 0)
                self.row = self.row.plus(one.less(none))
        elements = sum(state.elements for state in own if state.name == "state")
        if elements:
            self._recur(mixer, elements)

    def _recur(self, mixer: Mixer, elements: int) -> None:
        shape = recurrent_shape(mixer)
        if shape is None:
            self.decode_once = self.decode_once.plus(Counts(launches=1))
            self.chunk_once = self.chunk_once.plus(Counts(launches=2))
            self.chunk_scan_flop += CHUNK_TOKENS * FLOP_PER_STATE_ELEMENT * elements
            return
        shape = replace(shape, H=self._cut(shape.H), HV=self._cut(shape.HV))
        step = calls.recurrent_step(shape, 0, 0, 0)
        prefill = calls.recurrent_prefill(shape, 0, ())
        self.decode_once = self.decode_once.plus(step)
        self.chunk_once = self.chunk_once.plus(prefill)
        self.row = self.row.plus(Counts(bytes=shape.io_bytes(1)))
        self.chunk_scan_flop += shape.prefill_flop(CHUNK_TOKENS)

    def _attend(
        self,
        mixer: Attention | LatentAttention | CompressedAttention,
        own: Sequence[TokenCache],
        reads: Sequence[TokenCache],
    ) -> None:
        heads = self._cut(mixer.heads)
        written = ceil(sum((_rate(cache) for cache in own), Fraction(0)))
        pools = 0 if not own else 1 if isinstance(mixer, LatentAttention) else 2
        self._every_row(calls.kv_write(written, pools, 0), calls.kv_write(written, pools, 1))
        for cache in reads:
            reach = _reach(mixer, cache)
            self.read_bytes[reach] = self.read_bytes.get(reach, Fraction(0)) + _rate(cache)
            self._pairs(reach, _pair_flop(mixer, cache, heads))
        shape = attention_shape(mixer)
        if shape is None:
            width = mixer.head_dim if isinstance(mixer, CompressedAttention) else 0
            shape = AttentionShape(heads, 1, width, width)
        shape = replace(shape, HQ=heads)
        step = calls.attention_step(shape, 0, 0, 0)
        self.decode_once = self.decode_once.plus(step)
        self.decode_row = self.decode_row.plus(Counts(bytes=shape.row_bytes))
        self.chunk_request = self.chunk_request.plus(
            calls.attention_prefill(shape, 0, 0, 0, requests=1)
        )
        row = calls.attention_prefill(shape, written, 0, rows=1, requests=0)
        self.chunk_row = self.chunk_row.plus(row)
        if isinstance(mixer, LatentAttention):
            again = mixer.kv_lora_rank * heads * (mixer.nope_dim + mixer.value_dim)
            self.before_flop += 2 * again

    def _pairs(self, reach: Reach, flop: Fraction) -> None:
        if flop:
            self.pair_flop[reach] = self.pair_flop.get(reach, Fraction(0)) + flop


def _rate(cache: TokenCache) -> Fraction:
    """Bytes of the cache a token takes on this rank."""
    return Fraction(cache.bytes_per_entry, cache.tokens_per_entry * cache.context_ranks)


def _reach(mixer: Attention | LatentAttention | CompressedAttention, cache: TokenCache) -> Reach:
    """How far back a token reads of a cache. What an index picks is all that is read, the index
    itself is read whole."""
    if cache.name == "index":
        return FULL
    if cache.window is not None:
        return Reach(cache.window.tokens, cache.window.kind == "chunked")
    indexer = mixer.indexer
    if indexer is None or indexer.topk_tokens is None:
        return FULL
    return Reach(
        indexer.topk_tokens * (cache.tokens_per_entry if cache.name == "compressed" else 1)
    )


def _pair_flop(
    mixer: Attention | LatentAttention | CompressedAttention, cache: TokenCache, heads: int
) -> Fraction:
    """FLOP of a prefill a key of that cache; latents are expanded to heads first."""
    if cache.name == "index":
        if mixer.indexer is None:
            return Fraction(0)
        width = 2 * mixer.indexer.query_heads * mixer.indexer.head_dim
        return Fraction(width, cache.tokens_per_entry)
    if isinstance(mixer, Attention):
        return Fraction(2 * heads * (mixer.key_dim + mixer.value_dim))
    if isinstance(mixer, LatentAttention):
        return Fraction(2 * heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim))
    return Fraction(4 * heads * mixer.head_dim, cache.tokens_per_entry)
