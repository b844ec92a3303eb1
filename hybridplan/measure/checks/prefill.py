"""Check 7: prefill speed by length and batch from the fitted model, and the size of a chunk."""

from __future__ import annotations

from functools import partial

import torch

from hybridplan.errors import HybridplanError
from hybridplan.measure import chunked, steps
from hybridplan.measure.context import Context, NoTimeError, kernel_missing
from hybridplan.measure.linear import LinearLayer, relative_error
from hybridplan.measure.result import Check, Point, Series, compared, noted, skipped
from hybridplan.measure.timemodel import Fit, StepPoint

FAMILY = "prefill"
CHUNKS = (16, 32, 64, 128)


def run(context: Context) -> list[Check]:
    """The stack's prefills, then the trade-off of chunk sizes."""
    return [*_stack(context), *_chunk_sizes(context)]


def _stack(context: Context) -> list[Check]:
    for layer in (context.linear,):
        if layer is not None:
            context.gates.linear(layer)
    if context.conv is not None:
        context.gates.conv(*context.conv)
    if context.attention is not None:
        context.gates.attention(context.attention)
        if not context.attention.latent:
            context.gates.attention_prefill(context.attention)
    try:
        stack = steps.stack_of(context)
    except HybridplanError as error:
        return [skipped(FAMILY, "stack", "layers as one step", error.sentence)]
    if not context.gpu:
        ran = [steps.make(stack, steps.Shape("prefill", 1, 40)),
               steps.make(stack, steps.Shape("decode", 2, 40))]  # fmt: skip
        for step in ran:
            step.call()
        return [
            noted(FAMILY, "stack", f"{context.layers}: prefill and decode ran", len(ran), "steps",
                  "every product, convolution and kernel of a step over the plan's pool"),
            skipped(FAMILY, "tokens a second", "prefill speed", "times need a GPU"),
        ]  # fmt: skip
    steps.measure(context, stack)
    del stack
    try:
        found = context.time_model()
    except HybridplanError as error:
        return [skipped(FAMILY, "tokens a second", "prefill speed", error.sentence)]
    return _speeds(context, found)


def _speeds(context: Context, found: Fit) -> list[Check]:
    rows = []
    points: list[tuple[StepPoint, Point]] = []
    judged = {p.name for p in found.judged}
    for point in context.points:
        if not point.name.startswith("prefill") or "layers" in point.name:
            continue
        tokens = _tokens(point.name)
        predicted = tokens / found.seconds(point.features)
        measured = tokens / point.seconds
        points.append((point, Point(tokens, measured, predicted)))
        if point.name in judged:
            rows.append(
                compared(FAMILY, point.name, "tokens a second, a shape that the model did not see",
                         predicted, measured, "tokens/s", 0.25,
                         "time model fitted on the other half of the steps", spread=point.spread)
            )  # fmt: skip
    single = [p for s, p in points if s.name.startswith("prefill 1 ")]
    batches = [p for s, p in points if not s.name.startswith("prefill 1 ")]
    for name, curve in (("one sequence", single), ("several sequences", batches)):
        if curve:
            ordered = tuple(sorted(curve, key=lambda p: p.x))
            context.series.append(Series(FAMILY, name, "tokens a step", "tokens/s", ordered))
    return rows


def _tokens(name: str) -> int:
    requests, tokens = name.removeprefix("prefill ").split(" x ")
    return int(requests) * int(tokens.replace(",", ""))


def _chunk_sizes(context: Context) -> list[Check]:
    layer = context.linear
    if layer is None or layer.kind != "gdn":
        why = kernel_missing(context.spec) if layer is None else "only the gated delta rule has it"
        return [skipped(FAMILY, "size of a chunk", "16, 32, 64 or 128 tokens", why)]
    tokens = context.pick(4096, 2048, 256)
    x = layer.inputs(tokens, context.device, 81, torch.float32)
    args = _by_head(layer, x)
    found = [_chunk_gate(layer, x, args)]
    if found[0].verdict != "within":
        return found
    flops = {C: chunked.flop(tokens, layer.HV, layer.K, layer.V, C) for C in CHUNKS}
    found += [
        noted(FAMILY, f"chunk of {C}, arithmetic", f"{chunked.serial_steps(tokens, C)} serial "
              f"steps for {tokens:,} tokens", flops[C] / tokens, "FLOP/token",
              "products inside a chunk grow with C and C squared, serial steps shrink with C")
        for C in CHUNKS
    ]  # fmt: skip
    try:
        timer = context.timed()
    except NoTimeError as error:
        return [*found, skipped(FAMILY, "size of a chunk", "times", str(error))]
    q, k, v, g, beta = args
    times = {
        C: timer.graph([partial(chunked.chunked, q, k, v, g, beta, C)]).seconds for C in CHUNKS
    }
    step_s, flop_s = _two_constants(tokens, flops, times)
    points = []
    for C in CHUNKS:
        predicted = chunked.serial_steps(tokens, C) * step_s + flops[C] * flop_s
        points.append(Point(C, 1e6 * times[C], 1e6 * predicted))
        if C in (32, 64):
            found.append(
                compared(FAMILY, f"chunk of {C}", f"plain torch, {tokens:,} tokens, one layer",
                         1e6 * predicted, 1e6 * times[C], "us", 0.5,
                         f"serial steps x {1e6 * step_s:.2f} us + FLOP / "
                         f"{1e-12 / flop_s if flop_s else float('nan'):.1f} TFLOP/s, both from "
                         "chunks of 16 and 128")
            )  # fmt: skip
    context.series.append(
        Series(FAMILY, "size of a chunk (plain torch)", "tokens a chunk", "us", tuple(points))
    )
    return found


def _two_constants(
    tokens: int, flops: dict[int, float], times: dict[int, float]
) -> tuple[float, float]:
    """Seconds a serial step and a FLOP that meet the times of the smallest and largest chunk."""
    a, b = CHUNKS[0], CHUNKS[-1]
    n, m = chunked.serial_steps(tokens, a), chunked.serial_steps(tokens, b)
    determinant = n * flops[b] - m * flops[a]
    step_s = (times[a] * flops[b] - times[b] * flops[a]) / determinant
    return step_s, (times[b] - m * step_s) / flops[b]


def _by_head(layer: LinearLayer, x: object) -> tuple[torch.Tensor, ...]:
    from hybridplan.kernels.common.delta_reference import unit_length
    from hybridplan.measure.linear import Inputs

    assert isinstance(x, Inputs)
    ratio = layer.HV // layer.H
    q, k = (unit_length(y).repeat_interleave(ratio, 1).transpose(0, 1) for y in (x.q, x.k))
    g = layer.log_decay(x).float().T
    beta = x.gates["beta"].sigmoid().T
    rows = (q * layer.K**-0.5, k, x.v.transpose(0, 1), g, beta)
    return tuple(y.contiguous() for y in rows)


def _chunk_gate(layer: LinearLayer, x: object, args: tuple[torch.Tensor, ...]) -> Check:
    """All four sizes against fp64 on the first 128 tokens."""
    from hybridplan.measure.linear import Inputs

    assert isinstance(x, Inputs)
    few = layer.cut(x, 0, 128)
    zero = torch.zeros((1, *layer.state_shape), device=x.row.device)
    want, state = layer.reference(few, (128,), zero)
    worst = 0.0
    for C in CHUNKS:
        q, k, v, g, beta = (y[:, :128] for y in args)
        out, final = chunked.chunked(q, k, v, g, beta, C)
        worst = max(
            worst,
            relative_error(out.transpose(0, 1), want),
            relative_error(final.mT, state[0]),
        )
    return compared(
        FAMILY, "chunks agree", "outputs and states with chunks of 16, 32, 64, 128 against fp64",
        1e-4, worst, "relative error", 0.0, "plain torch in fp32, 128 tokens", sense="at most",
    )  # fmt: skip
