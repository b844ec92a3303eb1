"""Scalar decay: prefill at the shapes fla was measured at, grouped Mamba-2, exports, decode."""

from __future__ import annotations

import itertools
import math
from functools import partial

import torch

from benchmarks.kernels.case import Case, Prepared, input_sets, relative_error
from hybridplan.kernels.scalar_decay.chunk import chunk_prefill
from hybridplan.kernels.scalar_decay.decay import lightning_log_decay, mamba_decay
from hybridplan.kernels.scalar_decay.gates import Gate, HeadDecay, MambaStep, TokenDecay
from hybridplan.kernels.scalar_decay.recurrent import recurrent_step
from hybridplan.kernels.scalar_decay.reference import chunk_reference, recurrent_reference

SHAPES = {
    "lightning-64h-128x128": (64, 64, 128, 128, "token"),
    "lightning-64h-128x128-constant": (64, 64, 128, 128, "head"),
    "mamba2-80h-128x64": (80, 80, 128, 64, "mamba"),
    "mamba2-80h-8g-128x64": (8, 80, 128, 64, "mamba"),
}


def make_gate(kind: str, rows: int, HV: int, gen: torch.Generator) -> tuple[Gate, int]:
    """A gate with realistic values, and its bytes per token and head."""
    device = gen.device
    if kind == "head":
        return HeadDecay(lightning_log_decay(HV, 1, 32).to(device)), 0
    if kind == "token":
        return TokenDecay(-0.1 * torch.rand((rows, HV), generator=gen, device=device)), 4
    low, high = math.log(1e-3), math.log(0.1)
    step = torch.exp(low + (high - low) * torch.rand(HV, generator=gen, device=device))
    bias = step + torch.log(-torch.expm1(-step))
    a_log = torch.log(1 + 15 * torch.rand(HV, generator=gen, device=device))
    return MambaStep(torch.randn((rows, HV), generator=gen, device=device), a_log, bias), 4


def reference_gate(gate: Gate, rows: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log decay and input weight, fp64 [rows, HV]."""
    if isinstance(gate, MambaStep):
        assert gate.dt_bias is not None
        return mamba_decay(
            gate.dt.double(), gate.a_log.double(), gate.dt_bias.double(), softplus=True
        )
    if isinstance(gate, HeadDecay):
        return gate.log_decay.double().expand(rows, -1), None
    return gate.log_decay.double(), None


def prefill(device: torch.device, name: str, lengths: list[int], exports: int = 0) -> Prepared:
    """Prefill of packed sequences, fp32 states in and out, ``exports`` states along the first."""
    G, HV, K, V, kind = SHAPES[name]
    T, N = sum(lengths), len(lengths)
    starts = [0, *itertools.accumulate(lengths)]
    gen = torch.Generator(device).manual_seed(T + N)
    wanted = [
        (0, lengths[0] // (exports + 1) // 64 * 64 * (i + 1), 2 * N + i) for i in range(exports)
    ]
    state_bytes = HV * V * K * 4
    least_bytes = T * (2 * G * K + 2 * HV * V) * 2 + (2 * N + exports) * state_bytes
    calls, first = [], None
    for _ in range(input_sets(least_bytes, 4)):
        q, k, v = (
            torch.randn(size, generator=gen, device=device, dtype=torch.bfloat16)
            for size in ((T, G, K), (T, G, K), (T, HV, V))
        )
        gate, gate_bytes = make_gate(kind, T, HV, gen)
        pool = 0.1 * torch.randn((2 * N + exports, HV, V, K), generator=gen, device=device)
        slots = torch.arange(N, dtype=torch.int32, device=device)
        skip = torch.ones(HV, device=device) if kind == "mamba" else None
        out = torch.empty_like(v)
        options = {"read_slots": slots + N, "scale": K**-0.5, "skip": skip, "exports": wanted}
        calls.append(partial(chunk_prefill, q, k, v, gate, pool, slots, starts, out=out, **options))
        first = first or (q, k, v, gate, pool, skip, out)
    assert first is not None
    q, k, v, gate, pool, skip, out = first

    def check() -> dict[str, tuple[float, float]]:
        out.fill_(math.nan)
        pool[:N] = math.nan
        pool[2 * N :] = math.nan
        calls[0]()
        decay, weight = reference_gate(gate, T)
        options = {"weight": weight, "skip": skip, "scale": K**-0.5}
        expected, states = chunk_reference(q, k, v, decay, pool[N : 2 * N], starts, **options)
        found = {
            "output": (relative_error(out, expected), 5e-3),
            "state": (relative_error(pool[:N], states), 4e-3),
        }
        for _, position, slot in wanted:
            rows = slice(0, position)
            options["weight"] = None if weight is None else weight[rows]
            _, states = chunk_reference(
                q[rows], k[rows], v[rows], decay[rows], pool[N : N + 1], [0, position], **options
            )
            found[f"export-{position}"] = (relative_error(pool[slot : slot + 1], states), 4e-3)
        return found

    return Prepared(tuple(calls), check, least_bytes + T * HV * gate_bytes)


def decode(device: torch.device, name: str, batch: int, drafts: int = 0) -> Prepared:
    """One token a request in place; with drafts, a window of drafts + 1 snapshots."""
    G, HV, K, V, kind = SHAPES[name]
    D = drafts + 1
    gen = torch.Generator(device).manual_seed(batch)
    state_bytes = batch * HV * V * K * 4
    least_bytes = state_bytes * (1 + D) + batch * D * (2 * G * K + 2 * HV * V) * 2
    sets = input_sets(state_bytes * D)
    pool = 0.1 * torch.randn((batch * D * sets, HV, V, K), generator=gen, device=device)
    ids = torch.randperm(batch * D * sets, generator=gen, device=device).int().view(sets, batch, D)
    skip = torch.ones(HV, device=device) if kind == "mamba" else None
    q, k, v = (
        torch.randn(size, generator=gen, device=device, dtype=torch.bfloat16)
        for size in ((batch * D, G, K), (batch * D, G, K), (batch * D, HV, V))
    )
    gate, _ = make_gate(kind, batch * D, HV, gen)
    out = torch.empty_like(v)
    slots = [(ids[i] if drafts else ids[i, :, 0]).contiguous() for i in range(sets)]
    options = {"skip": skip, "scale": K**-0.5, "out": out}
    calls = tuple(partial(recurrent_step, q, k, v, gate, pool, s, **options) for s in slots)

    def check() -> dict[str, tuple[float, float]]:
        out.fill_(math.nan)
        before = pool[ids[0, :, 0].long()].double()
        calls[0]()
        decay, weight = reference_gate(gate, batch * D)
        starts = list(range(0, batch * D + 1, D))
        expected, states, _ = recurrent_reference(
            q, k, v, decay, before, starts, weight=weight, skip=skip, scale=K**-0.5
        )
        return {
            "output": (relative_error(out, expected), 2.5e-3),
            "state": (relative_error(pool[ids[0, :, -1].long()], states), 1e-6),
        }

    return Prepared(calls, check, least_bytes)


def _prefill(name: str, lengths: list[int], exports: int = 0, **bound: object) -> Case:
    shape = f"{name} {len(lengths)}x{lengths[0]}" + (f" {exports} exports" if exports else "")
    make = partial(prefill, name=name, lengths=lengths, exports=exports)
    return Case("scalar_decay prefill", shape, make, **bound)  # type: ignore[arg-type]


CASES = [
    *(_prefill(name, [16384], figure="ratio", target=2.0) for name in SHAPES),
    *(_prefill(name, [4096]) for name in SHAPES),
    _prefill("mamba2-80h-8g-128x64", [1024]),
    _prefill("lightning-64h-128x128", [4096] * 8),
    _prefill("mamba2-80h-8g-128x64", [4096] * 8),
    _prefill("mamba2-80h-8g-128x64", [16384], exports=8),
    *(
        Case("scalar_decay decode", f"{name} batch {b}", partial(decode, name=name, batch=b))
        for name in ("lightning-64h-128x128", "mamba2-80h-8g-128x64")
        for b in (1, 8, 64, 256)
    ),
    Case(
        "scalar_decay decode",
        "mamba2-80h-8g-128x64 batch 64, 3 drafts",
        partial(decode, name="mamba2-80h-8g-128x64", batch=64, drafts=3),
    ),
]
