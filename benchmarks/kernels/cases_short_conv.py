"""Short convolution + SiLU at Qwen3.5's and Mamba-2's channel counts."""

from __future__ import annotations

import itertools
import math
from functools import partial

import torch

from benchmarks.kernels.case import Case, Prepared, input_sets, relative_error
from hybridplan.kernels.short_conv.chunk import chunk_prefill
from hybridplan.kernels.short_conv.recurrent import recurrent_step
from hybridplan.kernels.short_conv.reference import conv_reference

W = 4


def _weight(C: int, gen: torch.Generator) -> torch.Tensor:
    return torch.randn((C, W), generator=gen, device=gen.device, dtype=torch.bfloat16)


def prefill(device: torch.device, channels: int, lengths: list[int]) -> Prepared:
    """Packed sequences, bf16, windows read and written in place."""
    gen = torch.Generator(device).manual_seed(channels)
    T, N = sum(lengths), len(lengths)
    starts = [0, *itertools.accumulate(lengths)]
    weight = _weight(channels, gen)
    slots = torch.arange(N, dtype=torch.int32, device=device)
    calls, first = [], None
    for _ in range(input_sets(4 * T * channels, 4)):
        x, pool = (
            torch.randn(size, generator=gen, device=device, dtype=torch.bfloat16)
            for size in ((T, channels), (N, W - 1, channels))
        )
        out = torch.empty_like(x)
        calls.append(partial(chunk_prefill, x, weight, None, pool, slots, starts, out=out))
        first = first or (x, pool, out)
    assert first is not None
    x, pool, out = first

    def check() -> dict[str, tuple[float, float]]:
        out.fill_(math.nan)
        before = pool.clone()
        calls[0]()
        expected, windows, _ = conv_reference(x, weight, None, before, starts)
        return {
            "output": (relative_error(out, expected), 3e-3),
            "window": (relative_error(pool, windows), 0.0),
        }

    return Prepared(tuple(calls), check, 4 * T * channels + 4 * N * (W - 1) * channels)


def decode(device: torch.device, channels: int, batch: int) -> Prepared:
    """One token a request, windows in place."""
    gen = torch.Generator(device).manual_seed(batch)
    weight = _weight(channels, gen)
    least_bytes = batch * channels * 2 * (2 + 2 * (W - 1))
    sets = input_sets(least_bytes, 32)
    pool, x = (
        torch.randn(size, generator=gen, device=device, dtype=torch.bfloat16)
        for size in ((batch * sets, W - 1, channels), (batch, channels))
    )
    ids = torch.randperm(batch * sets, generator=gen, device=device).int().view(sets, batch)
    out = torch.empty_like(x)
    slots = [ids[i].clone() for i in range(sets)]
    calls = tuple(partial(recurrent_step, x, weight, None, pool, s, out=out) for s in slots)

    def check() -> dict[str, tuple[float, float]]:
        out.fill_(math.nan)
        before = pool[ids[0].long()].clone()
        calls[0]()
        expected, windows, _ = conv_reference(x, weight, None, before, list(range(batch + 1)))
        return {
            "output": (relative_error(out, expected), 3e-3),
            "window": (relative_error(pool[ids[0].long()], windows), 0.0),
        }

    return Prepared(calls, check, least_bytes)


CASES = [
    Case("short_conv prefill", "C=8192 1x16384", partial(prefill, channels=8192, lengths=[16384])),
    Case("short_conv prefill", "C=6144 1x4096", partial(prefill, channels=6144, lengths=[4096])),
    Case(
        "short_conv prefill", "C=6144 8x4096", partial(prefill, channels=6144, lengths=[4096] * 8)
    ),
    *(
        Case("short_conv decode", f"C=8192 batch {b}", partial(decode, channels=8192, batch=b))
        for b in (1, 64, 256)
    ),
]
