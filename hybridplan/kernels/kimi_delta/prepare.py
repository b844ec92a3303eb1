"""The parallel part of chunked Kimi delta attention: one program per chunk and value head.

Entry (i, j) of K K^T is sum_d k_id k_jd 2^(G_id - G_jd) with G the running log2 decay: a product of
k 2^(G - ref) and k 2^(ref - G) for any reference. Each half of a chunk takes half its decay, which
serves while it decays by less than 2^232 (any gate bounded by -5); the product between the halves
takes the middle of the chunk, where no exponent is positive. A program whose chunk has a steeper
half does it again by :mod:`steep`. Two powers of two per channel and token are enough: all others
differ by a factor per channel and half, 2^(half its decay).

A half is a tile [BK / 2, 2, 16, 2]: pairs of channels, then runs of 16 tokens, then the pair.
Triton deals threads out to the last dimension and then from the first on, so that a thread is left
all tokens of a run, whose running sums go through registers.

Exponents reach 116 only in entries above the diagonal or next to their inverse; bf16 has the range.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import (
    Gate,
    fast_log2_decay,
    power_of_2,
    power_of_2_minus,
    reciprocal,
)
from hybridplan.kernels.common.launch import DOT_DTYPE, INTERPRETED
from hybridplan.kernels.common.triangular import keep_lower, update_matrix
from hybridplan.kernels.kimi_delta.steep import gate_factor, steep_chunk

_INTERPRETED = tl.constexpr(INTERPRETED)
MOST_LOG2 = tl.constexpr(116.0)
"""Largest exponent used, in powers of two."""


def can_be_steep(gate: Gate, lower_bound: float) -> bool:
    """Whether any chunk can be: 32 tokens at a bound of -5 decay by 2^230.8.

    Sums of 32 numbers of fp32, each off by its last digit, stay within 1e-5.
    """
    if gate is Gate.BOUNDED:
        return -lower_bound * 32 * math.log2(math.e) * (1 + 1e-4) > 2 * MOST_LOG2.value
    return gate is not Gate.NONE


@triton.jit
def _load(at, mask, MASKED: tl.constexpr, AGAIN: tl.constexpr = False):
    """As fp32. L1 holds what three programs load AGAIN, if it does not keep all they load."""
    POLICY: tl.constexpr = "evict_last" if AGAIN else "evict_first"
    if MASKED:
        x = tl.load(at, mask=mask, other=0.0, eviction_policy=POLICY)
    else:
        x = tl.load(at, eviction_policy=POLICY)
    return _float(x)


@triton.jit
def _float(x):
    """As fp32: of bf16 two at a time, where the compiler takes three instructions."""
    if x.dtype == tl.bfloat16 and not _INTERPRETED:
        y = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x],
            dtype=tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        y = x.to(tl.float32)
    return y


@triton.jit
def _inverse_norms(
    rows, t, m, stride: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, MASKED: tl.constexpr
):
    """Of 32 rows; four threads share a row, so that few sums go through others."""
    WIDTH: tl.constexpr = 32 if BK >= 32 else BK
    part = tl.arange(0, BK // WIDTH)[None, :, None] * WIDTH
    c = part + tl.arange(0, WIDTH)[None, None, :]
    mask = m[:, None, None] & (c < K)
    x = _load(rows + (t[:, None, None] * stride + c), mask, MASKED or BK != K, True)
    return tl.rsqrt(tl.sum(tl.sum(x * x, 2), 1) + 1e-6)


@triton.jit
def _add(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
def _rows(x, KB: tl.constexpr):
    """A half as [32, KB], an operand of a product."""
    return tl.reshape(tl.permute(x, (1, 2, 0, 3)), [32, KB]).to(DOT_DTYPE)


@triton.jit
def _rows_of_both(q, k, KB: tl.constexpr):
    """A half of q and of k, [64, KB], in turn by eight rows.

    Of a product's rows i and i + 8 a thread holds the same entries, so that the two part within it.
    """
    x = tl.reshape(tl.join(q.to(DOT_DTYPE), k.to(DOT_DTYPE)), [KB // 2, 4, 8, 2, 2])
    return tl.reshape(tl.permute(x, (1, 4, 2, 0, 3)), [64, KB])


@triton.jit
def _part(x):
    """Products with q and with k, each [32, 32], of those with the rows of both."""
    x = tl.permute(tl.reshape(x, [4, 2, 8, 32]), (0, 2, 3, 1))
    return tl.split(tl.reshape(x, [32, 32, 2]))


@triton.jit
def _per_channel(x):
    return x[:, None, None, :]


@triton.jit
def _per_token(x):
    return tl.reshape(x, [2, 16])[None, :, :, None]


@triton.jit
def _about_middle(g, early, half):
    """Running sums of the 32 tokens of a half, less half of its sum; ``early``: the first run's."""
    before = tl.where((tl.arange(0, 2) == 1)[None, :, None], early[:, None, :], 0.0)
    before = (before - 0.5 * half[:, None, :])[:, :, None, :]
    first = (tl.arange(0, 16) == 0)[None, None, :, None]
    return tl.cumsum(tl.where(first, g + before, g), 2)


@triton.jit
def _square(first, across, second):
    """[[first, 0], [across, second]] of blocks [32, 32]."""
    upper = tl.join(first, tl.zeros_like(first))
    lower = tl.join(across, second)
    return tl.reshape(tl.permute(tl.join(upper, lower), (3, 0, 2, 1)), [64, 64])


@triton.jit
def _as_product(x):
    """x [64, 64] where threads hold a product of that size."""
    nothing = tl.zeros([64, 16], DOT_DTYPE)
    return tl.dot(nothing, tl.trans(nothing), x)


@triton.jit
def _beta(at, m, BETA_LOGIT: tl.constexpr, MASKED: tl.constexpr):
    beta = _float(tl.load(at, mask=m, other=0.0) if MASKED else tl.load(at))
    if BETA_LOGIT:
        beta = reciprocal(1.0 + power_of_2(-1.4426950408889634 * beta))
        if MASKED:
            beta = tl.where(m, beta, 0.0)
    return beta


@triton.jit
def _chunk(
    q,
    k,
    x,
    b,
    factor,
    dt_bias,
    A,
    P,
    q_in,
    k_in,
    k_out,
    decay,
    left,
    scale,
    bound,
    HV: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
    L2NORM: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    K_STRIDE: tl.constexpr,
    KB: tl.constexpr,
    MASKED: tl.constexpr,
):
    """A chunk's work, every pointer at its first token; ``left`` tokens of it with MASKED."""
    oc = tl.arange(0, 64)
    beta = _beta(b + oc * HV, oc < left, BETA_LOGIT, MASKED)
    o = tl.arange(0, 32)
    m0 = o < left
    m1 = o + 32 < left
    rk0 = tl.full([32], 1.0, tl.float32)
    rk1 = rk0
    rq0 = tl.full([32], scale, tl.float32)
    rq1 = rq0
    if L2NORM:
        t = o.to(tl.int64)
        rk0 = _inverse_norms(k, t, m0, K_STRIDE, K, BK, MASKED)
        rk1 = _inverse_norms(k + 32 * K_STRIDE, t, m1, K_STRIDE, K, BK, MASKED)
        rq0 = _inverse_norms(q, t, m0, Q_STRIDE, K, BK, MASKED) * scale
        rq1 = _inverse_norms(q + 32 * Q_STRIDE, t, m1, Q_STRIDE, K, BK, MASKED) * scale
    runs = tl.arange(0, 2)
    run = (runs * 16).to(tl.int64)[None, :, None, None]
    at = tl.arange(0, 16)[None, None, :, None]
    token = at.to(tl.int64)
    pair = tl.arange(0, KB // 2)[:, None] * 2 + runs[None, :]
    first = tl.zeros([64, 32], tl.float32)
    second = tl.zeros([64, 32], tl.float32)
    across = tl.zeros([64, 32], tl.float32)
    steep = 0
    ALL: tl.constexpr = not MASKED and BK == K
    for ib in tl.static_range(BK // KB):
        oj = ib * KB + pair
        mj = oj < K
        oj4 = _per_channel(oj.to(tl.int64))
        mask0 = ((runs * 16)[None, :, None, None] + at < left) & _per_channel(mj)
        mask1 = ((runs * 16)[None, :, None, None] + at + 32 < left) & _per_channel(mj)
        # Offsets of threads, then of what each holds: constants that loads and stores take in.
        k_at = (k + (run * K_STRIDE + oj4)) + token * K_STRIDE
        q_at = (q + (run * Q_STRIDE + oj4)) + token * Q_STRIDE
        wide = run * BK + oj4
        if GATE == 0:
            g0 = tl.zeros([KB // 2, 2, 16, 2], tl.float32)
            g1 = g0
        else:
            x_at = (x + (run * (HV * K) + oj4)) + token * (HV * K)
            g0 = _load(x_at, mask0, not ALL)
            g1 = _load(x_at + 32 * HV * K, mask1, not ALL)
            bias = tl.zeros([KB // 2, 2], tl.float32)
            if GATE > 1:
                bias = tl.load(dt_bias + oj, mask=mj, other=0.0)
            bias = _per_channel(bias)
            g0 = fast_log2_decay(g0, factor, bias, bound, GATE)
            g1 = fast_log2_decay(g1, factor, bias, bound, GATE)
            if not ALL:
                g0 = tl.where(mask0, g0, 0.0)
                g1 = tl.where(mask1, g1, 0.0)
        total0 = tl.sum(g0, 2)
        total1 = tl.sum(g1, 2)
        early = (runs == 0)[None, :, None]
        early0, half0, early1, half1 = tl.reduce(
            (tl.where(early, total0, 0.0), total0, tl.where(early, total1, 0.0), total1), 1, _add
        )
        G0 = _about_middle(g0, early0, half0)
        G1 = _about_middle(g1, early1, half1)
        over = (tl.minimum(half0, half1) < -2 * MOST_LOG2).to(tl.int32)
        steep = tl.maximum(steep, tl.max(tl.max(over, 1)))
        tl.store(decay + oj, half0 + half1)

        kf = _load(k_at, mask0, not ALL) * _per_token(rk0)
        r = power_of_2(G0)
        kr = kf * r
        ks = kf * power_of_2_minus(G0)
        root = _per_channel(power_of_2(0.5 * half0))
        tl.store((k_in + wide) + token * BK, (kr * root).to(k_in.dtype.element_ty))
        far = ks * root
        rest = far * _per_channel(power_of_2(half1))
        tl.store((k_out + wide) + token * BK, rest.to(k_out.dtype.element_ty))
        right = tl.trans(_rows(ks, KB))
        far = tl.trans(_rows(far, KB))
        qr = _load(q_at, mask0, not ALL) * _per_token(rq0) * r
        tl.store((q_in + wide) + token * BK, (qr * root).to(q_in.dtype.element_ty))
        first = tl.dot(_rows_of_both(qr, kr, KB), right, first)

        kf = _load(k_at + 32 * K_STRIDE, mask1, not ALL) * _per_token(rk1)
        r = power_of_2(G1)
        kr = kf * r
        ks = kf * power_of_2_minus(G1)
        root = _per_channel(power_of_2(0.5 * half1))
        rest = ks * root
        tl.store((k_out + 32 * BK + wide) + token * BK, rest.to(k_out.dtype.element_ty))
        right = tl.trans(_rows(ks, KB))
        qr = _load(q_at + 32 * Q_STRIDE, mask1, not ALL) * _per_token(rq1) * r
        second = tl.dot(_rows_of_both(qr, kr, KB), right, second)
        into = _per_channel(power_of_2(half0))
        kr = kr * root
        tl.store((k_in + 32 * BK + wide) + token * BK, (kr * into).to(k_in.dtype.element_ty))
        qr = qr * root
        tl.store((q_in + 32 * BK + wide) + token * BK, (qr * into).to(q_in.dtype.element_ty))
        across = tl.dot(_rows_of_both(qr, kr, KB), far, across)
    QK0, KK0 = _part(first)
    QK1, KK1 = _part(second)
    QKX, KKX = _part(across)
    tile = oc[:, None] * 64 + oc[None, :]
    QK = _square(QK0, QKX, QK1).to(P.dtype.element_ty)
    tl.store(P + tile, keep_lower(QK))
    G = _as_product(_square(KK0, KKX, KK1))
    tokens = 64
    if MASKED:
        tokens = left
    tl.store(A + tile, update_matrix(G, beta, tokens).to(A.dtype.element_ty))
    return steep > 0


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
    chunks,
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
    Q_STRIDE: tl.constexpr,
    K_STRIDE: tl.constexpr,
    KB: tl.constexpr,
    STEEP_CHANNELS: tl.constexpr,
):
    """Tiles A, P [chunk, HV, C, C], q_in, k_in, k_out [chunk, HV, C, BK], log2 decay of chunks.

    KB channels are worked on at a time, STEEP_CHANNELS of a steep chunk; 0 if there can be none.
    """
    pid = tl.program_id(0)  # heads side by side: together they read whole rows
    ic = pid // HV
    hv = pid % HV
    t0 = tl.load(chunks + 2 * ic).to(tl.int64)
    left = (tl.load(chunks + 2 * ic + 1).to(tl.int64) - t0).to(tl.int32)
    tile = pid.to(tl.int64)
    h = hv // (HV // H)
    factor = gate_factor(a_log, hv, GATE)
    qc = q + (t0 * Q_STRIDE + h * K)
    kc = k + (t0 * K_STRIDE + h * K)
    xc = x
    if GATE > 0:
        xc += (t0 * HV + hv) * K
    bias = dt_bias
    if GATE > 1:
        bias += hv * K
    bc = b + (t0 * HV + hv)
    Ac = A + tile * (C * C)
    Pc = P + tile * (C * C)
    wide = tile * (C * BK)
    if left >= C:
        is_steep = _chunk(
            qc, kc, xc, bc, factor, bias, Ac, Pc, q_in + wide, k_in + wide, k_out + wide,
            decay + tile * BK, left, scale, lower_bound, HV, K, BK, GATE, BETA_LOGIT, L2NORM,
            Q_STRIDE, K_STRIDE, KB, False,
        )  # fmt: skip
    else:
        is_steep = _chunk(
            qc, kc, xc, bc, factor, bias, Ac, Pc, q_in + wide, k_in + wide, k_out + wide,
            decay + tile * BK, left, scale, lower_bound, HV, K, BK, GATE, BETA_LOGIT, L2NORM,
            Q_STRIDE, K_STRIDE, KB, True,
        )  # fmt: skip
    if STEEP_CHANNELS > 0:  # noqa: SIM102 (a constant of the compilation, apart from a value)
        if is_steep:
            steep_chunk(
                q, k, x, b, a_log, dt_bias, A, P, q_in, k_in, k_out, decay, chunks, scale,
                lower_bound, H, HV, K, BK, GATE, BETA_LOGIT, L2NORM, Q_STRIDE, K_STRIDE,
                STEEP_CHANNELS,
            )  # fmt: skip
