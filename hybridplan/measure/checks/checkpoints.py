"""Check 4: what a checkpoint is good for, and what copying and exporting one costs."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.checkpoints import checkpoint_bytes
from hybridplan.ledger.deployment import Deployment
from hybridplan.measure.context import Context, NoTimeError, kernel_missing
from hybridplan.measure.linear import Inputs, LinearLayer, relative_error
from hybridplan.measure.pools import plan_of
from hybridplan.measure.result import Check, compared, noted, skipped

FAMILY = "checkpoints"


def run(context: Context) -> list[Check]:
    """Mathematics first, then time."""
    layer = context.linear
    if layer is None:
        return [skipped(FAMILY, "checkpoints", "states kept and copied",
                        kernel_missing(context.spec))]  # fmt: skip
    context.gates.linear(layer)
    found = _continuing(context, layer)
    try:
        context.timed()
    except NoTimeError as error:
        return [*found, skipped(FAMILY, "times", "copy, export and stop", str(error))]
    return [*found, *_copy_time(context), *_export_time(context, layer)]


def _ids(context: Context, *ids: int) -> Tensor:
    return torch.tensor(ids, dtype=torch.int32, device=context.device)


def _continuing(context: Context, layer: LinearLayer) -> list[Check]:
    """A prefix, then two suffixes that start from its state: copied, and shared."""
    from hybridplan.kernels.state_copy.recurrent import StateCopier

    cut = context.pick(1024, 256, 64)
    tail = cut // 2
    prefix = layer.inputs(cut, context.device, 21)
    tails = [layer.inputs(tail, context.device, seed) for seed in (22, 23)]
    pool = layer.pool(6, context.device)
    want = []
    for x in tails:
        joined = _joined(layer, prefix, x)
        slots, fresh = _ids(context, 5), _ids(context, -1)
        done = layer.prefill(joined, pool, slots, read_slots=fresh, segment_chunks=0)
        want.append(done[cut:].clone())
    fresh = _ids(context, -1)
    layer.prefill(prefix, pool, _ids(context, 0), read_slots=fresh, segment_chunks=0)
    copier = StateCopier([pool])
    copier.copy(_ids(context, 0, 0), _ids(context, 1, 2))
    exact = bool((pool[0] == pool[1]).all()) and bool((pool[0] == pool[2]).all())
    copied = [
        layer.prefill(x, pool, _ids(context, n + 1), segment_chunks=0) for n, x in enumerate(tails)
    ]
    shared = [layer.prefill(x, pool, _ids(context, 0), segment_chunks=0) for x in tails]
    return [
        compared(FAMILY, "copy is exact", "bytes of two copies that differ from their source",
                 0, 0 if exact else 1, "copies", 0.0, "one launch for all layers"),
        compared(FAMILY, "copied state", "continuing from a copy against one pass from scratch",
                 1e-5, max(map(relative_error, copied, want)), "relative error", 0.0,
                 f"{cut} tokens shared, {tail} tokens each after; the cut is on a chunk's edge",
                 sense="at most"),
        compared(FAMILY, "shared state", "the second request on a shared, uncopied state is wrong",
                 0.01, relative_error(shared[1], want[1]), "relative error", 0.0,
                 "the first request has moved the state on", sense="at least"),
    ]  # fmt: skip


def _joined(layer: LinearLayer, first: Inputs, second: Inputs) -> Inputs:
    gates: dict[str, Any] = {}
    for name, value in first.gates.items():
        rows = value.shape[:1] == (first.tokens,) and name in ("gate_input", "beta", "dt")
        gates[name] = torch.cat([value, second.gates[name]]) if rows else value
    return layer.of_row(torch.cat([first.row, second.row]), gates)


def _model_pools(context: Context, slots: int) -> list[Tensor]:
    """State and conv pools of every layer of the model."""
    pools = []
    for layer in model_caches(context.spec, Deployment("vllm")):
        for state in layer.states:
            dtype = getattr(torch, state.dtype)
            pools.append(torch.empty((slots, *state.shape), dtype=dtype, device=context.device))
    return pools


def _copy_time(context: Context) -> list[Check]:
    """One checkpoint of the whole model, every layer in one launch."""
    from hybridplan.kernels.state_copy.recurrent import StateCopier

    timer, rates = context.timed(), context.rates
    assert rates is not None
    size = checkpoint_bytes(model_caches(context.spec, Deployment("vllm")))
    if not size:
        return []
    pairs = timer.sets(2 * size)
    requests = (1,) if context.quick else (1, 8)
    pools = _model_pools(context, 2 * pairs * max(requests))
    for pool in pools:
        pool.copy_(torch.randn(pool.shape[1:], device=context.device))
    copier = StateCopier(pools)
    found = []
    for count in requests:
        moves = []
        for n in range(pairs):
            first = 2 * n * count
            moves.append(
                (
                    _ids(context, *range(first, first + count)),
                    _ids(context, *range(first + count, first + 2 * count)),
                )
            )
        done = timer.graph([partial(copier.copy, *move) for move in moves])
        if count == 1:
            context.constants["checkpoint.copy_s"] = _constant(done.seconds, done.spread)
        found.append(
            compared(FAMILY, f"copy of {count}", f"time to copy {count} checkpoints of {size:,} B",
                     1e6 * rates.copy_s(2 * count * size), 1e6 * done.seconds, "us", 0.25,
                     "launch + bytes read and written / copy bandwidth of this card",
                     spread=done.spread)
        )  # fmt: skip
    return found


def _constant(value: float, spread: float) -> Any:
    from hybridplan.ledger.calibration import Constant

    return Constant(value, "s", spread * value, "one launch over all layers, device to device")


def _export_time(context: Context, layer: LinearLayer) -> list[Check]:
    """Exporting a state inside a prefill, against stopping there; one export a block."""
    timer, rates = context.timed(), context.rates
    assert rates is not None
    tokens = context.pick(8192, 4096, 256)
    block = plan_of(context.spec, 64).block_tokens
    block -= block % 64
    stops = list(range(block, tokens, block)) or [tokens // 2]
    sets = timer.sets(layer.io_bytes(tokens), most=4)
    xs = [layer.inputs(tokens, context.device, 31 + n) for n in range(sets)]
    pool = layer.pool(len(stops) + 2, context.device)
    slot = _ids(context, 0)
    middle = stops[len(stops) // 2]

    def prefill(exports: tuple[tuple[int, int, int], ...]) -> Any:
        def call(x: Inputs) -> None:
            layer.prefill(x, pool, slot, exports=exports, segment_chunks=0)

        return timer.graph([partial(call, x) for x in xs])

    plain = prefill(())
    one = prefill(((0, middle, 1),))
    every = prefill(tuple((0, p, i + 1) for i, p in enumerate(stops)))
    halves = [(layer.cut(x, 0, middle), layer.cut(x, middle, tokens)) for x in xs]

    def stop(pair: tuple[Inputs, Inputs]) -> None:
        for part in pair:
            layer.prefill(part, pool, slot, segment_chunks=0)

    stopped = timer.graph([partial(stop, pair) for pair in halves])
    state = layer.state_elements * 4
    write_s = state / rates.copy_bytes_per_s
    how = f"prefill of {tokens:,} tokens + bytes of the states written / copy bandwidth"
    return [
        compared(FAMILY, "one export inside prefill", "prefill that also keeps one state",
                 1e6 * (plain.seconds + write_s), 1e6 * one.seconds, "us", 0.10, how,
                 spread=one.spread),
        compared(FAMILY, "a state every block", f"prefill that keeps {len(stops)} states, as "
                 "\"all\" would", 1e6 * (plain.seconds + len(stops) * write_s),
                 1e6 * every.seconds, "us", 0.15, how, spread=every.spread),
        noted(FAMILY, "stopping at the boundary", "two prefills that meet at the checkpoint, over "
              "one with an export", stopped.seconds / one.seconds, "ratio",
              "each pays its launches and the tail of its longest sequence"),
        noted(FAMILY, "all against align", "prefill with a state every block over one with the "
              "last one only", every.seconds / one.seconds, "ratio",
              f"{len(stops)} exports against 1, a block of {block} tokens"),
    ]  # fmt: skip
