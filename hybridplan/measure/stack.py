"""The model's layers as one step: matrix products, convolutions, kernels, over the plan's pools.

Norms, rotary embedding, residual additions and experts are left out; every layer reads the same
hidden rows, so values stay in range while the time and the bytes are those of the real shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridplan.config.spec import Layer, Mixer, ModelSpec, MoE, ShortConv
from hybridplan.errors import RefusalError
from hybridplan.ledger.vllm.page import AttentionCache, StateCache
from hybridplan.ledger.vllm.plan import PoolPlan
from hybridplan.ledger.work import calls as counted
from hybridplan.ledger.work.features import Counts
from hybridplan.ledger.work.matrices import Shape, layer_bytes, mixer_matrices, mlp_matrices
from hybridplan.ledger.work.positions import FULL
from hybridplan.measure.attention import AttentionLayer, attention_layer
from hybridplan.measure.context import conv_shape
from hybridplan.measure.linear import LinearLayer, linear_layer
from hybridplan.measure.pools import Blocks, PlanPool

MOST_REQUESTS = 512


class Work:
    """Counts of one step."""

    def __init__(self) -> None:
        self.counts = Counts(step=1)

    def add(self, counts: Counts) -> None:
        """Add a call."""
        self.counts = self.counts.plus(counts)


@dataclass(frozen=True)
class Step:
    """A step ready to run, and what it counts."""

    name: str
    call: Callable[[], None]
    features: dict[str, float]


@dataclass(frozen=True)
class _Request:
    """Blocks of a batch: a slot per state group, a table per KV group, by layer name."""

    slots: dict[str, Tensor]
    tables: dict[str, Tensor]
    contexts: Tensor
    lengths: tuple[int, ...]


def supported(layer: Layer) -> bool:
    """Whether a kernel here runs something of the layer."""
    return any(_runs(mixer) for mixer in layer.mixers) or (
        not layer.mixers and not isinstance(layer.mlp, MoE)
    )


def _runs(mixer: Mixer) -> bool:
    return (
        linear_layer(mixer) is not None
        or isinstance(mixer, ShortConv)
        or attention_layer(mixer) is not None
    )


class Stack:
    """Weights of the layers that fit, over a :class:`PlanPool`.

    ``rows`` bounds the tokens of one step. Raises RefusalError where nothing can be run.
    """

    def __init__(self, spec: ModelSpec, pool: PlanPool, rows: int, weight_bytes: int) -> None:
        """Allocate weights up to ``weight_bytes`` and buffers for ``rows`` tokens."""
        self.spec, self.pool, self.rows = spec, pool, rows
        self.device = pool.buffer.device
        self.hidden = spec.hidden_size
        self.layers = self._that_fit(weight_bytes)
        if not self.layers:
            raise RefusalError(f"no layer of {spec.name} can be run by the kernels here")
        self._names = _names(pool.plan, spec)
        self._matrices = [self._weights(layer) for layer in self.layers]
        self._head = self._matrix((self.hidden, spec.vocab_size))
        self._x = torch.randn((rows, self.hidden), device=self.device, dtype=torch.bfloat16)
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._conv: dict[tuple[int, int], Tensor] = {}
        self._gates: dict[str, Any] = {}

    @property
    def whole(self) -> bool:
        """Whether every layer of the model is run."""
        return len(self.layers) == len(self.spec.layers)

    def describe(self) -> str:
        """A sentence on what is run."""
        head = "whole stack" if self.whole else f"the first {len(self.layers)} runnable layers"
        missing = []
        if any(isinstance(layer.mlp, MoE) for layer in self.layers):
            missing.append("experts")
        kinds = {m.kind for layer in self.layers for m in layer.mixers if not _runs(m)}
        missing += sorted(kinds)
        left = f"; left out: norms, rotary embedding, {', '.join(missing)}".rstrip(", ")
        return f"{head} of {len(self.spec.layers)} layers and the output head{left}"

    def _that_fit(self, weight_bytes: int) -> list[Layer]:
        left = weight_bytes - 2 * self.hidden * self.spec.vocab_size
        chosen = []
        for layer in self.spec.layers:
            left -= layer_bytes(layer, self.hidden)
            if left < 0:
                break
            if supported(layer):
                chosen.append(layer)
        return chosen

    def _matrix(self, shape: Shape) -> Tensor:
        made = torch.empty(shape, device=self.device, dtype=torch.bfloat16)
        return made.normal_(std=shape[0] ** -0.5)

    def _weights(self, layer: Layer) -> tuple[list[list[Tensor]], list[Tensor]]:
        mixers = [
            [self._matrix(s) for s in mixer_matrices(m, self.hidden)] if _runs(m) else []
            for m in layer.mixers
        ]
        return mixers, [self._matrix(s) for s in mlp_matrices(layer, self.hidden)]

    def _assign(self, lengths: Sequence[int]) -> _Request:
        blocks = Blocks(self.pool.plan.num_blocks)
        slots: dict[str, Tensor] = {}
        tables: dict[str, Tensor] = {}
        for group in self.pool.groups:
            if group.state:
                ids = torch.tensor(blocks.take(len(lengths)), dtype=torch.int32)
                slots.update(dict.fromkeys(group.names, ids.to(self.device)))
            else:
                width = -(-max(lengths) // group.block_tokens)
                rows = [blocks.take(width) for _ in lengths]
                table = torch.tensor(rows, dtype=torch.int32).to(self.device)
                tables.update(dict.fromkeys(group.names, table))
        contexts = torch.tensor(lengths, dtype=torch.int32, device=self.device)
        request = _Request(slots, tables, contexts, tuple(lengths))
        for name, ids in slots.items():
            self._reset(name, ids.long())
        return request

    def _reset(self, name: str, ids: Tensor) -> None:
        for view in self.pool.states(name):
            view[ids] = (torch.randn(view[ids].shape, device=self.device) * 0.1).to(view.dtype)

    def decode(self, requests: int, context: int, layers: int | None = None) -> Step:
        """One token for each of ``requests`` whose contexts hold ``context`` tokens with it."""
        return self._step(f"decode {requests} x {context:,}", (context,) * requests, layers, True)

    def prefill(self, lengths: Sequence[int], layers: int | None = None) -> Step:
        """All tokens of new requests."""
        name = f"prefill {len(lengths)} x {lengths[0]:,}"
        return self._step(name, tuple(lengths), layers, False)

    def _step(self, name: str, lengths: tuple[int, ...], layers: int | None, decode: bool) -> Step:
        count = len(self.layers) if layers is None else layers
        rows = len(lengths) if decode else sum(lengths)
        if rows > self.rows:
            raise RefusalError(f"{name} has {rows} tokens a step, the buffers hold {self.rows}")
        request = self._assign(lengths)
        work = Work()
        calls: list[Callable[[], None]] = []
        queue = {kind: list(names) for kind, names in self._names.items()}
        for layer, (mixers, mlp) in zip(self.layers[:count], self._matrices[:count], strict=True):
            for mixer, matrices in zip(layer.mixers, mixers, strict=True):
                if not matrices:
                    continue
                calls += [self._product(w, rows, work) for w in matrices[:-1]]
                linear, attention = linear_layer(mixer), attention_layer(mixer)
                if attention is not None:
                    own = queue["attention"].pop(0)
                    calls += self._attend(attention, own, request, rows, work, decode)
                else:
                    own = queue["state"].pop(0)
                    calls += self._recur(mixer, linear, own, request, rows, work, decode)
                calls.append(self._product(matrices[-1], rows, work))
            if mlp:
                calls += self._mlp(mlp, rows, work)
        calls.append(self._product(self._head, len(lengths), work))
        label = name if count == len(self.layers) else f"{name}, {count} layers"

        def run() -> None:
            for call in calls:
                call()

        features = {name: float(n) for name, n in work.counts._asdict().items() if n}
        return Step(label, run, features)

    def _out(self, width: int, rows: int, use: str = "product") -> Tensor:
        """A buffer of that width; all layers write the same memory for the same use."""
        key = (use, width)
        if key not in self._buffers:
            most = self.rows if width != self.spec.vocab_size else min(self.rows, MOST_REQUESTS)
            self._buffers[key] = torch.randn(
                (most, width), device=self.device, dtype=torch.bfloat16
            )
        return self._buffers[key][:rows]

    def _product(self, w: Tensor, rows: int, work: Work) -> Callable[[], None]:
        wide, out_wide = w.shape
        x = self._x[:rows] if wide == self.hidden else self._out(wide, rows)
        out = self._out(out_wide, rows)
        if out is x or out.data_ptr() == x.data_ptr():
            out = torch.empty_like(out)
        work.add(counted.product(wide, out_wide, rows))
        return lambda: torch.mm(x, w, out=out)

    def _mlp(self, mlp: Sequence[Tensor], rows: int, work: Work) -> list[Callable[[], None]]:
        first, last = mlp
        inner, outer = last.shape[0], first.shape[1]
        wide, narrow = self._out(outer, rows), self._out(inner, rows)
        activate = torch.nn.functional.silu
        work.add(counted.gate(outer, inner, rows))

        def gate() -> None:
            if outer == inner:
                torch.mul(activate(wide), 1.0, out=narrow)
            else:
                torch.mul(activate(wide[:, :inner]), wide[:, inner:], out=narrow)

        return [self._product(first, rows, work), gate, self._product(last, rows, work)]

    def _recur(
        self, mixer: Mixer, layer: LinearLayer | None, name: str, request: _Request, rows: int,
        work: Work, decode: bool,
    ) -> list[Callable[[], None]]:  # fmt: skip
        state, window = self.pool.state_and_window(name)
        slots = request.slots[name]
        starts = _starts(request.lengths)
        calls: list[Callable[[], None]] = []
        first = mixer_matrices(mixer, self.hidden)[0][1]
        row = None
        if layer is not None:
            row = self._out(first, rows)[:, : layer.channels]
        conv = conv_shape(mixer)
        if conv is not None and window is not None:
            channels, taps = conv
            weight = self._conv.setdefault(
                conv, torch.randn((channels, taps), device=self.device, dtype=torch.bfloat16) * 0.3
            )
            before = self._out(first, rows)[:, :channels] if row is None else row[:, -channels:]
            after = self._out(channels, rows, "conv")
            calls.append(_conv_call(before, weight, window, slots, starts, after, decode))
            work.add(counted.convolution(channels, taps, rows, len(request.lengths)))
            if row is not None and channels == row.shape[1]:
                row = after
        if layer is None or row is None or state is None:
            return calls
        if state[0].numel() != layer.state_elements:
            raise RefusalError(
                f"{name} keeps states of {state[0].numel():,} elements in the plan and "
                f"{layer.state_elements:,} in the kernel"
            )
        # the plan's order of the two widths does not matter to its bytes; the kernels want [V, K]
        inner = (layer.V * layer.K, layer.K, 1)
        state = state.as_strided((state.shape[0], *layer.state_shape), (state.stride(0), *inner))
        x = layer.of_row(row, self._gates_of(layer, rows))
        size = state[0].numel() * state.element_size()
        if decode:
            work.add(counted.recurrent_step(layer, size, rows, len(request.lengths)))
            out = self._out(layer.HV * layer.V, rows, "mixer").view(x.v.shape)
            return [*calls, lambda: _drop(layer.step(x, state, slots, trust_ids=True, out=out))]
        work.add(counted.recurrent_prefill(layer, size, request.lengths))
        return [*calls, lambda: _drop(layer.prefill(x, state, slots, starts))]

    def _gates_of(self, layer: LinearLayer, rows: int) -> dict[str, Any]:
        if layer.kind not in self._gates:
            self._gates[layer.kind] = layer.inputs(self.rows, self.device, 3).gates
        return {
            name: value[:rows] if name in ("gate_input", "beta", "dt") else value
            for name, value in self._gates[layer.kind].items()
        }

    def _attend(
        self, layer: AttentionLayer, name: str, request: _Request, rows: int, work: Work,
        decode: bool,
    ) -> list[Callable[[], None]]:  # fmt: skip
        caches = self.pool.caches(name)
        table, contexts = request.tables[name], request.contexts
        width = layer.D + layer.rope
        q = self._out(layer.HQ * width, rows, "queries").view(rows, layer.HQ, width)
        page = caches[0].shape[1]
        lengths = request.lengths
        positions = [n - 1 for n in lengths] if decode else [t for n in lengths for t in range(n)]
        owners = [i for i, n in enumerate(lengths) for _ in range(1 if decode else n)]
        at = torch.tensor(positions, device=self.device)
        block = table[torch.tensor(owners, device=self.device), at // page].long()
        offset = at % page
        fresh = [
            self._out(math.prod(cache.shape[2:]), rows, "fresh").view(rows, *cache.shape[2:])
            for cache in caches
        ]
        kv_bytes = layer.kv_bytes_per_token
        work.add(counted.kv_write(kv_bytes, len(caches), rows))

        def write() -> None:
            for cache, new in zip(caches, fresh, strict=True):
                cache[block, offset] = new

        if decode:
            work.add(counted.attention_step(layer, kv_bytes, sum(lengths), rows))
            out = self._out(layer.HQ * layer.V, rows, "mixer").view(rows, layer.HQ, layer.V)
            return [
                write,
                lambda: _drop(layer.decode(q, caches, table, contexts, trust_ids=True, out=out)),
            ]
        if layer.latent:
            return [write]
        from hybridplan.kernels.paged_attention.chunk import prefill_gqa

        pairs = sum(FULL.pairs(0, n) for n in lengths)
        work.add(counted.attention_prefill(layer, kv_bytes, pairs, rows, len(lengths)))
        starts, held = list(_starts(lengths)), list(lengths)
        keys, values = caches
        return [write, lambda: _drop(prefill_gqa(q, keys, values, table, held, starts))]


def _drop(_: object) -> None:
    return None


def _starts(lengths: Sequence[int]) -> tuple[int, ...]:
    starts = [0]
    for n in lengths:
        starts.append(starts[-1] + n)
    return tuple(starts)


def _conv_call(
    x: Tensor, weight: Tensor, pool: Tensor, slots: Tensor, starts: tuple[int, ...], out: Tensor,
    decode: bool,
) -> Callable[[], None]:  # fmt: skip
    from hybridplan.kernels.short_conv import chunk, recurrent

    if decode:
        return lambda: _drop(
            recurrent.recurrent_step(x, weight, None, pool, slots, trust_ids=True, out=out)
        )
    return lambda: _drop(chunk.chunk_prefill(x, weight, None, pool, slots, starts, out=out))


def _names(plan: PoolPlan, spec: ModelSpec) -> dict[str, list[str]]:
    """Names of the plan's recurrent and attention layers in the model's order."""
    state = [n for n, c in plan.layers.items() if isinstance(c, StateCache) and not c.draft]
    attention = [
        n
        for n, c in plan.layers.items()
        if isinstance(c, AttentionCache) and c.role == "attention" and not c.draft
    ]
    return {"state": state, "attention": attention}
