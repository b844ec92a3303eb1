"""The chunks of :mod:`prepare` that are not steep, with runs of tokens kept by one thread.

A tile is [KB / WIDE, RUNS, C / RUNS, WIDE]: channels, then tokens, then WIDE neighbouring channels.
Triton deals threads out to the last dimension and then from the first on, so that a thread is left
all tokens of a run: their running sum of gates goes through registers, and only the totals of the
few runs through other threads. Of the four powers of two per channel and token two are left; the
others differ by a factor per channel:

    2^G = 2^(G - middle) 2^middle        2^(whole - G) = 2^(middle - G) 2^(whole - middle)
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import log_decay, power_of_2, sigmoid
from hybridplan.kernels.common.launch import DOT_DTYPE
from hybridplan.kernels.common.triangular import keep_lower, update_matrix
from hybridplan.kernels.kimi_delta.prepare import LOG2_E, MOST_LOG2

LOG_LOG2_E = tl.constexpr(0.36651292058166435)
"""Natural logarithm of log2(e): added to a_log it turns the softplus gate to base 2."""


@triton.jit
def _by_token(x, C: tl.constexpr, KB: tl.constexpr):
    """A tile as [C, KB], an operand of a product."""
    return tl.reshape(tl.permute(x, (1, 2, 0, 3)), [C, KB]).to(DOT_DTYPE)


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def prepare_runs(
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
    RUNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """As :func:`prepare.prepare` without STEEP; the chunks it marks are to be done again there."""
    RUN: tl.constexpr = C // RUNS
    ic = tl.program_id(0)
    hv = tl.program_id(1)
    h = hv // (HV // H)
    t0 = tl.load(chunks + 2 * ic).to(tl.int64)
    end = tl.load(chunks + 2 * ic + 1).to(tl.int64)
    oc = tl.arange(0, C)
    ok = tl.arange(0, BK)
    row = (ic * HV + hv).to(tl.int64) * C
    m = t0 + oc < end
    rk = tl.full([C], 1.0, tl.float32)
    rq = tl.full([C], scale, tl.float32)
    if L2NORM:
        t = t0 + oc
        every = m[:, None] & (ok < K)[None, :]
        x2 = tl.load(k + t[:, None] * k_stride + h * K + ok[None, :], mask=every, other=0.0)
        x2 = x2.to(tl.float32)
        rk = tl.rsqrt(tl.sum(x2 * x2, 1) + 1e-6)
        x2 = tl.load(q + t[:, None] * q_stride + h * K + ok[None, :], mask=every, other=0.0)
        x2 = x2.to(tl.float32)
        rq = tl.rsqrt(tl.sum(x2 * x2, 1) + 1e-6) * scale
    rk4 = tl.reshape(rk, [RUNS, RUN])[None, :, :, None]
    rq4 = tl.reshape(rq, [RUNS, RUN])[None, :, :, None]
    runs = tl.arange(0, RUNS)
    at = (runs[:, None] * RUN + tl.arange(0, RUN)[None, :])[None, :, :, None]
    m4 = at < (end - t0).to(tl.int32)
    k_rows = k + t0 * k_stride + h * K
    q_rows = q + t0 * q_stride + h * K
    x_rows = x + (t0 * HV + hv) * K
    first = row * BK
    pair = tl.arange(0, KB // WIDE)[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    a_factor = 0.0
    bound = lower_bound
    if GATE == 2:
        a_factor = tl.load(a_log + hv) + LOG_LOG2_E
    elif GATE == 3:
        a_factor = tl.load(a_log + hv)
        bound = lower_bound * LOG2_E
    KK = tl.zeros([C, C], tl.float32)
    QK = tl.zeros([C, C], tl.float32)
    lowest = tl.zeros([KB // WIDE, WIDE], tl.float32)
    for ib in range(BK // KB):
        oj = ib * KB + pair
        mj = oj < K
        oj4 = oj[:, None, None, :]
        mask = m4 & mj[:, None, None, :]
        g = tl.load(x_rows + (at * (HV * K) + oj4), mask=mask, other=0.0).to(tl.float32)
        if GATE > 1:
            bias = tl.load(dt_bias + hv * K + oj, mask=mj, other=0.0)
            g = log_decay(g, a_factor, bias[:, None, None, :], bound, GATE, FAST=True)
            g = tl.where(mask, g, 0.0)
        else:
            g = g * LOG2_E
        g = tl.maximum(g, -200.0)  # 2^-200 is 0 in fp32; keeps -inf out of differences
        total = tl.sum(g, 2)
        early = tl.where((runs < RUNS // 2)[None, :, None], total, 0.0)
        middle, whole = tl.reduce((early, total), 1, _add_pairs)
        if RUNS == 2:
            before = tl.where((runs == 0)[None, :, None], -middle[:, None, :], 0.0)
        else:
            before = tl.cumsum(total, 1) - total - middle[:, None, :]
        gap = tl.cumsum(g, 2) + before[:, :, None, :]
        tl.store(decay + (ic * HV + hv) * BK + oj, whole)
        kf = tl.load(k_rows + (at * k_stride + oj4), mask=mask, other=0.0).to(tl.float32) * rk4
        qf = tl.load(q_rows + (at * q_stride + oj4), mask=mask, other=0.0).to(tl.float32) * rq4
        r = power_of_2(gap)
        kr = kf * r
        ks = kf * power_of_2(-gap)
        qr = qf * r
        into = power_of_2(middle)[:, None, None, :]
        rest = power_of_2(whole - middle)[:, None, None, :]
        wide = at * BK + oj4
        tl.store(k_in + first + wide, (kr * into).to(k_in.dtype.element_ty))
        tl.store(q_in + first + wide, (qr * into).to(q_in.dtype.element_ty))
        tl.store(k_out + first + wide, (ks * rest).to(k_out.dtype.element_ty))
        right = tl.trans(_by_token(ks, C, KB))
        KK = tl.dot(_by_token(kr, C, KB), right, KK)
        QK = tl.dot(_by_token(qr, C, KB), right, QK)
        lowest = tl.minimum(lowest, tl.minimum(middle, whole - middle))
    tl.store(steep_chunks + ic * HV + hv, (tl.min(tl.min(lowest, 1)) < -MOST_LOG2).to(tl.int32))
    beta = tl.load(b + (t0 + oc) * HV + hv, mask=m, other=0.0).to(tl.float32)
    if BETA_LOGIT:
        beta = tl.where(m, sigmoid(beta), 0.0)
    tile = (row + oc[:, None]) * C + oc[None, :]
    tl.store(P + tile, keep_lower(QK.to(P.dtype.element_ty)))
    tl.store(A + tile, update_matrix(KK, beta, C).to(A.dtype.element_ty))
