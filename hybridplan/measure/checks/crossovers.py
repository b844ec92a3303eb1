"""Check 6: the context at which the hybrid undercuts its all-attention twin, in bytes and time."""

from __future__ import annotations

import itertools

import torch

from hybridplan.config.spec import ModelSpec
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.crossover import attention_twin, crossover_tokens
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import canonical
from hybridplan.measure.attention import AttentionLayer
from hybridplan.measure.checks.bytes import allocated_bytes
from hybridplan.measure.checks.decode import attention_step, linear_step
from hybridplan.measure.context import Context, NoTimeError
from hybridplan.measure.linear import LinearLayer
from hybridplan.measure.result import Check, Point, Series, compared, skipped

FAMILY = "crossovers"


def run(context: Context) -> list[Check]:
    """Memory by allocation, then decode time of one layer."""
    twin = attention_twin(context.spec)
    predicted = crossover_tokens(context.spec, Deployment("vllm"))
    if twin is None or predicted is None:
        return [skipped(FAMILY, "crossovers", "hybrid against its all-attention twin",
                        f"{context.spec.name} has no twin that it meets")]  # fmt: skip
    found = [_memory(context, twin, predicted)]
    if context.linear is None or context.attention is None:
        return found
    try:
        context.timed()
    except NoTimeError as error:
        return [*found, skipped(FAMILY, "decode step", "where attention gets slower", str(error))]
    context.gates.linear(context.linear)
    context.gates.attention(context.attention)
    return [*found, *_time(context, context.linear, context.attention)]


def _held(context: Context, spec: ModelSpec, tokens: int) -> int:
    """Bytes of tensors really made for one request, as the device's allocator counts them."""
    before = allocated_bytes(context.device)
    tensors = []
    for layer in model_caches(spec, Deployment("vllm")):
        for cache in layer.tokens:
            entries = cache.held_tokens(tokens) // cache.tokens_per_entry
            shape: tuple[int, ...] = (entries, cache.bytes_per_entry)
            tensors.append(torch.empty(shape, dtype=torch.uint8, device=context.device))
        for state in layer.states:
            dtype = getattr(torch, canonical(state.dtype))
            tensors.append(torch.empty(state.shape, dtype=dtype, device=context.device))
    after = allocated_bytes(context.device)
    if before is None or after is None:
        return sum(x.nbytes for x in tensors)
    return after - before


def _memory(context: Context, twin: ModelSpec, predicted: int) -> Check:
    """The first context at which the tensors of the hybrid are no larger than the twin's."""
    low, high = 0, 4 * predicted + 4096
    while low < high:
        middle = (low + high) // 2
        if _held(context, context.spec, middle) <= _held(context, twin, middle):
            high = middle
        else:
            low = middle + 1
    return compared(
        FAMILY, "memory", "shortest context at which the hybrid's tensors are the smaller ones",
        predicted, low, "tokens", 0.0, "the ledger's crossover; measured on tensors of the "
        "shapes and dtypes that a request has",
    )  # fmt: skip


def _time(context: Context, linear: LinearLayer, attention: AttentionLayer) -> list[Check]:
    rates = context.rates
    assert rates is not None
    batch = context.pick(64, 64, 2)
    mine = linear_step(context, linear, batch)
    state_bytes = 2 * batch * linear.state_elements * 4 + linear.io_bytes(batch)
    target = rates.copy_s(state_bytes)
    per_token = batch * attention.kv_bytes_per_token / rates.read_bytes_per_s
    predicted = (target - rates.read_floor_s - rates.launch_s) / per_token
    near = max(predicted, 256.0)
    contexts = [int(near * share) for share in (0.5, 0.75, 1.0, 1.5)]
    points = []
    for tokens in contexts:
        timing = attention_step(context, attention, batch, tokens)
        points.append(Point(tokens, 1e6 * timing.seconds, 1e6 * mine.seconds))
    context.series.append(
        Series(FAMILY, f"attention layer (linear layer dashed), batch {batch}", "context tokens",
               "us a step", tuple(points))
    )  # fmt: skip
    measured = _meet(points)
    return [
        compared(FAMILY, "decode step", "context above which a layer of attention takes longer "
                 f"than a linear one, batch {batch}", predicted, measured, "tokens", 0.25,
                 "bytes of the state read and written at copy bandwidth against bytes of KV at "
                 "read bandwidth, floors included",
                 notes=("layers that are the same in both models cancel out",))
    ]  # fmt: skip


def _meet(points: list[Point]) -> float:
    """Where the measured line through the points first reaches the constant one."""
    for before, after in itertools.pairwise(points):
        low, high, target = before.measured, after.measured, before.predicted
        assert target is not None
        if low <= target <= high:
            share = (target - low) / (high - low) if high > low else 0.0
            return before.x + share * (after.x - before.x)
    first, last = points[0], points[-1]
    assert first.predicted is not None
    slope = (last.measured - first.measured) / (last.x - first.x)
    return first.x + (first.predicted - first.measured) / slope if slope > 0 else float("nan")
