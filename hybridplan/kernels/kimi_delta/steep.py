"""The chunks that :mod:`prepare` marked as too steep, done again without a positive exponent.

Halves, quarters, eighths, ... of a chunk are joined about the token between them, where
2^(G_i - G_j) is a product of two powers at most one: six products for K K^T and for Q K^T each.
Few chunks, if any, come here, so a few programs look through the marks; what counts is how long a
single chunk takes, hence eight warps. Tiles are those of :mod:`prepare`, four runs of 16 tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import (
    fast_log2_decay,
    power_of_2,
    power_of_2_minus_size,
    sigmoid,
)
from hybridplan.kernels.common.launch import DOT_DTYPE
from hybridplan.kernels.common.triangular import update_matrix
from hybridplan.kernels.kimi_delta.prepare import _add

STEEPEST_LOG2 = tl.constexpr(-200.0)
"""2^-200 is 0 in fp32; a token's decay ends here, which keeps -inf out of differences."""


@triton.jit
def _rows(x, KB: tl.constexpr):
    return tl.reshape(tl.permute(x, (1, 2, 0, 3)), [64, KB]).to(DOT_DTYPE)


@triton.jit
def _join(KK, QK, kf, qf, gap, s: tl.constexpr, KB: tl.constexpr):
    """Add the entries between the halves, s tokens each, of every 2 s tokens.

    gap: a token's running log2 decay less that of the token between the halves.
    """
    f = power_of_2_minus_size(gap)
    right = tl.trans(_rows(kf * f, KB))
    oc = tl.arange(0, 64)
    apart = oc[:, None] ^ oc[None, :]
    mask = (apart >= s) & (apart < 2 * s)
    KK += tl.where(mask, tl.dot(_rows(kf * f, KB), right), 0.0)
    QK += tl.where(mask, tl.dot(_rows(qf * f, KB), right), 0.0)
    return KK, QK


@triton.jit
def _to_between(L, s: tl.constexpr, KB: tl.constexpr):
    """Running sums less those of the token between the halves of every 2 s <= 16 tokens."""
    x = tl.reshape(L, [KB // 2, 4, 8 // s, 2 * s, 2])
    between = (tl.arange(0, 2 * s) == s - 1)[None, None, None, :, None]
    x = x - tl.sum(tl.where(between, x, 0.0), 3)[:, :, :, None, :]
    return tl.reshape(x, [KB // 2, 4, 16, 2])


@triton.jit
def _inverse_norms(rows, t, m, stride: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    c = tl.arange(0, BK)
    mask = m[:, None] & (c < K)[None, :]
    x = tl.load(rows + t[:, None] * stride + c[None, :], mask=mask, other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(x * x, 1) + 1e-6)


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
):
    h = hv // (HV // H)
    t0 = tl.load(chunks + 2 * ic).to(tl.int64)
    left = (tl.load(chunks + 2 * ic + 1).to(tl.int64) - t0).to(tl.int32)
    oc = tl.arange(0, C)
    m = oc < left
    q += t0 * Q_STRIDE + h * K
    k += t0 * K_STRIDE + h * K
    x += (t0 * HV + hv) * K
    tile = (ic * HV + hv).to(tl.int64)
    rk = tl.full([C], 1.0, tl.float32)
    rq = tl.full([C], scale, tl.float32)
    if L2NORM:
        rk = _inverse_norms(k, oc, m, K_STRIDE, K, BK)
        rq = _inverse_norms(q, oc, m, Q_STRIDE, K, BK) * scale
    rk = tl.reshape(rk, [4, 16])[None, :, :, None]
    rq = tl.reshape(rq, [4, 16])[None, :, :, None]
    factor = 0.0
    if GATE == 2:
        factor = -tl.exp(tl.load(a_log + hv))
    elif GATE == 3:
        factor = tl.exp(tl.load(a_log + hv))
    runs = tl.arange(0, 4)
    at = (runs[:, None] * 16 + tl.arange(0, 16)[None, :])[None, :, :, None]
    pair = tl.arange(0, KB // 2)[:, None] * 2 + tl.arange(0, 2)[None, :]
    run = runs[None, :, None]
    KK = tl.zeros([C, C], tl.float32)
    QK = tl.zeros([C, C], tl.float32)
    for ib in range(BK // KB):
        oj = ib * KB + pair
        mj = oj < K
        oj4 = oj[:, None, None, :]
        mask = (at < left) & mj[:, None, None, :]
        g = tl.load(x + (at * (HV * K) + oj4), mask=mask, other=0.0).to(tl.float32)
        bias = tl.zeros([KB // 2, 2], tl.float32)
        if GATE > 1:
            bias = tl.load(dt_bias + hv * K + oj, mask=mj, other=0.0)
        g = fast_log2_decay(g, factor, bias[:, None, None, :], lower_bound, GATE)
        g = tl.where(mask, tl.maximum(g, STEEPEST_LOG2), 0.0)
        total = tl.sum(g, 2)
        first, middle, third, whole = tl.reduce(
            (
                tl.where(run == 0, total, 0.0),
                tl.where(run < 2, total, 0.0),
                tl.where(run < 3, total, 0.0),
                total,
            ),
            1,
            _add,
        )
        before = tl.where(run == 1, first[:, None, :], 0.0)
        before = tl.where(run == 2, middle[:, None, :], before)
        before = tl.where(run == 3, third[:, None, :], before)
        L = tl.cumsum(g, 2)
        G = L + before[:, :, None, :]
        tl.store(decay + tile * BK + oj, whole)
        kf = tl.load(k + (at * K_STRIDE + oj4), mask=mask, other=0.0).to(tl.float32) * rk
        qf = tl.load(q + (at * Q_STRIDE + oj4), mask=mask, other=0.0).to(tl.float32) * rq
        wide = tile * (C * BK) + (at * BK + oj4)
        into = power_of_2(G)
        tl.store(k_in + wide, (kf * into).to(k_in.dtype.element_ty))
        tl.store(q_in + wide, (qf * into).to(q_in.dtype.element_ty))
        rest = kf * power_of_2(tl.minimum(whole[:, None, None, :] - G, 0.0))
        tl.store(k_out + wide, rest.to(k_out.dtype.element_ty))
        between = tl.where(run < 2, first[:, None, :], third[:, None, :])[:, :, None, :]
        KK, QK = _join(KK, QK, kf, qf, G - middle[:, None, None, :], 32, KB)
        KK, QK = _join(KK, QK, kf, qf, G - between, 16, KB)
        KK, QK = _join(KK, QK, kf, qf, _to_between(L, 8, KB), 8, KB)
        KK, QK = _join(KK, QK, kf, qf, _to_between(L, 4, KB), 4, KB)
        KK, QK = _join(KK, QK, kf, qf, _to_between(L, 2, KB), 2, KB)
        KK, QK = _join(KK, QK, kf, qf, _to_between(L, 1, KB), 1, KB)
        same = tl.dot(_rows(qf, KB), tl.trans(_rows(kf, KB)))
        QK += tl.where(oc[:, None] == oc[None, :], same, 0.0)
    beta = tl.load(b + (t0 + oc) * HV + hv, mask=m, other=0.0).to(tl.float32)
    if BETA_LOGIT:
        beta = tl.where(m, sigmoid(beta), 0.0)
    to = tile * (C * C) + oc[:, None] * C + oc[None, :]
    low = oc[:, None] >= oc[None, :]
    tl.store(P + to, tl.where(low, QK, 0.0).to(P.dtype.element_ty))
    tl.store(A + to, update_matrix(KK, beta, left).to(A.dtype.element_ty))


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
    MARKS: tl.constexpr,
):
    """As :func:`prepare.prepare`, for the marked ones among ``count`` pairs of chunk and head."""
    programs = tl.num_programs(0)
    pairs = tl.program_id(0) + tl.arange(0, MARKS) * programs
    marks = tl.load(steep_chunks + pairs, mask=pairs < count, other=0)
    pair = tl.min(tl.where(marks != 0, pairs, count))
    if pair < count:  # keeps what the loop prepares behind it
        while pair < count:
            _chunk(
                q, k, x, b, a_log, dt_bias, A, P, q_in, k_in, k_out, decay, chunks, scale,
                lower_bound, pair // HV, pair % HV, H, HV, K, BK, C, GATE, BETA_LOGIT, L2NORM,
                Q_STRIDE, K_STRIDE, KB,
            )  # fmt: skip
            pair = tl.min(tl.where((marks != 0) & (pairs > pair), pairs, count))
