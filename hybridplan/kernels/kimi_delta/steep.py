"""A chunk that :mod:`prepare` found too steep, done again without a positive exponent.

Halves, quarters, eighths, ... of a chunk are joined about the token between them, where
2^(G_i - G_j) is a product of two powers at most one: six products for K K^T and for Q K^T each.
Few chunks, if any, come here. What counts is that this code costs the others nothing: a function
apart, whose registers are its own, and without products of 64 rows. Those would be wgmma, and a
call of a function with wgmma makes ptxas wait after each one of the caller (C7510).
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
from hybridplan.kernels.common.triangular import INVERSE_DTYPE, _small_inverse

STEEPEST_LOG2 = tl.constexpr(-200.0)
"""2^-200 is 0 in fp32; a token's decay ends here, which keeps -inf out of differences."""


@triton.jit
def _add(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
def _times(x, y):
    """x y^T of batches of rows."""
    return tl.dot(x, tl.permute(y, (0, 2, 1)))


@triton.jit
def _join_halves(KK, QK, kf, qf, gap, N: tl.constexpr, s: tl.constexpr, KB: tl.constexpr):
    """Add the entries between the halves, s tokens each, of N parts of a chunk: [N, s, s].

    gap: a token's running log2 decay less that of the token between the halves.
    """
    f = power_of_2_minus_size(gap)
    early, late = tl.split(
        tl.permute(tl.reshape((kf * f).to(DOT_DTYPE), [N, 2, s, KB]), (0, 2, 3, 1))
    )
    KK += _times(late, early)
    _, late = tl.split(tl.permute(tl.reshape((qf * f).to(DOT_DTYPE), [N, 2, s, KB]), (0, 2, 3, 1)))
    QK += _times(late, early)
    return KK, QK


@triton.jit
def _join_within(KK, QK, kf, qf, L, s: tl.constexpr, KB: tl.constexpr):
    """Add to [4, 16, 16] the entries between the halves, s tokens each, of every 2 s tokens.

    L [4, 16, KB]: running log2 decay of each 16 tokens.
    """
    x = tl.reshape(L, [4, 8 // s, 2 * s, KB])
    between = (tl.arange(0, 2 * s) == s - 1)[None, None, :, None]
    x = x - tl.sum(tl.where(between, x, 0.0), 2)[:, :, None, :]
    f = power_of_2_minus_size(tl.reshape(x, [4, 16, KB]))
    right = (kf * f).to(DOT_DTYPE)
    oe = tl.arange(0, 16)
    apart = (oe[:, None] ^ oe[None, :])[None, :, :]
    mask = (apart >= s) & (apart < 2 * s)
    KK += tl.where(mask, _times(right, right), 0.0)
    QK += tl.where(mask, _times((qf * f).to(DOT_DTYPE), right), 0.0)
    return KK, QK


@triton.jit
def _joined(first, G, second):
    """What joins two inverses times beta in the inverse of both: - second G first."""
    R = tl.dot(second, G.to(INVERSE_DTYPE)).to(INVERSE_DTYPE)
    return -tl.dot(R, first).to(INVERSE_DTYPE)


@triton.jit
def _store(A, T, QK, P, N: tl.constexpr, s: tl.constexpr):
    """Blocks [N, s, s] of A and P left of the diagonal, and zeros for A on the other side."""
    o = tl.arange(0, s)
    part = tl.arange(0, N)[:, None, None]
    to = part * (2 * s * 65) + (o[:, None] * 64 + o[None, :])[None, :, :]
    tl.store(A + s + to, tl.zeros_like(T).to(A.dtype.element_ty))
    tl.store(A + 64 * s + to, T.to(A.dtype.element_ty))
    tl.store(P + 64 * s + to, QK.to(P.dtype.element_ty))


@triton.jit
def gate_factor(a_log, hv, GATE: tl.constexpr):
    """What :func:`fast_log2_decay` takes of a head's a_log."""
    factor = 0.0
    if GATE == 2:
        factor = -tl.exp(tl.load(a_log + hv))
    elif GATE == 3:
        factor = tl.exp(tl.load(a_log + hv))
    return factor


@triton.jit(noinline=True)
def steep_chunk(
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
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
    L2NORM: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    K_STRIDE: tl.constexpr,
    KB: tl.constexpr,
):
    """What :func:`prepare.prepare` makes of this program's chunk and head."""
    pid = tl.program_id(0)
    ic = pid // HV
    hv = pid % HV
    t0 = tl.load(chunks + 2 * ic).to(tl.int64)
    left = (tl.load(chunks + 2 * ic + 1).to(tl.int64) - t0).to(tl.int32)
    tile = pid.to(tl.int64)
    h = hv // (HV // H)
    factor = gate_factor(a_log, hv, GATE)
    row = t0 * HV + hv
    q += t0 * Q_STRIDE + h * K
    k += t0 * K_STRIDE + h * K
    x += row * K
    if GATE > 1:
        dt_bias += hv * K
    A += tile * 4096
    P += tile * 4096
    q_in += tile * (64 * BK)
    k_in += tile * (64 * BK)
    k_out += tile * (64 * BK)
    decay += tile * BK
    b += row
    tl.debug_barrier()  # what other threads stored here comes first
    runs = tl.arange(0, 4)
    oe = tl.arange(0, 16)
    at = (runs[:, None] * 16 + oe[None, :])[:, :, None]
    channel = tl.arange(0, KB)
    run = runs[:, None]
    rk = tl.full([4, 16], 1.0, tl.float32)
    rq = tl.full([4, 16], scale, tl.float32)
    if L2NORM:
        kk = tl.zeros([4, 16], tl.float32)
        qq = tl.zeros([4, 16], tl.float32)
        for ib in tl.range(0, BK // KB, disable_licm=True):
            oj = (ib * KB + channel)[None, None, :]
            mask = (at < left) & (oj < K)
            y = tl.load(k + (at * K_STRIDE + oj), mask=mask, other=0.0).to(tl.float32)
            kk += tl.sum(y * y, 2)
            y = tl.load(q + (at * Q_STRIDE + oj), mask=mask, other=0.0).to(tl.float32)
            qq += tl.sum(y * y, 2)
        rk = tl.rsqrt(kk + 1e-6)
        rq = tl.rsqrt(qq + 1e-6) * scale
    KK2 = tl.zeros([1, 32, 32], tl.float32)
    QK2 = tl.zeros([1, 32, 32], tl.float32)
    KK1 = tl.zeros([2, 16, 16], tl.float32)
    QK1 = tl.zeros([2, 16, 16], tl.float32)
    KK0 = tl.zeros([4, 16, 16], tl.float32)
    QK0 = tl.zeros([4, 16, 16], tl.float32)
    for ib in tl.range(0, BK // KB, disable_licm=True):
        oj = ib * KB + channel
        mj = oj < K
        oj3 = oj[None, None, :]
        mask = (at < left) & (oj3 < K)
        g = tl.load(x + (at * (HV * K) + oj3), mask=mask, other=0.0).to(tl.float32)
        bias = tl.zeros([KB], tl.float32)
        if GATE > 1:
            bias = tl.load(dt_bias + oj, mask=mj, other=0.0)
        g = fast_log2_decay(g, factor, bias[None, None, :], lower_bound, GATE)
        g = tl.maximum(g, STEEPEST_LOG2, propagate_nan=tl.PropagateNan.ALL)
        g = tl.where(mask, g, 0.0)
        total = tl.sum(g, 1)
        first, middle, third, whole = tl.reduce(
            (
                tl.where(run == 0, total, 0.0),
                tl.where(run < 2, total, 0.0),
                tl.where(run < 3, total, 0.0),
                total,
            ),
            0,
            _add,
        )
        before = tl.where(run == 1, first[None, :], 0.0)
        before = tl.where(run == 2, middle[None, :], before)
        before = tl.where(run == 3, third[None, :], before)
        L = tl.cumsum(g, 1)
        G = L + before[:, None, :]
        tl.store(decay + oj, whole)
        kf = tl.load(k + (at * K_STRIDE + oj3), mask=mask, other=0.0).to(tl.float32)
        qf = tl.load(q + (at * Q_STRIDE + oj3), mask=mask, other=0.0).to(tl.float32)
        kf = kf * rk[:, :, None]
        qf = qf * rq[:, :, None]
        to = at * BK + oj3
        into = power_of_2(G)
        tl.store(k_in + to, (kf * into).to(k_in.dtype.element_ty))
        tl.store(q_in + to, (qf * into).to(q_in.dtype.element_ty))
        rest = kf * power_of_2(tl.minimum(whole[None, None, :] - G, 0.0))
        tl.store(k_out + to, rest.to(k_out.dtype.element_ty))
        KK2, QK2 = _join_halves(KK2, QK2, kf, qf, G - middle[None, None, :], 1, 32, KB)
        between = tl.where(run < 2, first[None, :], third[None, :])[:, None, :]
        KK1, QK1 = _join_halves(KK1, QK1, kf, qf, G - between, 2, 16, KB)
        KK0, QK0 = _join_within(KK0, QK0, kf, qf, L, 8, KB)
        KK0, QK0 = _join_within(KK0, QK0, kf, qf, L, 4, KB)
        KK0, QK0 = _join_within(KK0, QK0, kf, qf, L, 2, KB)
        KK0, QK0 = _join_within(KK0, QK0, kf, qf, L, 1, KB)
        same = tl.sum(qf * kf, 2)[:, :, None]
        QK0 += tl.where((oe[:, None] == oe[None, :])[None, :, :], same, 0.0)
    inside = (runs[:, None] * 16 + oe[None, :]) < left
    beta = tl.load(b + (runs[:, None] * 16 + oe[None, :]) * HV, mask=inside, other=0.0)
    beta = beta.to(tl.float32)
    if BETA_LOGIT:
        beta = tl.where(inside, sigmoid(beta), 0.0)
    T0 = _small_inverse(KK0 * beta[:, :, None], beta, inside)
    first, second = tl.split(tl.permute(tl.reshape(T0, [2, 2, 16, 16]), (0, 2, 3, 1)))
    T1 = _joined(first, KK1, second)
    upper = tl.join(first, tl.zeros_like(first))
    lower = tl.join(T1, second)
    T = tl.reshape(tl.permute(tl.join(upper, lower), (0, 4, 1, 3, 2)), [2, 32, 32])
    first, second = tl.split(tl.permute(tl.reshape(T, [1, 2, 32, 32]), (0, 2, 3, 1)))
    T2 = _joined(first, KK2, second)
    _store(A, T2, QK2, P, 1, 32)
    _store(A, T1, QK1, P, 2, 16)
    low = (oe[:, None] >= oe[None, :])[None, :, :]
    to = runs[:, None, None] * (16 * 65) + (oe[:, None] * 64 + oe[None, :])[None, :, :]
    tl.store(A + to, T0.to(A.dtype.element_ty))
    tl.store(P + to, tl.where(low, QK0, 0.0).to(P.dtype.element_ty))
