"""Gated linear attention with a decay per channel, at Kimi-Linear's heads."""

from __future__ import annotations

import math
from functools import partial

import torch

from benchmarks.kernels.case import Case, Prepared, input_sets, relative_error
from hybridplan.kernels.gated_linear.chunk import chunk_prefill
from hybridplan.kernels.gated_linear.recurrent import recurrent_step
from hybridplan.kernels.gated_linear.reference import chunk_reference, recurrent_reference

H, K, V = 32, 128, 128


def _inputs(rows: int, gen: torch.Generator) -> tuple[torch.Tensor, ...]:
    q, k, v = (
        torch.randn((rows, H, K), generator=gen, device=gen.device, dtype=torch.bfloat16)
        for _ in range(3)
    )
    return q, k, v, -0.1 * torch.rand((rows, H, K), generator=gen, device=gen.device)


def prefill(device: torch.device, tokens: int) -> Prepared:
    """One sequence, fp32 state in and out, fp32 decays."""
    gen = torch.Generator(device).manual_seed(tokens)
    q, k, v, g = _inputs(tokens, gen)
    pool = 0.1 * torch.randn((2, H, V, K), generator=gen, device=device)
    slots, read = torch.tensor([[0], [1]], dtype=torch.int32, device=device)
    out = torch.empty_like(v)
    call = partial(chunk_prefill, q, k, v, g, pool, slots, read_slots=read, scale=K**-0.5, out=out)

    def check() -> dict[str, tuple[float, float]]:
        out.fill_(math.nan)
        pool[0] = math.nan
        call()
        expected, states = chunk_reference(q, k, v, g, pool[1:], [0, tokens], scale=K**-0.5)
        return {
            "output": (relative_error(out, expected), 5.2e-3),
            "state": (relative_error(pool[:1], states), 4.4e-3),
        }

    return Prepared((call,), check, tokens * H * (4 * K * 2 + 4 * K) + 2 * H * V * K * 4)


def decode(device: torch.device, batch: int) -> Prepared:
    """One token a request in place, fp32 state."""
    gen = torch.Generator(device).manual_seed(batch)
    state_bytes = batch * H * V * K * 4
    sets = input_sets(2 * state_bytes)
    pool = 0.1 * torch.randn((batch * sets, H, V, K), generator=gen, device=device)
    ids = torch.randperm(batch * sets, generator=gen, device=device).int().view(sets, batch)
    inputs = _inputs(batch, gen)
    out = torch.empty_like(inputs[2])
    slots = [ids[i].clone() for i in range(sets)]
    calls = tuple(partial(recurrent_step, *inputs, pool, s, scale=K**-0.5, out=out) for s in slots)

    def check() -> dict[str, tuple[float, float]]:
        out.fill_(math.nan)
        before = pool[ids[0].long()].double()
        calls[0]()
        starts = list(range(batch + 1))
        expected, states, _ = recurrent_reference(*inputs, before, starts, scale=K**-0.5)
        return {
            "output": (relative_error(out, expected), 2.5e-3),
            "state": (relative_error(pool[ids[0].long()], states), 1e-6),
        }

    return Prepared(calls, check, 2 * state_bytes + batch * H * (4 * K * 2 + 4 * K))


CASES = [
    *(
        Case("gated_linear prefill", f"32h-128x128 1x{t}", partial(prefill, tokens=t))
        for t in (4096, 16384)
    ),
    *(
        Case("gated_linear decode", f"32h-128x128 batch {b}", partial(decode, batch=b))
        for b in (1, 64, 256)
    ),
]
