"""Check 5: a linear layer's step does not see the context, an attention layer's is its bytes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from hybridplan.measure.attention import AttentionLayer
from hybridplan.measure.context import Context, NoTimeError, kernel_missing
from hybridplan.measure.linear import LinearLayer
from hybridplan.measure.result import Check, Point, Series, compared, skipped
from hybridplan.measure.timing import Timing

FAMILY = "decode"
PAGE_TOKENS = 576
STATE_BYTES = 32 << 20
KV_BYTES = 256_000_000
"""Below these a step is latency more than bytes, and bandwidth predicts nothing: a split-KV step
carries 13 to 22 us of launches, first loads and the joining of splits on an H200."""


def run(context: Context) -> list[Check]:
    """Both kinds of layer, whichever the model has."""
    found = []
    if context.linear is None:
        found.append(
            skipped(FAMILY, "linear layer", "step time by context", kernel_missing(context.spec))
        )
    else:
        context.gates.linear(context.linear)
        if context.conv is not None:
            context.gates.conv(*context.conv)
        found += _linear(context, context.linear)
    if context.attention is not None:
        context.gates.attention(context.attention)
        found += _attention(context, context.attention)
    return found


def linear_step(context: Context, layer: LinearLayer, batch: int) -> Timing:
    """Time of one decode step of a recurrent layer for ``batch`` requests, states rotated."""
    timer = context.timed()
    sets = timer.sets(batch * layer.state_elements * 4)
    pool = layer.pool(batch * sets, context.device)
    calls = []
    for n in range(sets):
        x = layer.inputs(batch, context.device, 100 + n)
        out = torch.empty(x.v.shape, device=context.device, dtype=x.v.dtype)
        slots = torch.arange(n * batch, (n + 1) * batch, dtype=torch.int32, device=context.device)
        layer.step(x, pool, slots, out=out)
        calls.append(lambda x=x, s=slots, o=out: layer.step(x, pool, s, out=o, trust_ids=True))
    return timer.graph(calls)


def _linear(context: Context, layer: LinearLayer) -> list[Check]:
    """Run a prefill that long, then time steps on the state it leaves."""
    lengths = context.pick((1024, 8192, 65_536, 1_048_576), (1024, 65_536), (64, 128))
    drift = _finite_after(context, layer, lengths[-1] if context.gpu else lengths[0])
    try:
        timer = context.timed()
    except NoTimeError as error:
        return [drift, skipped(FAMILY, "linear layer", "step time by context", str(error))]
    piece = min(65_536, lengths[-1])
    x = layer.inputs(piece, context.device, 41)
    pool = layer.pool(8, context.device)
    slots = torch.arange(8, dtype=torch.int32, device=context.device)
    step = layer.inputs(8, context.device, 42)
    done, points = 0, []
    pool.zero_()
    for length in lengths:
        while done < length:
            part = layer.cut(x, 0, min(piece, length - done))
            for slot in range(8):
                layer.prefill(part, pool, slots[slot : slot + 1].clone())
            done += part.tokens
        timing = timer.graph([lambda: layer.step(step, pool, slots, trust_ids=True)] * 20)
        points.append(Point(length, 1e6 * timing.seconds))
    context.series.append(
        Series(FAMILY, "linear layer, batch 8", "context tokens", "us a step", tuple(points))
    )
    times = [p.measured for p in points]
    first = statistics.median(times)
    worst = max(times, key=lambda t: abs(t - first))
    found = [
        drift,
        compared(FAMILY, "linear layer is flat", f"step after {lengths[0]:,} to {lengths[-1]:,} "
                 "tokens, farthest from the median", first, worst, "us", 0.05,
                 "the state has no tokens in it",
                 notes=(f"batch 8, {len(lengths)} contexts; the states stay in L2",)),
    ]  # fmt: skip
    return [*found, *_linear_batches(context, layer)]


def _finite_after(context: Context, layer: LinearLayer, tokens: int) -> Check:
    """The state stays finite however long the sequence."""
    pool = layer.pool(1, context.device)
    slot = torch.zeros(1, dtype=torch.int32, device=context.device)
    x = layer.inputs(min(tokens, 65_536), context.device, 43)
    for _ in range(max(1, tokens // x.tokens)):
        layer.prefill(x, pool, slot)
    wrong = int((~pool.isfinite()).sum())
    return compared(
        FAMILY, "state stays finite", f"elements that are not finite after {tokens:,} tokens", 0,
        wrong, "elements", 0.0, "decays are below one and the keys have unit length",
    )  # fmt: skip


def _linear_batches(context: Context, layer: LinearLayer) -> list[Check]:
    rates = context.rates
    assert rates is not None
    batches = context.pick((1, 8, 64, 256, 512), (64, 256), (1,))
    points, found = [], []
    for batch in batches:
        timing = linear_step(context, layer, batch)
        size = 2 * batch * layer.state_elements * 4 + layer.io_bytes(batch)
        predicted = rates.copy_s(size)
        points.append(Point(batch, 1e6 * timing.seconds, 1e6 * predicted))
        if size >= STATE_BYTES:
            found.append(
                compared(FAMILY, f"linear layer, batch {batch}", "decode step of one layer",
                         1e6 * predicted, 1e6 * timing.seconds, "us", 0.15,
                         f"{size:,} B of state read and written / copy bandwidth",
                         spread=timing.spread)
            )  # fmt: skip
    context.series.append(
        Series(FAMILY, "linear layer by batch", "requests", "us a step", tuple(points))
    )
    return found


@dataclass(frozen=True)
class Grid:
    """Batch and context of one attention measurement."""

    batch: int
    tokens: int


def attention_step(context: Context, layer: AttentionLayer, batch: int, tokens: int) -> Timing:
    """Time of one decode step of an attention layer, pages in random order."""
    timer = context.timed()
    pages = -(-tokens // PAGE_TOKENS)
    sets = timer.sets(batch * tokens * layer.kv_bytes_per_token)
    count = batch * pages * sets
    caches = layer.caches(count, PAGE_TOKENS, context.device, torch.bfloat16)
    order = torch.randperm(count, device=context.device, dtype=torch.int32)
    contexts = torch.full((batch,), tokens, dtype=torch.int32, device=context.device)
    calls = []
    for n in range(sets):
        table = order[n * batch * pages : (n + 1) * batch * pages].view(batch, pages).contiguous()
        q = layer.queries(batch, context.device)
        out = torch.empty((batch, layer.HQ, layer.V), device=context.device, dtype=q.dtype)
        calls.append(
            lambda q=q, t=table, o=out: layer.decode(q, caches, t, contexts, trust_ids=True, out=o)
        )
    return timer.graph(calls)


def _attention(context: Context, layer: AttentionLayer) -> list[Check]:
    try:
        context.timed()
    except NoTimeError as error:
        return [skipped(FAMILY, "attention layer", "step time by context", str(error))]
    rates = context.rates
    assert rates is not None
    grid = context.pick(
        (
            *(Grid(1, n) for n in (1024, 16_384, 65_536, 262_144, 524_288, 1_048_576)),
            *(Grid(64, n) for n in (1024, 4096, 8192, 16_384)),
            Grid(512, 1024),
            Grid(512, 4096),
        ),
        (Grid(1, 65_536), Grid(64, 4096), Grid(64, 16_384)),
        (),
    )
    most = context.free_bytes() // 2
    by_batch: dict[int, list[Point]] = {}
    found = []
    for at in grid:
        size = layer.decode_bytes(at.batch * at.tokens, at.batch)
        if 2 * size > most:
            context.notes.append(f"decode at {at.batch} x {at.tokens:,} does not fit this card")
            continue
        timing = attention_step(context, layer, at.batch, at.tokens)
        flop_s = layer.decode_flop(at.batch * at.tokens) / rates.dense_flop_per_s
        predicted = max(rates.read_s(size), flop_s) + rates.launch_s
        by_batch.setdefault(at.batch, []).append(
            Point(at.tokens, 1e6 * timing.seconds, 1e6 * predicted)
        )
        if size >= KV_BYTES:
            found.append(
                compared(FAMILY, f"attention, {at.batch} x {at.tokens:,}", "decode step of one "
                         "layer", 1e6 * predicted, 1e6 * timing.seconds, "us", 0.25,
                         f"{size:,} B of the plan's KV / read bandwidth, or its FLOP at the dense "
                         "rate where that is longer", spread=timing.spread)
            )  # fmt: skip
    for batch, points in by_batch.items():
        context.series.append(
            Series(FAMILY, f"attention, batch {batch}", "context tokens", "us a step",
                   tuple(points))
        )  # fmt: skip
        found += _line(layer, batch, points)
    return found


def _line(layer: AttentionLayer, batch: int, points: list[Point]) -> list[Check]:
    """A straight line through the two longest contexts, against the one before them."""
    long = [p for p in points if batch * p.x * layer.kv_bytes_per_token >= KV_BYTES]
    if len(long) < 3:
        return []
    first, middle, last = long[-3:]
    slope = (last.measured - first.measured) / (last.x - first.x)
    predicted = first.measured + slope * (middle.x - first.x)
    return [
        compared(FAMILY, f"attention is linear, batch {batch}", f"step at {int(middle.x):,} tokens "
                 "from a line through its neighbours", predicted, middle.measured, "us", 0.10,
                 f"line through {int(first.x):,} and {int(last.x):,} tokens")
    ]  # fmt: skip
