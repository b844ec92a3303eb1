"""Device side of the scalar-decay prefill before the state: sums of gates, products of groups."""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import log_2, power_of_2
from hybridplan.kernels.scalar_decay.gates import LOG2E, GateKind, mamba_step
from hybridplan.kernels.scalar_decay.products import store_tile

_MAMBA = tl.constexpr(int(GateKind.MAMBA))


@triton.jit
def _sums(
    gate,
    a_log,
    dt_bias,
    first,
    end,
    h,
    HV: tl.constexpr,
    C: tl.constexpr,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    FOLD: tl.constexpr,
):
    """Summed log2 decay r of a chunk's tokens, and their weights: with FOLD as r - log2 w."""
    t = first + tl.arange(0, C)
    inside = (t < end)[:, None] & (h < HV)[None, :]
    x = tl.load(gate + t.to(tl.int64)[:, None] * HV + h[None, :], mask=inside, other=0.0)
    if KIND == _MAMBA:
        bias = h * 0.0
        if HAS_BIAS:
            bias = tl.load(dt_bias + h, mask=h < HV, other=0.0)
        step = mamba_step(x, bias[None, :], HAS_BIAS, SOFTPLUS)
        step = tl.where(inside, step, 0.0)
        decay = -tl.exp(tl.load(a_log + h, mask=h < HV, other=0.0))[None, :] * step
    else:
        decay = x.to(tl.float32)
    # 2^-64 is nothing; sums beyond thousands would round what is added to them
    decay = decay * LOG2E
    r = tl.cumsum(tl.where(decay < -64.0, -64.0, decay), 0)
    w = r
    if KIND == _MAMBA:
        w = r - log_2(tl.maximum(step, 1e-37)) if FOLD else step
    return r, w, inside


@triton.jit
def sum_gates(
    gate,
    a_log,
    dt_bias,
    reach,
    weight,
    chunks,
    tokens,
    HV: tl.constexpr,
    BH: tl.constexpr,
    C: tl.constexpr,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    FOLD: tl.constexpr,
):
    # one program per (chunk, BH heads): reach and weight are written token-contiguous, [HV, T];
    # with FOLD weight holds r_j - log2 w_j, so that a product needs one exponent and no weight
    blocks: tl.constexpr = (HV + BH - 1) // BH
    chunk = tl.program_id(0) // blocks
    h = (tl.program_id(0) % blocks) * BH + tl.arange(0, BH)
    first = tl.load(chunks + 4 * chunk)
    end = tl.load(chunks + 4 * chunk + 1)
    r, w, inside = _sums(gate, a_log, dt_bias, first, end, h, HV, C, KIND, HAS_BIAS, SOFTPLUS, FOLD)
    at = h.to(tl.int64)[None, :] * tokens + first + tl.arange(0, C)[:, None]
    tl.store(reach + at, r, mask=inside)
    if KIND == _MAMBA:
        tl.store(weight + at, w, mask=inside)


@triton.jit
def prepare_groups(
    gate,
    a_log,
    dt_bias,
    chunks,
    numbers,
    products,
    dq,
    dk,
    row,
    scale,
    HV: tl.constexpr,
    BH: tl.constexpr,
    C: tl.constexpr,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    G: tl.constexpr,
    K: tl.constexpr,
    DT: tl.constexpr,
):
    """K Q^T of each full chunk and group, and all that heads need of their gates.

    ``numbers`` gets four rows a head, [HV, 4, row]: r, scale 2^r, 2^(r_end - r) w and r - log2 w.
    """
    blocks: tl.constexpr = (HV + BH - 1) // BH
    chunk = tl.program_id(0) // (G + blocks)
    part = tl.program_id(0) % (G + blocks)
    first = tl.load(chunks + 4 * chunk)
    end = tl.load(chunks + 4 * chunk + 1)
    i = tl.arange(0, C)
    if part < G:
        if end - first == C:
            bq = dq.load([first, part * K]).to(DT)
            bk = dk.load([first, part * K]).to(DT)
            x = tl.dot(bk, tl.trans(bq), input_precision="tf32x3")
            base = products + first.to(tl.int64) * (G * C) + part * (C * C)
            store_tile(base, tl.where(i[None, :] >= i[:, None], x, 0.0))
    else:
        h = (part - G) * BH + tl.arange(0, BH)
        r, w, inside = _sums(
            gate, a_log, dt_bias, first, end, h, HV, C, KIND, HAS_BIAS, SOFTPLUS, True
        )
        total = tl.sum(tl.where(i[:, None] == C - 1, r, 0.0), 0)
        at = numbers + h.to(tl.int64)[None, :] * 4 * row + first + i[:, None]
        tl.store(at, r, mask=inside)
        tl.store(at + row, power_of_2(r + tl.log2(scale)), mask=inside)
        tl.store(at + 2 * row, power_of_2(total[None, :] - w), mask=inside)
        tl.store(at + 3 * row, w, mask=inside)
