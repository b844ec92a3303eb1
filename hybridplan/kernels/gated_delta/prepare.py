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
    q_tiles,
    k_tiles,
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
    TMA: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Tiles A and P [chunk, HV, C, C]; numbers: k_in, q_in, k_out [chunk, HV, 3, C], log2 decays."""
    if OVERLAP:
        gdc_launch_dependents()
    ic = tl.program_id(0)
    h = tl.program_id(1)
    R: tl.constexpr = HV // H
    t0 = tl.load(chunks + 2 * ic)
    n = tl.load(chunks + 2 * ic + 1) - t0
    oc = tl.arange(0, C)
    m = oc < n
    if TMA:
        bk = k_tiles.load([t0, h * K]).to(DOT_DTYPE)
        bq = q_tiles.load([t0, h * K]).to(DOT_DTYPE)
    else:
        # A row behind the last token repeats that one: in memory, and whatever follows it.
        ok = tl.arange(0, BK)
        near = tl.minimum(oc, n - 1)[:, None]
        first = t0.to(tl.int64)
        bk = _rows(k + first * k_stride + h * K, near * k_stride, ok, K, BK)
        bq = _rows(q + first * q_stride + h * K, near * q_stride, ok, K, BK)
    beta, gc, last = _gates(b, x, a_log, dt_bias, t0, h * R, m, oc, HV, GATE, BETA_LOGIT)
    KK = tl.dot(bk, tl.trans(bk))
    QK = tl.dot(bq, tl.trans(bk))
    if L2NORM:
        oe = tl.arange(0, 16)
        eye = oe[None, :, None] == oe[None, None, :]
        kk = tl.sum(tl.where(eye, diagonal_blocks(KK), 0.0), 2)
        qq = tl.sum(tl.where(eye, diagonal_blocks(tl.dot(bq, tl.trans(bq))), 0.0), 2)
        rk = tl.rsqrt(tl.reshape(kk, [C]) + 1e-6)
        rq = tl.rsqrt(tl.reshape(qq, [C]) + 1e-6) * scale
    else:
        rk = tl.full([C], 1.0, tl.float32)
        rq = tl.full([C], scale, tl.float32)
    # What lies behind the last token is the next sequence's and may hold anything.
    rk = tl.where(m, rk, 1.0)
    rq = tl.where(m, rq, 1.0)
    log_rk = log_2(rk)
    q_over_k = rq / rk
    for r in tl.static_range(R):
        hv = h * R + r
        if r > 0:
            beta, gc, last = _gates(b, x, a_log, dt_bias, t0, hv, m, oc, HV, GATE, BETA_LOGIT)
        row = (ic * HV + hv).to(tl.int64) * C
        into = power_of_2(gc)
        at = numbers + 3 * row + oc
        store_in_place(at, into * rk)
        store_in_place(at + C, into * rq)
        store_in_place(at + 2 * C, power_of_2(last - gc) * rk)
        tl.store(numbers + 3 * row_count + ic * HV + hv, last)
        tile = row * C + oc[:, None] * C + oc[None, :]
        # The length of k as an exponent: above the diagonal this may overflow, and is masked out.
        pair = power_of_2((gc + log_rk)[:, None] - (gc - log_rk)[None, :])
        tl.store(P + tile, keep_lower((QK * pair * q_over_k[:, None]).to(P.dtype.element_ty)))
        tl.store(A + tile, update_matrix(KK * pair, beta, n).to(A.dtype.element_ty))
