"""The parallel part of the chunked gated delta rule: one program per chunk and q/k head.

The gates factor out of the triangular system, (I + D L D^-1)^-1 = D (I + L)^-1 D^-1, and k's
length is a number a token, so K K^T and Q K^T are formed once per q/k head from raw inputs and
shared by its value heads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import log_decay, sigmoid
from hybridplan.kernels.common.launch import DOT_DTYPE
from hybridplan.kernels.common.triangular import unit_lower_inverse

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
    k_in,
    q_in,
    k_out,
    decay,
    chunks,
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
):
    """Tiles A and P [chunk, HV, C, C]; per token k_in, q_in, k_out; per chunk log2 decay."""
    ic = tl.program_id(0)
    h = tl.program_id(1)
    R: tl.constexpr = HV // H
    t0 = tl.load(chunks + 2 * ic).to(tl.int64)
    end = tl.load(chunks + 2 * ic + 1).to(tl.int64)
    oc = tl.arange(0, C)
    ok = tl.arange(0, BK)
    t = t0 + oc
    m = t < end
    mask = m[:, None] & (ok < K)[None, :]
    bk = tl.load(k + t[:, None] * k_stride + h * K + ok[None, :], mask=mask, other=0.0)
    bq = tl.load(q + t[:, None] * q_stride + h * K + ok[None, :], mask=mask, other=0.0)
    rk = tl.full([C], 1.0, tl.float32)
    rq = tl.full([C], 1.0, tl.float32)
    if L2NORM:
        fk = bk.to(tl.float32)
        fq = bq.to(tl.float32)
        rk = tl.rsqrt(tl.sum(fk * fk, 1) + 1e-6)
        rq = tl.rsqrt(tl.sum(fq * fq, 1) + 1e-6)
    rq = rq * scale
    bk = bk.to(DOT_DTYPE)
    KK = tl.dot(bk, tl.trans(bk)) * rk[:, None] * rk[None, :]
    QK = tl.dot(bq.to(DOT_DTYPE), tl.trans(bk)) * rq[:, None] * rk[None, :]
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
                g = log_decay(g, tl.load(a_log + hv), tl.load(dt_bias + hv), 0.0, GATE)
                g = tl.where(m, g, 0.0)
        g = tl.maximum(g * LOG2_E, -200.0)  # 2^-200 is 0 in fp32; keeps -inf out of differences
        gc = tl.cumsum(g, 0)
        last = tl.sum(g)
        pair = tl.exp2(tl.where(low, gc[:, None] - gc[None, :], -1e9))
        row = (ic * HV + hv).to(tl.int64) * C
        tile = (row + oc[:, None]) * C + oc[None, :]
        tl.store(P + tile, (QK * pair).to(P.dtype.element_ty))
        L = tl.where(oc[:, None] > oc[None, :], KK * beta[:, None], 0.0)
        T = unit_lower_inverse(L, BATCHED)
        tl.store(A + tile, (T * pair * beta[None, :]).to(A.dtype.element_ty))
        into = tl.exp2(gc)
        tl.store(k_in + row + oc, into * rk)
        tl.store(q_in + row + oc, into * rq)
        tl.store(k_out + row + oc, tl.exp2(last - gc) * rk)
        tl.store(decay + ic * HV + hv, last)
