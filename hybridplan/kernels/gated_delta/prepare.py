"""The parallel part of the chunked gated delta rule: one program per chunk and q/k head.

K K^T and Q K^T are formed once per q/k head from raw inputs and shared by its value heads: the
decay between two tokens and the length of q and k are factors of an entry.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from hybridplan.kernels.common.gates import log_2, log_decay, power_of_2, sigmoid
from hybridplan.kernels.common.launch import DOT_DTYPE
from hybridplan.kernels.common.stores import store_in_place
from hybridplan.kernels.common.triangular import diagonal_blocks, keep_lower, update_matrix

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(base, offsets, ok, K: tl.constexpr, BK: tl.constexpr):
    if K == BK:
        x = tl.load(base + offsets + ok[None, :])
    else:
        x = tl.load(base + offsets + ok[None, :], mask=(ok < K)[None, :], other=0.0)
    return x.to(DOT_DTYPE)


@triton.jit
def _gates(
    b,
    x,
    a_log,
    dt_bias,
    t0,
    hv,
    m,
    oc,
    HV: tl.constexpr,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
):
    """Beta, the running sums of log2 decays, and the last of these."""
    first = t0.to(tl.int64) * HV + hv
    beta = tl.load(b + first + oc * HV, mask=m, other=0.0).to(tl.float32)
    if BETA_LOGIT:
        beta = tl.where(m, sigmoid(beta), 0.0)
    if GATE == 0:
        g = m.to(tl.float32) * 0.0
    else:
        g = tl.load(x + first + oc * HV, mask=m, other=0.0).to(tl.float32)
        if GATE > 1:
            g = log_decay(g, tl.load(a_log + hv), tl.load(dt_bias + hv), 0.0, GATE, FAST=True)
            g = tl.where(m, g, 0.0)
    g = tl.maximum(g * LOG2_E, -64.0)  # 2^-64 is nothing; keeps -inf out of differences
    gc = tl.cumsum(g, 0)
    return beta, gc, tl.min(gc)  # the last of the falling sums, with their rounding


@triton.jit
def _length(product, C: tl.constexpr):
    """1 / length of each row of x, from x times its transpose."""
    oe = tl.arange(0, 16)
    eye = oe[None, :, None] == oe[None, None, :]
    squares = tl.sum(tl.where(eye, diagonal_blocks(product), 0.0), 2)
    return tl.rsqrt(tl.reshape(squares, [C]) + 1e-6)


@triton.jit
def _queries(bq, bk, scale, L2NORM: tl.constexpr, C: tl.constexpr):
    """Q K^T and scale / length of each query."""
    QK = tl.dot(bq, tl.trans(bk))
    rq = tl.full([C], scale, tl.float32)
    if L2NORM:
        rq = _length(tl.dot(bq, tl.trans(bq)), C) * scale
    return QK, rq


@triton.jit
def _store_numbers(at, total, gc, last, rk, rq, C: tl.constexpr):
    into = power_of_2(gc)
    store_in_place(at, into * rk)
    store_in_place(at + C, into * rq)
    store_in_place(at + 2 * C, power_of_2(last - gc) * rk)
    tl.store(total, last)


@triton.jit
def prepare(
    q,
    k,
    x,
    b,
    a_log,
    dt_bias,
    A,
    P,
    numbers,
    chunks,
    row_count,
    q_stride,
    k_stride,
    scale,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
    L2NORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Tiles A, P [chunk, HV, C, C]; numbers: k_in, q_in, k_out [chunk, HV, 3, C], log2 decays."""
    if OVERLAP:
        gdc_launch_dependents()
    ic = tl.program_id(0)
    h = tl.program_id(1)
    R: tl.constexpr = HV // H
    t0 = tl.load(chunks + 2 * ic)
    n = tl.load(chunks + 2 * ic + 1) - t0
    oc = tl.arange(0, C)
    ok = tl.arange(0, BK)
    m = oc < n
    # A row behind the last token repeats that one: what follows may not exist, or hold anything.
    near = tl.minimum(oc, n - 1)[:, None]
    first = t0.to(tl.int64)
    bk = _rows(k + first * k_stride + h * K, near * k_stride, ok, K, BK)
    bq = _rows(q + first * q_stride + h * K, near * q_stride, ok, K, BK)
    hv = h * R
    tile = (ic * HV + hv).to(tl.int64) * (C * C) + oc[:, None] * C + oc[None, :]
    at = numbers + (ic * HV + hv).to(tl.int64) * (3 * C) + oc
    total = numbers + 3 * row_count + ic * HV + hv
    gates = ()
    for r in tl.static_range(R):
        one = _gates(b, x, a_log, dt_bias, t0, hv + r, m, oc, HV, GATE, BETA_LOGIT)
        gates = gates + (one,)  # type: ignore[assignment]  # noqa: RUF005 (Triton adds tuples)
    KK = tl.dot(bk, tl.trans(bk))
    rk = tl.full([C], 1.0, tl.float32)
    if L2NORM:
        rk = _length(KK, C)
    log_rk = log_2(rk)
    # Lengths of keys go in as exponents: above the diagonal these may overflow, and fall to a mask.
    if R == 1:
        beta, gc, last = gates[0]  # type: ignore[misc]
        QK, rq = _queries(bq, bk, scale, L2NORM, C)
        _store_numbers(at, total, gc, last, rk, rq, C)
        pair = power_of_2((gc + log_rk)[:, None] - (gc - log_rk)[None, :])
        weights = QK * pair * (rq / rk)[:, None]
        tl.store(P + tile, keep_lower(weights.to(P.dtype.element_ty)))
        tl.store(A + tile, update_matrix(KK * pair, beta, n).to(A.dtype.element_ty))
    else:
        # All A before all P, so that K K^T and Q K^T are not held at once.
        for r in tl.static_range(R):
            beta, gc, last = gates[r]
            G = KK * power_of_2((gc + log_rk)[:, None] - (gc - log_rk)[None, :])
            tl.store(A + tile + r * C * C, update_matrix(G, beta, n).to(A.dtype.element_ty))
        QK, rq = _queries(bq, bk, scale, L2NORM, C)
        log_rq = log_2(rq)
        for r in tl.static_range(R):
            beta, gc, last = gates[r]
            # Written otherwise than above, lest the compiler keep what is formed there.
            weights = QK * power_of_2((gc + log_rq)[:, None] + (log_rk - gc)[None, :])
            tl.store(P + tile + r * C * C, keep_lower(weights.to(P.dtype.element_ty)))
            _store_numbers(at + 3 * r * C, total + r, gc, last, rk, rq, C)
