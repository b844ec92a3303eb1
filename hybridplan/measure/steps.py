"""Measured steps of the model's stack, which the time model is fitted to and judged on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hybridplan.errors import RefusalError
from hybridplan.measure.context import Context
from hybridplan.measure.pools import PlanPool, plan_of
from hybridplan.measure.stack import Stack, Step
from hybridplan.measure.timemodel import StepPoint


@dataclass(frozen=True, slots=True)
class Shape:
    """A step: ``requests`` of ``tokens`` each; ``share`` of the layers (1, 2 or 4 parts)."""

    kind: str
    requests: int
    tokens: int
    share: int = 1


DECODES = (
    Shape("decode", 1, 1024),
    Shape("decode", 1, 16_384),
    Shape("decode", 1, 65_536),
    Shape("decode", 8, 4096),
    Shape("decode", 32, 1024),
    Shape("decode", 32, 16_384),
    Shape("decode", 64, 4096),
    Shape("decode", 128, 1024),
    Shape("decode", 128, 8192),
    Shape("decode", 256, 1024),
    Shape("decode", 256, 4096),
    Shape("decode", 512, 1024),
    Shape("decode", 32, 4096, 2),
    Shape("decode", 128, 2048, 4),
)
PREFILLS = (
    Shape("prefill", 1, 512),
    Shape("prefill", 1, 1024),
    Shape("prefill", 1, 2048),
    Shape("prefill", 1, 4096),
    Shape("prefill", 1, 8192),
    Shape("prefill", 1, 16_384),
    Shape("prefill", 4, 512),
    Shape("prefill", 4, 2048),
    Shape("prefill", 8, 1024),
    Shape("prefill", 8, 2048),
    Shape("prefill", 16, 512),
    Shape("prefill", 2, 8192),
    Shape("prefill", 1, 2048, 2),
    Shape("prefill", 1, 8192, 4),
)
QUICK = (
    *(s for s in DECODES if s.requests * s.tokens <= 1 << 19 and s.tokens <= 16_384),
    *(s for s in PREFILLS if s.requests * s.tokens <= 4096),
)
ROWS = 16_384


def stack_of(context: Context) -> Stack:
    """The stack on this device: a quarter of the free memory for the pool, a half for weights."""
    shapes = context.shapes
    free = context.free_bytes()
    wanted = context.pick(3000, 3000, 64)
    least = plan_of(shapes, 1, _longest(context))
    fit = free // 4 // least.bytes_per_block
    plan = plan_of(shapes, min(wanted, fit), _longest(context))
    pool = PlanPool(plan, context.device)
    pool.fill()
    rows = context.pick(ROWS, 4096, 64)
    stack = Stack(shapes, pool, rows, free // 2)
    context.layers = stack.describe()
    return stack


def _longest(context: Context) -> int:
    return context.pick(65_536, 16_384, 128)


def measure(context: Context, stack: Stack) -> None:
    """Time every shape that fits and put it into ``context.points``."""
    timer = context.timed()
    for shape in context.pick((*DECODES, *PREFILLS), QUICK, ()):
        try:
            step = make(stack, shape)
        except RefusalError as error:
            context.notes.append(f"{shape.kind} {shape.requests} x {shape.tokens:,}: {error}")
            continue
        context.say(f"steps: {step.name}")
        timing = timer.graph([step.call])
        context.points.append(StepPoint(step.name, step.features, timing.seconds, timing.spread))
    torch.cuda.empty_cache()


def make(stack: Stack, shape: Shape) -> Step:
    """The step of that shape. Raises RefusalError where pool or buffers are too small."""
    layers = None if shape.share == 1 else max(1, len(stack.layers) // shape.share)
    if shape.kind == "decode":
        return stack.decode(shape.requests, shape.tokens, layers)
    return stack.prefill((shape.tokens,) * shape.requests, layers)
