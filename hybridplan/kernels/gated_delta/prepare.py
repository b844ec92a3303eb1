"""The parallel part of the chunked gated delta rule: one program per chunk and q/k head.

K K^T and Q K^T are formed once per q/k head from raw inputs and shared by its value heads: the
decay between two tokens and the length of q and k are factors of an entry.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import log_decay, power_of_2, sigmoid
from hybridplan.kernels.common.launch import DOT_DTYPE
from hybridplan.kernels.common.triangular import INVERSE_DTYPE, unit_lower_inverse

LOG2_E = tl.constexpr(1.4426950408889634)


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
    BATCHED: tl.constexpr,
    TMA: tl.constexpr,
):
    """Tiles A and P [chunk, HV, C, C]; numbers: k_in, q_in, k_out [chunk, HV, C], log2 decays."""
    ic = tl.program_id(0)
    h = tl.program_id(1)
    R: tl.constexpr = HV // H
    t0 = tl.load(chunks + 2 * ic).to(tl.int64)
    end = tl.load(chunks + 2 * ic + 1).to(tl.int64)
    oc = tl.arange(0, C)
    ok = tl.arange(0, BK)
    t = t0 + oc
    m = t < end
    eye = oc[:, None] == oc[None, :]
    if TMA:
        bk = k_tiles.load([t0.to(tl.int32), h * K]).to(DOT_DTYPE)
        bq = q_tiles.load([t0.to(tl.int32), h * K]).to(DOT_DTYPE)
    else:
        mask = m[:, None] & (ok < K)[None, :]
        bk = tl.load(k + t[:, None] * k_stride + h * K + ok[None, :], mask=mask, other=0.0)
        bq = tl.load(q + t[:, None] * q_stride + h * K + ok[None, :], mask=mask, other=0.0)
        bk = bk.to(DOT_DTYPE)
        bq = bq.to(DOT_DTYPE)
    both = m[:, None] & m[None, :]
    KK = tl.where(both, tl.dot(bk, tl.trans(bk)), 0.0)
    QK = tl.where(both, tl.dot(bq, tl.trans(bk)), 0.0)
    rk = tl.full([C], 1.0, tl.float32)
    rq = tl.full([C], scale, tl.float32)
    if L2NORM:
        QQ = tl.dot(bq, tl.trans(bq))
        rk = tl.rsqrt(tl.sum(tl.where(eye, KK, 0.0), 1) + 1e-6)
        rq = tl.rsqrt(tl.sum(tl.where(eye & both, QQ, 0.0), 1) + 1e-6) * scale
    KK = KK * rk[:, None] * rk[None, :]
    QK = QK * rq[:, None] * rk[None, :]
    low = oc[:, None] >= oc[None, :]
    for r in range(R):
        hv = h * R + r
        beta = tl.load(b + t * HV + hv, mask=m, other=0.0).to(tl.float32)
        if BETA_LOGIT:
            beta = tl.where(m, sigmoid(beta), 0.0)
        if GATE == 0:
            g = tl.zeros([C], tl.float32)
        else:
            g = tl.load(x + t * HV + hv, mask=m, other=0.0).to(tl.float32)
            if GATE > 1:
                g = log_decay(g, tl.load(a_log + hv), tl.load(dt_bias + hv), 0.0, GATE, FAST=True)
                g = tl.where(m, g, 0.0)
        g = tl.maximum(g * LOG2_E, -200.0)  # 2^-200 is 0 in fp32; keeps -inf out of differences
        gc = tl.cumsum(g, 0)
        last = tl.min(gc)  # the last of the falling sums, with their rounding
        pair = power_of_2(tl.where(low, gc[:, None] - gc[None, :], -1e9))
        row = (ic * HV + hv).to(tl.int64) * C
        tile = (row + oc[:, None]) * C + oc[None, :]
        tl.store(P + tile, (QK * pair).to(P.dtype.element_ty))
        into = power_of_2(gc)
        at = numbers + row + oc
        tl.store(at, into * rk)
        tl.store(at + row_count, into * rq)
        tl.store(at + 2 * row_count, power_of_2(last - gc) * rk)
        tl.store(numbers + 3 * row_count + ic * HV + hv, last)
        L = tl.where(oc[:, None] > oc[None, :], KK * pair * beta[:, None], 0.0).to(INVERSE_DTYPE)
        T = unit_lower_inverse(L, BATCHED)
        tl.store(A + tile, (T * beta[None, :]).to(A.dtype.element_ty))
