"""The parallel part of chunked Kimi delta attention: one program per chunk and value head.

Entry (i, j) of K K^T is sum_d k_id k_jd 2^(G_id - G_jd) with G the running log2 decay: a product of
k 2^(G - ref) and k 2^(ref - G) for any reference. Where both halves of a chunk decay by less than
2^116, the token between them serves, with one product. The few chunks where they do not are
marked and done again, by groups of channels:

* where every 16 tokens decay by less (any gate bounded by -5): inside a half the token in its
  middle, between the halves the middle of the chunk, where no exponent is positive;
* otherwise halves, quarters, eighths, ... are joined about the token between them, again without
  a positive exponent: six products.

Exponents reach 116 only in entries above the diagonal or next to their inverse; bf16 has the range.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import log_decay, power_of_2, sigmoid
from hybridplan.kernels.common.launch import DOT_DTYPE
from hybridplan.kernels.common.triangular import keep_lower, update_matrix

LOG2_E = tl.constexpr(1.4426950408889634)
MOST_LOG2 = tl.constexpr(116.0)
"""Largest exponent used, in powers of two."""


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
def prepare(
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
    q_stride,
    k_stride,
    scale,
    lower_bound,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
    L2NORM: tl.constexpr,
    KB: tl.constexpr,
    STEEP: tl.constexpr,
):
    """Tiles A, P [chunk, HV, C, C], q_in, k_in, k_out [chunk, HV, C, BK], log2 decay of chunks.

    KB channels are worked on at a time. Without STEEP the middle of the chunk is the reference, and
    the chunks where that overflows are marked in steep_chunks; with STEEP those are done again.
    """
    ic = tl.program_id(0)
    hv = tl.program_id(1)
    if STEEP:  # noqa: SIM102 (a constant of the compilation, apart from a value)
        if tl.load(steep_chunks + ic * HV + hv) == 0:
            return
    h = hv // (HV // H)
    t0 = tl.load(chunks + 2 * ic).to(tl.int64)
    end = tl.load(chunks + 2 * ic + 1).to(tl.int64)
    oc = tl.arange(0, C)
    ok = tl.arange(0, BK)
    t = t0 + oc
    m = t < end
    row = (ic * HV + hv).to(tl.int64) * C
    at_k = k + t[:, None] * k_stride + h * K
    at_q = q + t[:, None] * q_stride + h * K
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
    lowest = tl.zeros([KB], tl.float32)
    for ib in range(BK // KB):
        oj = ib * KB + tl.arange(0, KB)
        mj = oj < K
        mask = m[:, None] & mj[None, :]
        if GATE == 0:
            g = tl.zeros([C, KB], tl.float32)
        else:
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
        middle = tl.sum(tl.where(oc[:, None] < 32, g, 0.0), 0)
        gap = G - middle[None, :]
        if not STEEP:
            r = power_of_2(gap)
            ks = kf * power_of_2(-gap)
            KK += _pair(kf * r, ks)
            QK += _pair(qf * r, ks)
            lowest = tl.minimum(lowest, tl.minimum(middle, whole - middle))
        else:
            one = tl.sum(tl.where(oc[:, None] < 16, g, 0.0), 0)
            three = tl.sum(tl.where(oc[:, None] < 48, g, 0.0), 0)
            most = tl.minimum(
                tl.minimum(one, middle - one), tl.minimum(three - middle, whole - three)
            )
            if tl.min(most) > -MOST_LOG2:
                near = G - tl.where(oc[:, None] < 32, one[None, :], three[None, :])
                r = power_of_2(near)
                ks = kf * power_of_2(-near)
                far = power_of_2(tl.minimum(gap, 0.0))
                kn = kf * power_of_2(tl.minimum(-gap, 0.0))
                across = (oc[:, None] >= 32) & (oc[None, :] < 32)
                KK += tl.where(across, _pair(kf * far, kn), _pair(kf * r, ks))
                QK += tl.where(across, _pair(qf * far, kn), _pair(qf * r, ks))
            else:
                KK, QK = _join_halves(KK, QK, kf, qf, G, 32, KB)
                KK, QK = _join_halves(KK, QK, kf, qf, G, 16, KB)
                KK, QK = _join_halves(KK, QK, kf, qf, G, 8, KB)
                KK, QK = _join_halves(KK, QK, kf, qf, G, 4, KB)
                KK, QK = _join_halves(KK, QK, kf, qf, G, 2, KB)
                KK, QK = _join_halves(KK, QK, kf, qf, G, 1, KB)
                QK += tl.where(oc[:, None] == oc[None, :], tl.sum(qf * kf, 1)[:, None], 0.0)
    if not STEEP:
        steep = tl.min(lowest) < -MOST_LOG2
        tl.store(steep_chunks + ic * HV + hv, steep.to(tl.int32))
    beta = tl.load(b + t * HV + hv, mask=m, other=0.0).to(tl.float32)
    if BETA_LOGIT:
        beta = tl.where(m, sigmoid(beta), 0.0)
    tile = (row + oc[:, None]) * C + oc[None, :]
    tl.store(P + tile, keep_lower(QK.to(P.dtype.element_ty)))
    tl.store(A + tile, update_matrix(KK, beta, C).to(A.dtype.element_ty))
