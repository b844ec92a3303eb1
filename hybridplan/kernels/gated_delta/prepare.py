"""The parallel part of the chunked gated delta rule: a program per chunk and group of value heads.

A group is up to four value heads of one q/k head. K K^T and Q K^T are formed once a group from raw
inputs: the decay between two tokens and the length of q and k are factors of an entry.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from hybridplan.kernels.common.gates import log_2, log_decay, power_of_2, sigmoid
from hybridplan.kernels.common.hints import recomputed
from hybridplan.kernels.common.launch import DOT_DTYPE, INTERPRETED
from hybridplan.kernels.common.stores import store_in_place
from hybridplan.kernels.common.triangular import diagonal_blocks, keep_lower, update_matrix

LOG2_E = tl.constexpr(1.4426950408889634)

AHEAD = tl.constexpr(8)
"""Chunks between what programs with several heads work on and what they bring to L2: far more
programs than run between two reads of one, and far fewer than L2 holds inputs of."""

_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def _rows(base, offsets, ok, K: tl.constexpr, BK: tl.constexpr):
    # Read once by a program, and by none beside it: past L1, which tables and gates need.
    if K == BK:
        x = tl.load(base + offsets + ok[None, :], cache_modifier=".cg")
    else:
        x = tl.load(
            base + offsets + ok[None, :], mask=(ok < K)[None, :], other=0.0, cache_modifier=".cg"
        )
    return x.to(DOT_DTYPE)


@triton.jit
def _fetch(address, wanted):
    """Bring the lines of ``address``, where ``wanted``, to L2."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred wanted;
        setp.ne.s32 wanted, $2, 0;
        @wanted prefetch.global.L2 [$1];
        mov.b32 $0, 0;
        }""",
        "=r,l,r",
        [address, wanted],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _fetch_chunk(
    q,
    k,
    x,
    b,
    t0,
    n,
    group,
    h,
    q_stride,
    k_stride,
    HV: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    GATE: tl.constexpr,
):
    """Bring q and k of head h and the group's share of the gates' lines to L2, for n tokens."""
    if not _INTERPRETED:
        first = t0.to(tl.int64)
        j = tl.arange(0, 128)
        row = (j % 64).to(tl.int64)
        BYTES: tl.constexpr = q.dtype.element_ty.primitive_bitwidth // 8
        at_k = (k + first * k_stride + h * K).to(tl.int64) + row * (k_stride * BYTES)
        at_q = (q + first * q_stride + h * K).to(tl.int64) + row * (q_stride * BYTES)
        at = tl.where(j < 64, at_k, at_q)
        for line in tl.static_range((K * BYTES + 127) // 128):
            _fetch(at + line * 128, tl.where(j % 64 < n, 1, 0))
        if GATE > 0:
            OF_X: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
            OF_B: tl.constexpr = b.dtype.element_ty.primitive_bitwidth // 8
            SIZE: tl.constexpr = OF_X if OF_X < OF_B else OF_B  # so that both have these lines
            line = (group * R + j % 64) * 128
            at = tl.where(
                j < 64, (x + first * HV).to(tl.int64) + line, (b + first * HV).to(tl.int64) + line
            )
            _fetch(at, tl.where((j % 64 < R) & (line < n * (HV * SIZE)), 1, 0))


@triton.jit
def _gate(
    beta,
    g,
    a_log,
    dt_bias,
    m,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
):
    """Betas and log2 decays of tokens from what was loaded, 0 where not ``m``."""
    beta = beta.to(tl.float32)
    if BETA_LOGIT:
        beta = tl.where(m, sigmoid(beta), 0.0)
    g = m.to(tl.float32) * 0.0 if GATE == 0 else g.to(tl.float32)
    if GATE > 1:
        g = tl.where(m, log_decay(g, a_log, dt_bias, 0.0, GATE, FAST=True), 0.0)
    # 2^-64 is nothing, and keeps -inf out of differences; NaN stays
    return beta, tl.maximum(g * LOG2_E, -64.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _load(b, x, at, m, GATE: tl.constexpr):
    beta = tl.load(b + at, mask=m, other=0.0)
    g = beta
    if GATE > 0:
        g = tl.load(x + at, mask=m, other=0.0)
    return beta, g


@triton.jit
def _settled(x):
    """fp32 x; the compiler does not look behind it.

    Through a join it would, for the width of products' operands, and make them narrow.
    """
    if _INTERPRETED:
        y = x
    else:
        y = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=False, pack=1
        )
    return y


@triton.jit
def _heads(even, odd):
    """The four rows [64] of numbers that are given for even and for odd tokens, [32, 4] each."""
    z = tl.permute(_settled(tl.join(even, odd)), (0, 2, 1))
    low, high = tl.split(tl.reshape(z, [64, 2, 2]))
    y0, y2 = tl.split(low)
    y1, y3 = tl.split(high)
    return y0, y1, y2, y3


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
def _store_numbers(at, even, odd, last, rk, rq, C: tl.constexpr):
    """k_in, q_in and k_out of four heads; sums of even and odd tokens and their last [32, 4]."""
    z = tl.permute(tl.reshape(tl.join(rk, rq), [32, 1, 2, 2]), (0, 1, 3, 2))
    r_even, r_odd = tl.split(z)
    k_even, q_even = tl.split(r_even)
    k_odd, q_odd = tl.split(r_odd)
    at = at[:, :, None] + tl.arange(0, 2)[None, None, :]
    e, o = power_of_2(even), power_of_2(odd)
    tl.store(at, tl.join(e * k_even, o * k_odd))
    tl.store(at + C, tl.join(e * q_even, o * q_odd))
    e, o = power_of_2(last - even), power_of_2(last - odd)
    tl.store(at + 2 * C, tl.join(e * k_even, o * k_odd))


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
    R: tl.constexpr,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
    L2NORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Tiles A, P [chunk, HV, C, C]; numbers: k_in, q_in, k_out [chunk, HV, 3, C], log2 decays.

    R: value heads of a program, at most four; they divide HV / H.
    """
    if OVERLAP:
        gdc_launch_dependents()
    GROUPS: tl.constexpr = HV // R
    if R == 1:
        ic = tl.program_id(0)
        group = tl.program_id(1)
    else:
        ic = tl.program_id(0) // GROUPS
        group = tl.program_id(0) % GROUPS
    h = group // (GROUPS // H)
    t0 = tl.load(chunks + 2 * ic)
    n = tl.load(chunks + 2 * ic + 1) - t0
    if R > 1:
        following = tl.minimum(ic + AHEAD, row_count // (HV * C) - 1)
        t1 = tl.load(chunks + 2 * following)
        n1 = tl.load(chunks + 2 * following + 1) - t1
    oc = tl.arange(0, C)
    ok = tl.arange(0, BK)
    # A row behind the last token repeats that one: what follows may not exist, or hold anything.
    near = tl.minimum(oc, n - 1)[:, None]
    first = t0.to(tl.int64)
    bk = _rows(k + first * k_stride + h * K, near * k_stride, ok, K, BK)
    bq = _rows(q + first * q_stride + h * K, near * q_stride, ok, K, BK)
    hv = group * R
    tile = (ic * HV + hv).to(tl.int64) * (C * C) + oc[:, None] * C + oc[None, :]
    at = numbers + (ic * HV + hv).to(tl.int64) * (3 * C)
    total = numbers + 3 * row_count + ic * HV + hv
    a, d = 0.0, 0.0
    if R == 1:
        m = oc < n
        beta, g = _load(b, x, first * HV + hv + oc * HV, m, GATE)
        if GATE > 1:
            a, d = tl.load(a_log + hv), tl.load(dt_bias + hv)
        beta, g = _gate(beta, g, a, d, m, GATE, BETA_LOGIT)
        gc = tl.cumsum(g, 0)
        last = tl.min(gc)  # the last of the falling sums, with their rounding
        tl.store(total, last)
    else:
        # A warp sums a head's tokens, by twos; one too many repeats the last head. Heads as numbers
        # that the compiler does not know: it would order threads by them, not by tokens.
        row = recomputed(tl.minimum(tl.arange(0, 4), R - 1)[None, :] + tl.zeros([32, 4], tl.int32))
        pair = 2 * tl.arange(0, 32)[:, None] + tl.zeros([32, 4], tl.int32)
        m_even = pair < n
        m_odd = pair + 1 < n
        if GATE > 1:
            a, d = tl.load(a_log + hv + row), tl.load(dt_bias + hv + row)
        offsets = first * HV + hv + pair * HV + row
        b_even, g_even = _load(b, x, offsets, m_even, GATE)
        b_odd, g_odd = _load(b, x, offsets + HV, m_odd, GATE)
        # The last chunks were fetched already.
        n1 = tl.where(following == ic + AHEAD, n1, 0)
        _fetch_chunk(q, k, x, b, t1, n1, group, h, q_stride, k_stride, HV, K, R, GATE)
        b_even, g_even = _gate(b_even, g_even, a, d, m_even, GATE, BETA_LOGIT)
        b_odd, g_odd = _gate(b_odd, g_odd, a, d, m_odd, GATE, BETA_LOGIT)
        odd = tl.cumsum(g_even + g_odd, 0)
        even = odd - g_odd
        last = tl.min(odd, 0)[None, :] + tl.zeros([32, 4], tl.float32)
        store_in_place(total + row, last)
        betas = _heads(b_even, b_odd)
        sums = _heads(even, odd)
    KK = tl.dot(bk, tl.trans(bk))
    rk = tl.full([C], 1.0, tl.float32)
    if L2NORM:
        rk = _length(KK, C)
    log_rk = log_2(rk)
    # Lengths of keys go in as exponents: above the diagonal these may overflow, and fall to a mask.
    if R == 1:
        QK, rq = _queries(bq, bk, scale, L2NORM, C)
        into = power_of_2(gc)
        store_in_place(at + oc, into * rk)
        store_in_place(at + C + oc, into * rq)
        store_in_place(at + 2 * C + oc, power_of_2(last - gc) * rk)
        pair = power_of_2((gc + log_rk)[:, None] - (gc - log_rk)[None, :])
        weights = QK * pair * (rq / rk)[:, None]
        tl.store(P + tile, keep_lower(weights.to(P.dtype.element_ty)))
        tl.store(A + tile, update_matrix(KK * pair, beta, n).to(A.dtype.element_ty))
    else:
        # All A before all P, so that K K^T and Q K^T are not held at once.
        for r in tl.static_range(R):
            gc = sums[r]
            G = KK * power_of_2((gc + log_rk)[:, None] - (gc - log_rk)[None, :])
            tl.store(A + tile + r * C * C, update_matrix(G, betas[r], n).to(A.dtype.element_ty))
        QK, rq = _queries(bq, bk, scale, L2NORM, C)
        log_rq = log_2(rq)
        _store_numbers(at + row * (3 * C) + pair, even, odd, last, rk, rq, C)
        for r in tl.static_range(R):
            gc = sums[r]
            # Written otherwise than above, lest the compiler keep what is formed there.
            weights = QK * power_of_2((gc + log_rq)[:, None] + (log_rk - gc)[None, :])
            tl.store(P + tile + r * C * C, keep_lower(weights.to(P.dtype.element_ty)))
