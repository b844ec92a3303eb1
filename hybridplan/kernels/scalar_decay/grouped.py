"""The scan's loop over full chunks where heads share q and k.

K Q^T of a chunk was worked out once for the group (``prepare``), with what else does not depend on
the state: a product and a wait less per chunk and head, and half of the exponentials.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import power_of_2
from hybridplan.kernels.common.hints import multiply_beside, plus_product, prefetch, touch
from hybridplan.kernels.common.stores import store_pairs
from hybridplan.kernels.scalar_decay.products import as_product, gated, load_tile


@triton.jit
def numbers_of(numbers, dn, hv, row, t0, C: tl.constexpr):
    """r, 2^r times the scale, what is left of a token at the chunk's end, r - log2 w: [C] each."""
    if dn is not None:
        x = dn.load([hv * 4, t0])
    else:
        at = tl.arange(0, 4).to(tl.int64)[:, None] * row + hv.to(tl.int64) * 4 * row
        x = tl.load(numbers + at + t0 + tl.arange(0, C)[None, :])
    even, odd = tl.split(x.reshape(2, 2, C).permute(0, 2, 1))
    r, left = tl.split(even.permute(1, 0))
    reached, w = tl.split(odd.permute(1, 0))
    return r, reached, left, w


@triton.jit
def go_chunks(
    S,
    dq,
    dk,
    dv,
    do,
    dn,
    numbers,
    products,
    v,
    pool,
    stops,
    first,
    full,
    rows,
    hv,
    h,
    row,
    stride_v,
    stride_slot,
    pool_slots,
    factor,
    skipped,
    next_stop,
    stop,
    G: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    DT: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    EXPORT: tl.constexpr,
    TOUCH: tl.constexpr,
    PREFETCH: tl.constexpr,
):
    """S after ``full`` chunks from token ``first`` on, and the next stop."""
    oc = tl.arange(0, C)
    tile = products + h * (C * C)
    reach = numbers + hv.to(tl.int64) * 4 * row
    last = first + full * C - C
    next_total = tl.load(reach + first + C - 1)
    later_total = tl.load(reach + first + 2 * C - 1)
    words = load_tile(tile + first.to(tl.int64) * (G * C))
    for it in tl.range(0, full, num_stages=3):
        t0 = first + it * C
        if PREFETCH:
            coming = tl.minimum(t0 + PREFETCH * C, last) + oc
            prefetch(v + coming.to(tl.int64) * stride_v + rows)
        # asked for early: at the end of the chunk it would be waited for
        ahead = tl.load(reach + t0 + 3 * C - 1)
        bq = dq.load([t0, h * K]).to(DT)
        bk = dk.load([t0, h * K]).to(DT)
        if TOUCH:
            touch(bq)
            touch(bk)
        carried = tl.dot(S.to(DT), tl.trans(bq), input_precision="tf32x3")
        # what is needed now is waited for now
        r, reached, left, w = numbers_of(numbers, dn, hv, row, t0, C)
        bv = dv.load([t0, rows]).to(DT)
        before = w - factor
        inside = gated(as_product(words), r[None, :] - before[:, None], DT)
        tv = tl.trans(bv)
        out = tl.dot(tv, inside, carried * reached[None, :], input_precision="tf32x3")
        weighted = multiply_beside(tv, left[None, :], out)
        if HAS_SKIP:
            out = plus_product(out, tv, skipped)
        do.store([t0, rows], tl.trans(out).to(do.dtype))
        words = load_tile(tile + tl.minimum(t0 + C, last).to(tl.int64) * (G * C))
        S = tl.dot(weighted, bk, S * power_of_2(next_total), input_precision="tf32x3")
        if EXPORT:  # noqa: SIM102 (a constant of the compilation, apart from a value)
            if t0 + C == stop:
                stop_slot = tl.load(stops + 2 * next_stop + 1).to(tl.int64)
                if (stop_slot >= 0) & (stop_slot < pool_slots):
                    ov = rows + tl.arange(0, S.shape[0])
                    to_rows = pool + stop_slot * stride_slot + ov[:, None] * K
                    store_pairs(to_rows + 2 * tl.arange(0, K // 2)[None, :], S)
                next_stop += 1
                stop = tl.load(stops + 2 * next_stop)
        next_total = later_total + 0.0
        later_total = ahead
    return S, next_stop, stop
