"""The chunks that :mod:`prepare` marked as too steep, done again without a positive exponent.

Halves, quarters, eighths, ... of a chunk are joined about the token between them: six products for
K K^T and for Q K^T each. Few chunks, if any, come here, so a few programs look through the marks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import log_decay, power_of_2, sigmoid
from hybridplan.kernels.common.launch import DOT_DTYPE
from hybridplan.kernels.common.triangular import INVERSE_DTYPE, unit_lower_inverse

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _pair(x, y):
    return tl.dot(x.to(DOT_DTYPE), tl.trans(y.to(DOT_DTYPE)))


@triton.jit
def _join_halves(KK, QK, kf, qf, G, s: tl.constexpr, KB: tl.constexpr):
    """Add the entries between the halves, s tokens each, of every 2 s tokens."""
    oc = tl.arange(0, 64)
    apart = oc[:, None] ^ oc[None, :]
    at = tl.arange(0, 2 * s)
    G3 = tl.reshape(G, [32 // s, 2 * s, KB])
    ref = tl.sum(tl.where((at == s - 1)[None, :, None], G3, 0.0), 1)
    gap = tl.where((at >= s)[None, :, None], G3 - ref[:, None, :], ref[:, None, :] - G3)
    f = power_of_2(tl.reshape(gap, [64, KB]))
    mask = (apart >= s) & (apart < 2 * s)
    KK += tl.where(mask, _pair(kf * f, kf * f), 0.0)
    QK += tl.where(mask, _pair(qf * f, kf * f), 0.0)
    return KK, QK


@triton.jit
def prepare_steep(
    q,
    k,
    x,
    b,
    a_log,
    dt_bias,
    A,
    P,
    q_in,
    k_in,
    k_out,
    decay,
    steep_chunks,
    chunks,
    scale,
    lower_bound,
    count,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
    L2NORM: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    K_STRIDE: tl.constexpr,
    KB: tl.constexpr,
    BATCHED: tl.constexpr,
):
    """As :func:`prepare.prepare`, of the marked ones among ``count`` pairs of chunk and head."""
    programs = tl.num_programs(0)
    MARKS: tl.constexpr = 64
    first = tl.program_id(0)
    while first < count:
        at = first + tl.arange(0, MARKS) * programs
        marks = tl.load(steep_chunks + at, mask=at < count, other=0)
        if tl.max(marks) > 0:
            for i in range(MARKS):
                tile = first + i * programs
                if tl.max(tl.where(at == tile, marks, 0)) > 0:
                    _chunk(
                        q, k, x, b, a_log, dt_bias, A, P, q_in, k_in, k_out, decay, chunks, scale,
                        lower_bound, tile // HV, tile % HV, H, HV, K, BK, C, GATE, BETA_LOGIT,
                        L2NORM, Q_STRIDE, K_STRIDE, KB, BATCHED,
                    )  # fmt: skip
        first += MARKS * programs


@triton.jit
def _chunk(
    q,
    k,
    x,
    b,
    a_log,
    dt_bias,
    A,
    P,
    q_in,
    k_in,
    k_out,
    decay,
    chunks,
    scale,
    lower_bound,
    ic,
    hv,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
    L2NORM: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    K_STRIDE: tl.constexpr,
    KB: tl.constexpr,
    BATCHED: tl.constexpr,
):
    h = hv // (HV // H)
    t0 = tl.load(chunks + 2 * ic).to(tl.int64)
    end = tl.load(chunks + 2 * ic + 1).to(tl.int64)
    oc = tl.arange(0, C)
    ok = tl.arange(0, BK)
    t = t0 + oc
    m = t < end
    row = (ic * HV + hv).to(tl.int64) * C
    at_k = k + t[:, None] * K_STRIDE + h * K
    at_q = q + t[:, None] * Q_STRIDE + h * K
    rk = tl.full([C], 1.0, tl.float32)
    rq = tl.full([C], scale, tl.float32)
    if L2NORM:
        every = m[:, None] & (ok < K)[None, :]
        x2 = tl.load(at_k + ok[None, :], mask=every, other=0.0).to(tl.float32)
        rk = tl.rsqrt(tl.sum(x2 * x2, 1) + 1e-6)
        x2 = tl.load(at_q + ok[None, :], mask=every, other=0.0).to(tl.float32)
        rq = tl.rsqrt(tl.sum(x2 * x2, 1) + 1e-6) * scale
    a_factor = 0.0
    if GATE > 1:
        a_factor = tl.load(a_log + hv)
    KK = tl.zeros([C, C], tl.float32)
    QK = tl.zeros([C, C], tl.float32)
    for ib in range(BK // KB):
        oj = ib * KB + tl.arange(0, KB)
        mj = oj < K
        mask = m[:, None] & mj[None, :]
        g = tl.load(x + (t[:, None] * HV + hv) * K + oj[None, :], mask=mask, other=0.0)
        g = g.to(tl.float32)
        if GATE > 1:
            bias = tl.load(dt_bias + hv * K + oj, mask=mj, other=0.0)
            g = log_decay(g, a_factor, bias[None, :], lower_bound, GATE, FAST=True)
            g = tl.where(mask, g, 0.0)
        g = tl.maximum(g * LOG2_E, -200.0)  # 2^-200 is 0 in fp32; keeps -inf out of differences
        G = tl.cumsum(g, 0)
        whole = tl.min(G, 0)  # the last of the falling sums, with their rounding
        tl.store(decay + (ic * HV + hv) * BK + oj, whole)
        kf = tl.load(at_k + oj[None, :], mask=mask, other=0.0).to(tl.float32) * rk[:, None]
        qf = tl.load(at_q + oj[None, :], mask=mask, other=0.0).to(tl.float32) * rq[:, None]
        wide = (row + oc[:, None]) * BK + oj[None, :]
        into = power_of_2(G)
        tl.store(k_in + wide, (kf * into).to(k_in.dtype.element_ty))
        tl.store(q_in + wide, (qf * into).to(q_in.dtype.element_ty))
        rest = kf * power_of_2(whole[None, :] - G)
        tl.store(k_out + wide, rest.to(k_out.dtype.element_ty))
        KK, QK = _join_halves(KK, QK, kf, qf, G, 32, KB)
        KK, QK = _join_halves(KK, QK, kf, qf, G, 16, KB)
        KK, QK = _join_halves(KK, QK, kf, qf, G, 8, KB)
        KK, QK = _join_halves(KK, QK, kf, qf, G, 4, KB)
        KK, QK = _join_halves(KK, QK, kf, qf, G, 2, KB)
        KK, QK = _join_halves(KK, QK, kf, qf, G, 1, KB)
        QK += tl.where(oc[:, None] == oc[None, :], tl.sum(qf * kf, 1)[:, None], 0.0)
    beta = tl.load(b + t * HV + hv, mask=m, other=0.0).to(tl.float32)
    if BETA_LOGIT:
        beta = tl.where(m, sigmoid(beta), 0.0)
    tile = (row + oc[:, None]) * C + oc[None, :]
    low = oc[:, None] >= oc[None, :]
    tl.store(P + tile, tl.where(low, QK, 0.0).to(P.dtype.element_ty))
    L = tl.where(oc[:, None] > oc[None, :], KK * beta[:, None], 0.0).to(INVERSE_DTYPE)
    T = unit_lower_inverse(L, BATCHED)
    tl.store(A + tile, (T * beta[None, :]).to(A.dtype.element_ty))
