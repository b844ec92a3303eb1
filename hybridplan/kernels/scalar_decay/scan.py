"""Device side of the scalar-decay prefill: the local pass and the scan.

With r the summed log2 decay up to a token of a chunk, and S [BV, K] in registers:

    P^T = (K Q^T) * 2^(r_i - r_j) w_j        the chunk's own earlier tokens
    O^T = (S Q^T) * 2^r_i + V^T P^T
    S   = S * 2^r_end + (V^T * 2^(r_end - r_j) w_j) K
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import power_of_2
from hybridplan.kernels.common.hints import prefetch, recomputed, touch
from hybridplan.kernels.common.stores import store_pairs
from hybridplan.kernels.scalar_decay.gates import LOG2E, GateKind
from hybridplan.kernels.scalar_decay.grouped import go_chunks

_PER_HEAD = tl.constexpr(int(GateKind.PER_HEAD))
_MAMBA = tl.constexpr(int(GateKind.MAMBA))


@triton.jit
def _against(bq, bk, S, DT: tl.constexpr):
    """The state and the chunk's keys against its queries: S Q^T and K Q^T."""
    columns = tl.trans(bq)
    carried = tl.dot(S.to(DT), columns, input_precision="tf32x3")
    return carried, tl.dot(bk, columns, input_precision="tf32x3")


@triton.jit
def _inside(products, r, w, scale, DT: tl.constexpr, FOLD: tl.constexpr, FIXED: tl.constexpr):
    i = tl.arange(0, r.shape[0])
    j = i if FIXED else recomputed(i)
    later = i[None, :] >= j[:, None]
    if FOLD:
        before = w - scale
        inside = products * power_of_2(tl.where(later, r[None, :] - before[:, None], -1e9))
    else:
        gap = power_of_2(tl.where(later, r[None, :] - r[:, None], -1e9))
        inside = products * gap * (w * scale)[:, None]
    return inside.to(DT)


@triton.jit
def _reached(r, scale, FOLD: tl.constexpr):
    return power_of_2(r + scale) if FOLD else power_of_2(r) * scale


@triton.jit
def _output(
    carried,
    products,
    bv,
    r,
    w,
    scale,
    DT: tl.constexpr,
    FOLD: tl.constexpr,
    FIXED: tl.constexpr,
):
    inside = _inside(products, r, w, scale, DT, FOLD, FIXED)
    out = carried * _reached(r, scale, FOLD)[None, :]
    return tl.dot(tl.trans(bv), inside, out, input_precision="tf32x3")


@triton.jit
def _left(r, w, total, FOLD: tl.constexpr):
    """What is left of each token's input at the chunk's end."""
    return power_of_2(total - w) if FOLD else power_of_2(tl.minimum(total - r, 0.0)) * w


@triton.jit
def _add(S, bk, bv, left, total, DT: tl.constexpr):
    weighted = (bv.to(tl.float32) * left[:, None]).to(DT)
    S = S * power_of_2(total)
    return tl.dot(tl.trans(weighted), bk, S, input_precision="tf32x3")


@triton.jit
def _gates(
    reach,
    weight,
    dr,
    dw,
    at,
    t0,
    per_head,
    next_total,
    C: tl.constexpr,
    KIND: tl.constexpr,
    FOLD: tl.constexpr,
):
    """r, the weights, r at the end of this full chunk and of the second next (read ahead)."""
    i = tl.arange(0, C)
    if KIND == _PER_HEAD:
        r = (i + 1) * per_head
        total = C * per_head
        ahead = next_total
    else:
        r = dr.load([at + t0]) if dr is not None else tl.load(reach + at + t0 + i)
        total = next_total
        ahead = tl.load(reach + at + t0 + 3 * C - 1)
    if KIND != _MAMBA:
        w = r if FOLD else tl.full([C], 1.0, tl.float32)
    elif dw is not None:
        w = dw.load([at + t0])
    else:
        w = tl.load(weight + at + t0 + i)
    return r, w, total, ahead


@triton.jit
def _rest_gates(
    reach,
    weight,
    at,
    t0,
    tail,
    end,
    per_head,
    C: tl.constexpr,
    KIND: tl.constexpr,
    FOLD: tl.constexpr,
):
    """r, weights and r at the end of at most C tokens from t0 of the chunk that starts at tail."""
    i = tl.arange(0, C)
    t = t0 + i
    stop = tl.minimum(t0 + C, end)
    w = tl.where(t < end, 1.0, 0.0)
    if KIND == _PER_HEAD:
        r = (i + 1) * per_head
        total = (stop - t0) * per_head
    else:
        before = tl.load(reach + at + t0 - 1, mask=t0 > tail, other=0.0)
        total = tl.load(reach + at + stop - 1) - before
        # beyond the end nothing decays, so that no exponent is positive
        raw = tl.load(reach + at + t, mask=t < end, other=0.0)
        r = tl.where(t < end, raw - before, total)
        if KIND == _MAMBA:
            w = tl.load(weight + at + t, mask=t < end, other=0.0)
            if FOLD:
                w = tl.where(t < end, power_of_2(raw - w), 0.0)
    return r, w, total


@triton.jit
def local_states(
    k,
    v,
    reach,
    weight,
    log_decay,
    pool,
    slots,
    read_slots,
    walks,
    spans,
    inner,
    states,
    totals,
    dk,
    dv,
    dr,
    dw,
    stride_k,
    stride_v,
    stride_slot,
    pool_slots,
    row,
    G: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    DT: tl.constexpr,
    KIND: tl.constexpr,
    TMA: tl.constexpr,
    FOLD: tl.constexpr,
    TOUCH: tl.constexpr,
    STAGES: tl.constexpr,
    SHARED: tl.constexpr,
):
    """State that each inner walk adds, from zero (the first walk: from the initial state).

    The last walk of a sequence needs none of its own; its place in ``states`` takes the initial
    state, because the slot it comes from may be overwritten while the scan runs. Inner walks
    consist of full chunks; ``totals`` gets their summed log2 decay. K is a power of two. If SHARED,
    ``reach`` and ``dr`` are ``prepare_groups``' numbers.
    """
    pid = tl.program_id(0)
    NV: tl.constexpr = HV * V // BV
    rows = (pid % NV) * BV
    hv = rows // V
    h = hv // (HV // G)
    walk = tl.load(inner + pid // NV)
    n = tl.load(walks + 8 * walk + 2)
    slot = tl.load(slots + n)
    if (slot < 0) | (slot >= pool_slots):
        return
    ok = tl.arange(0, K)
    ov = rows + tl.arange(0, BV)
    oc = tl.arange(0, C)
    cell = ov[:, None] * K + ok[None, :]
    size: tl.constexpr = HV * V * K
    S = tl.zeros([BV, K], tl.float32)
    if tl.load(walks + 8 * walk + 3) == 0:
        origin = tl.load(read_slots + n)
        known = tl.where((origin >= 0) & (origin < pool_slots), K, 0)
        start = pool + origin.to(tl.int64) * stride_slot + cell
        S = tl.load(start, mask=(ok < known)[None, :], other=0.0).to(tl.float32)
        last = walk + tl.load(walks + 8 * walk + 4) - 1
        tl.store(states + last.to(tl.int64) * size + cell, S)
    per_head = 0.0
    if KIND == _PER_HEAD:
        per_head = tl.load(log_decay + hv) * LOG2E
    at = hv * row
    if SHARED:
        at = 4 * at
    span0 = tl.load(walks + 8 * walk)
    first = tl.load(spans + 4 * span0)
    end = tl.load(spans + 4 * (span0 + tl.load(walks + 8 * walk + 1) - 1) + 1)
    next_total = 0.0
    later_total = 0.0
    if KIND != _PER_HEAD:
        next_total = tl.load(reach + at + first + C - 1)
        later_total = tl.load(reach + at + first + 2 * C - 1)
    decay = 0.0
    for it in tl.range(0, (end - first) // C, num_stages=STAGES):
        t0 = first + it * C
        if TMA:
            bk = dk.load([t0, h * K]).to(DT)
            bv = dv.load([t0, rows])
        else:
            t = t0.to(tl.int64) + oc
            bk = tl.load(k + t[:, None] * stride_k + h * K + ok[None, :]).to(DT)
            bv = tl.load(v + t[:, None] * stride_v + ov[None, :])
        if TOUCH:
            touch(bk)
        if SHARED:
            total = next_total
            ahead = tl.load(reach + at + t0 + 3 * C - 1)
            from_t0 = at + 2 * row + t0
            left = dr.load([from_t0]) if dr is not None else tl.load(reach + from_t0 + oc)
        else:
            r, w, total, ahead = _gates(
                reach, weight, dr, dw, at, t0, per_head, next_total, C, KIND, FOLD
            )
            left = _left(r, w, total, FOLD)
        next_total = later_total + 0.0
        later_total = ahead
        S = _add(S, bk, bv, left, total, DT)
        decay += total
    tl.store(states + walk.to(tl.int64) * size + cell, S)
    tl.store(totals + walk * HV + hv, decay)


@triton.jit
def scan(
    q,
    k,
    v,
    o,
    reach,
    weight,
    log_decay,
    skip,
    pool,
    slots,
    read_slots,
    walks,
    spans,
    stops,
    states,
    totals,
    products,
    dq,
    dk,
    dv,
    do,
    dr,
    dw,
    stride_q,
    stride_k,
    stride_v,
    stride_slot,
    pool_slots,
    row,
    scale,
    G: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    TAIL: tl.constexpr,
    DT: tl.constexpr,
    KIND: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    TMA: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    FOLD: tl.constexpr,
    EXPORT: tl.constexpr,
    TOUCH: tl.constexpr,
    PREFETCH: tl.constexpr,
    SHARED: tl.constexpr,
):
    """Go one walk: outputs, exported states, and after a sequence's last walk its final state.

    If SHARED, ``reach`` and ``dr`` are ``prepare_groups``' numbers, and ``products`` its products.
    """
    pid = tl.program_id(0)
    NV: tl.constexpr = HV * V // BV
    SPLIT: tl.constexpr = PARTS > 0
    rows = (pid % NV) * BV
    hv = rows // V
    walk = pid // NV
    n = tl.load(walks + 8 * walk + 2)
    h = hv // (HV // G)
    slot = tl.load(slots + n)
    if (slot < 0) | (slot >= pool_slots):
        return
    origin = tl.load(read_slots + n)
    ok = tl.arange(0, KP)
    ov = rows + tl.arange(0, BV)
    oc = tl.arange(0, C)
    in_k = ok < K
    cell = ov[:, None] * K + ok[None, :]
    place = 0
    walk_count = 1
    if SPLIT:
        place = tl.load(walks + 8 * walk + 3)
        walk_count = tl.load(walks + 8 * walk + 4)
    size: tl.constexpr = HV * V * K
    if walk_count == 1:
        # a slot outside the pool masks every channel off (interpreted masks are tensors only)
        known = tl.where((origin >= 0) & (origin < pool_slots), K, 0)
        start = pool + origin.to(tl.int64) * stride_slot + cell
        S = tl.load(start, mask=(ok < known)[None, :], other=0.0).to(tl.float32)
    else:
        S = tl.zeros([BV, KP], tl.float32)
        if SPLIT:
            begin = tl.load(walks + 8 * walk + 5)
            if place == 0:
                begin += tl.load(walks + 8 * walk + 7) - 1
            for i in range(tl.maximum(place * PARTS, 1)):
                at = totals + (begin + i) * HV + hv
                decay = tl.exp2(tl.load(at, mask=place > 0, other=0.0))
                S = S * decay + tl.load(states + (begin + i).to(tl.int64) * size + cell)
    per_head = 0.0
    if KIND == _PER_HEAD:
        per_head = tl.load(log_decay + hv) * LOG2E
    factor = scale
    if FOLD:
        factor = tl.log2(scale)
    skipped = 0.0
    if HAS_SKIP:
        skipped = tl.load(skip + hv)
    gates = hv * row
    if SHARED:
        gates = hv.to(tl.int64) * 4 * row
        weight = reach + 3 * row
    span0 = tl.load(walks + 8 * walk)
    span_count = tl.load(walks + 8 * walk + 1)
    next_stop = 0
    stop = -1
    if EXPORT:
        next_stop = tl.load(walks + 8 * walk + 6)
        stop = tl.load(stops + 2 * next_stop)
    for j in range(span0, span0 + span_count):
        first = tl.load(spans + 4 * j)
        end = tl.load(spans + 4 * j + 1)
        export_slot = tl.load(spans + 4 * j + 2)
        full = (end - first) // C
        if SHARED:
            S, next_stop, stop = go_chunks(
                S, dq, dk, dv, do, dr, reach, products, v, pool, stops, first, full, rows,
                hv, h, row, stride_v, stride_slot, pool_slots, factor, skipped, next_stop, stop,
                G, K, C, DT, HAS_SKIP, EXPORT, TOUCH, PREFETCH,
            )  # fmt: skip
        else:
            next_total = 0.0
            later_total = 0.0
            if KIND != _PER_HEAD:
                next_total = tl.load(reach + gates + first + C - 1)
                later_total = tl.load(reach + gates + first + 2 * C - 1)
            for it in tl.range(0, full, num_stages=STAGES):
                t0 = first + it * C
                t = t0.to(tl.int64) + oc
                if PREFETCH:
                    coming = tl.minimum(t + PREFETCH * C, end - 1)
                    prefetch(v + coming * stride_v + rows)
                if TMA:
                    bq = dq.load([t0, h * K]).to(DT)
                    bk = dk.load([t0, h * K]).to(DT)
                else:
                    cols = h * K + ok[None, :]
                    bq = tl.load(q + t[:, None] * stride_q + cols, mask=in_k[None, :], other=0.0)
                    bk = tl.load(k + t[:, None] * stride_k + cols, mask=in_k[None, :], other=0.0)
                    bq = bq.to(DT)
                    bk = bk.to(DT)
                if TOUCH:
                    touch(bq)
                    touch(bk)
                carried, inner = _against(bq, bk, S, DT)
                # what is needed now is waited for now
                if TMA:
                    bv = dv.load([t0, rows]).to(DT)
                else:
                    bv = tl.load(v + t[:, None] * stride_v + ov[None, :]).to(DT)
                r, w, total, ahead = _gates(
                    reach, weight, dr, dw, gates, t0, per_head, next_total, C, KIND, FOLD
                )
                next_total = later_total + 0.0
                later_total = ahead
                out = _output(carried, inner, bv, r, w, factor, DT, FOLD, KIND == _PER_HEAD)
                if HAS_SKIP:
                    out += skipped * tl.trans(bv).to(tl.float32)
                if TMA:
                    do.store([t0, rows], tl.trans(out).to(o.dtype.element_ty))
                else:
                    at_o = o + t[None, :] * (HV * V) + ov[:, None]
                    tl.store(at_o, out.to(o.dtype.element_ty))
                S = _add(S, bk, bv, _left(r, w, total, FOLD), total, DT)
                if EXPORT:  # noqa: SIM102 (a constant of the compilation, apart from a value)
                    if t0 + C == stop:
                        stop_slot = tl.load(stops + 2 * next_stop + 1).to(tl.int64)
                        if (stop_slot >= 0) & (stop_slot < pool_slots):
                            to_rows = pool + stop_slot * stride_slot + ov[:, None] * K
                            if KP == K:
                                store_pairs(to_rows + 2 * tl.arange(0, KP // 2)[None, :], S)
                            else:
                                to_state = to_rows + ok[None, :]
                                tl.store(to_state, S.to(pool.dtype.element_ty), mask=in_k[None, :])
                        next_stop += 1
                        stop = tl.load(stops + 2 * next_stop)
        # the rest of a span in small steps, which need few registers beside the state
        tail = first + full * C
        for it in tl.range(0, tl.cdiv(end - tail, TAIL), num_stages=1):
            t0 = tail + it * TAIL
            t = t0.to(tl.int64) + tl.arange(0, TAIL)
            m = t < end
            mk = m[:, None] & in_k[None, :]
            cols = h * K + ok[None, :]
            bq = tl.load(q + t[:, None] * stride_q + cols, mask=mk, other=0.0).to(DT)
            bk = tl.load(k + t[:, None] * stride_k + cols, mask=mk, other=0.0).to(DT)
            at_v = v + t[:, None] * stride_v + ov[None, :]
            bv = tl.load(at_v, mask=m[:, None], other=0.0).to(DT)
            r, w, total = _rest_gates(
                reach, weight, gates, t0, tail, end, per_head, TAIL, KIND, FOLD
            )
            carried, inner = _against(bq, bk, S, DT)
            out = _output(carried, inner, bv, r, w, scale, DT, False, True)
            if HAS_SKIP:
                out += skipped * tl.trans(bv).to(tl.float32)
            at_o = o + t[None, :] * (HV * V) + ov[:, None]
            tl.store(at_o, out.to(o.dtype.element_ty), mask=m[None, :])
            S = _add(S, bk, bv, _left(r, w, total, False), total, DT)
        kept = tl.where((export_slot >= 0) & (export_slot < pool_slots), K, 0)
        target = pool + export_slot.to(tl.int64) * stride_slot + cell
        tl.store(target, S.to(pool.dtype.element_ty), mask=(ok < kept)[None, :])
    kept = tl.where(place == walk_count - 1, K, 0)
    target = pool + slot.to(tl.int64) * stride_slot + cell
    tl.store(target, S.to(pool.dtype.element_ty), mask=(ok < kept)[None, :])
