"""The serial part of the chunked delta rule: walk the chunks of a segment with the state on chip.

The state is kept transposed, [BV, K], so that the left operand of every product on the chain is in
registers. With the tiles A, P of the prepare kernels (A: inverse of the chunk's triangular system
times beta; P: gated Q K^T), all gates folded in:

    W = V^T - S K_in^T;  U = W A^T;  O = S Q_in^T + U P^T;  S <- S decay + U K_out

Scalar decay reads raw q, k and folds gates and norms in as numbers per token (``k_in``, ``q_in``,
``k_out``); per-channel decay reads three tensors already scaled, one zero-padded tile a chunk,
in fp16: S and V must stay below 65504, and A takes W in fp16 in both.

A long sequence may be cut into segments that run side by side. ``_local`` walks each segment that
another follows, once from nothing (the state it adds) and once from the identity (the matrix it
multiplies the earlier state by); ``_scan`` then chains those to its own initial state. Work whose
share of the result is below 2^-32 of the earlier state's norm is left out, and the matrices, in
fp16, round at 2^-25 of that norm.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from hybridplan.kernels.common.delta_ahead import LEAD_CHUNKS, RUN, bring
from hybridplan.kernels.common.launch import DOT_DTYPE
from hybridplan.kernels.common.stores import load_pairs, store_pairs
from hybridplan.kernels.common.triangular import INVERSE_DTYPE

NEGLIGIBLE_LOG2 = tl.constexpr(-32.0)
_NO_PROGRAM = tl.constexpr(2**31 - 1)


@triton.jit
def _walk(
    S,
    q,
    k,
    kn,
    v,
    A,
    P,
    k_in,
    q_in,
    k_out,
    decay,
    o,
    q_tiles,
    k_tiles,
    kn_tiles,
    v_tiles,
    A_tiles,
    P_tiles,
    o_tiles,
    q_stride,
    k_stride,
    v_stride,
    pool,
    pool_stride,
    pool_slots,
    stops,
    next_stop,
    t0,
    full,
    tail,
    c0,
    hv,
    iv,
    ahead,
    read_slots,
    runs,
    segments,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    WITH_V: tl.constexpr,
    OUT: tl.constexpr,
    TAIL: tl.constexpr,
    EXPORT: tl.constexpr,
    TMA: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Walk one run: ``full`` whole chunks, then one of ``tail`` tokens by masked loads.

    With EXPORT the state before each chunk that ``stops`` names, from row ``next_stop`` on, is
    stored where it is in registers anyway, at the end of the chunk before. With AHEAD, near the
    end, what program ``ahead`` reads first is brought into L2.
    """
    TILE: tl.constexpr = INVERSE_DTYPE if PER_CHANNEL else DOT_DTYPE
    h = hv // (HV // H)
    ok = tl.arange(0, BK)
    oc = tl.arange(0, C)
    ov = iv * BV + tl.arange(0, BV)
    mk = ok < K
    stop = -1
    if EXPORT:
        stop = tl.load(stops + 2 * next_stop)
        stop_slot = tl.load(stops + 2 * next_stop + 1)
    for it in tl.range(0, full, num_stages=STAGES):
        t = t0 + it * C
        chunk = (c0 + it) * HV + hv
        rows = chunk * C
        to = (t + oc).to(tl.int64)
        rl = rows.to(tl.int64) + oc
        pv = to[None, :] * v_stride + hv * V + ov[:, None]
        if PER_CHANNEL:
            pk = rl[:, None] * BK + ok[None, :]
            pq = pk
        else:
            pk = to[:, None] * k_stride + h * K + ok[None, :]
            pq = to[:, None] * q_stride + h * K + ok[None, :]
        if not TMA:
            bk = tl.load(k + pk, mask=mk[None, :], other=0.0).to(TILE)
            bA = tl.load(A + rl[:, None] * C + oc[None, :]).to(INVERSE_DTYPE)
        elif PER_CHANNEL:
            bk = k_tiles.load([rows, 0]).to(TILE)
            bA = A_tiles.load([rows, 0]).to(INVERSE_DTYPE)
        else:
            bk = k_tiles.load([t, h * K]).to(TILE)
            bA = A_tiles.load([rows, 0]).to(INVERSE_DTYPE)
        if PER_CHANNEL:
            e = tl.exp2(tl.load(decay + chunk * BK + ok))[None, :]
        else:
            e = tl.exp2(tl.load(decay + chunk))
            ck = tl.load(k_in + 3 * rows + oc)
            cn = tl.load(k_out + 3 * rows + oc)
        if AHEAD:  # noqa: SIM102 (a constant of the compilation, apart from a value)
            if (it + LEAD_CHUNKS == full) & (ahead < tl.num_programs(0)):
                bring(
                    ahead, pool, q, k, v, A, P, read_slots, runs, segments, q_stride, k_stride,
                    v_stride, pool_stride, pool_slots, H, HV, K, V, BV, C,
                )  # fmt: skip
        Sb = S.to(TILE)
        U = tl.dot(Sb, tl.trans(bk))
        if not PER_CHANNEL:
            U = U * ck[None, :]
        if not WITH_V:
            W = -U
        elif TMA:
            W = tl.trans(v_tiles.load([t, hv * V + iv * BV])).to(tl.float32) - U
        else:
            W = tl.load(v + pv).to(tl.float32) - U
        Vd = tl.dot(W.to(INVERSE_DTYPE), tl.trans(bA))
        if OUT:
            if not TMA:
                bq = tl.load(q + pq, mask=mk[None, :], other=0.0).to(TILE)
                bP = tl.load(P + rl[:, None] * C + oc[None, :]).to(DOT_DTYPE)
            elif PER_CHANNEL:
                bq = q_tiles.load([rows, 0]).to(TILE)
                bP = P_tiles.load([rows, 0]).to(DOT_DTYPE)
            else:
                bq = q_tiles.load([t, h * K]).to(TILE)
                bP = P_tiles.load([rows, 0]).to(DOT_DTYPE)
            Ot = tl.dot(Sb, tl.trans(bq))
            if not PER_CHANNEL:
                Ot = Ot * tl.load(q_in + 3 * rows + oc)[None, :]
            Ot = tl.dot(Vd.to(DOT_DTYPE), tl.trans(bP), Ot)
            if o_tiles is not None:
                o_tiles.store([t, hv * V + iv * BV], tl.trans(Ot.to(o.dtype.element_ty)))
            else:
                po = o + to[None, :] * (HV * V) + hv * V + ov[:, None]
                tl.store(po, Ot.to(o.dtype.element_ty))
        if not PER_CHANNEL:
            S = tl.dot((Vd * cn[None, :]).to(TILE), bk, S * e)
        elif TMA:
            bkn = kn_tiles.load([rows, 0]).to(TILE)
            S = tl.dot(Vd.to(TILE), bkn, S * e)
        else:
            bkn = tl.load(kn + pk).to(TILE)
            S = tl.dot(Vd.to(TILE), bkn, S * e)
        if EXPORT:  # noqa: SIM102 (a constant of the compilation, apart from a value)
            if c0 + it + 1 == stop:
                slot = stop_slot.to(tl.int64)
                to_slot = pool + slot * pool_stride + hv * (V * K) + ov[:, None] * K
                if (slot >= 0) & (slot < pool_slots):
                    if BK == K:
                        store_pairs(to_slot + 2 * tl.arange(0, BK // 2)[None, :], S)
                    else:
                        to_state = to_slot + ok[None, :]
                        tl.store(to_state, S.to(pool.dtype.element_ty), mask=mk[None, :])
                next_stop += 1
                stop = tl.load(stops + 2 * next_stop)
                stop_slot = tl.load(stops + 2 * next_stop + 1)
    if TAIL:  # noqa: SIM102 (a constant of the compilation, apart from a value)
        if tail > 0:
            chunk = (c0 + full) * HV + hv
            m = oc < tail
            to = (t0 + full * C + oc).to(tl.int64)
            rl = chunk.to(tl.int64) * C + oc
            pa = rl[:, None] * C + oc[None, :]
            pv = to[None, :] * v_stride + hv * V + ov[:, None]
            mm = m[:, None] & mk[None, :]
            if PER_CHANNEL:
                pk = rl[:, None] * BK + ok[None, :]
                pq = pk
                e = tl.exp2(tl.load(decay + chunk * BK + ok))[None, :]
            else:
                pk = to[:, None] * k_stride + h * K + ok[None, :]
                pq = to[:, None] * q_stride + h * K + ok[None, :]
                e = tl.exp2(tl.load(decay + chunk))
            bk = tl.load(k + pk, mask=mm, other=0.0).to(TILE)
            Sb = S.to(TILE)
            U = tl.dot(Sb, tl.trans(bk))
            if not PER_CHANNEL:
                U = U * tl.load(k_in + 3 * chunk * C + oc)[None, :]
            W = tl.load(v + pv, mask=m[None, :], other=0.0).to(tl.float32) - U
            bA = tl.load(A + pa).to(INVERSE_DTYPE)
            Vd = tl.dot(W.to(INVERSE_DTYPE), tl.trans(bA))
            bq = tl.load(q + pq, mask=mm, other=0.0).to(TILE)
            Ot = tl.dot(Sb, tl.trans(bq))
            if not PER_CHANNEL:
                Ot = Ot * tl.load(q_in + 3 * chunk * C + oc)[None, :]
            bP = tl.load(P + pa).to(DOT_DTYPE)
            Ot = tl.dot(Vd.to(DOT_DTYPE), tl.trans(bP), Ot)
            po = o + to[None, :] * (HV * V) + hv * V + ov[:, None]
            tl.store(po, Ot.to(o.dtype.element_ty), mask=m[None, :])
            if PER_CHANNEL:
                bkn = tl.load(kn + pk).to(TILE)
                S = tl.dot(Vd.to(TILE), bkn, S * e)
            else:
                cn = tl.load(k_out + 3 * chunk * C + oc)
                S = tl.dot((Vd * cn[None, :]).to(TILE), bk, S * e)
    return S


@triton.jit
def _local(
    pool,
    q,
    k,
    kn,
    v,
    A,
    P,
    numbers,
    o,
    read_slots,
    runs,
    segments,
    inner,
    added,
    moved,
    live,
    q_tiles,
    k_tiles,
    kn_tiles,
    v_tiles,
    A_tiles,
    P_tiles,
    o_tiles,
    row_count,
    q_stride,
    k_stride,
    v_stride,
    pool_stride,
    pool_slots,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    MOST_CHUNKS: tl.constexpr,
    TMA: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Segments that another follows: the state each adds, and the matrix it moves states by.

    A sequence's first segment starts from the pool, so its added state is exact. In place of its
    matrix it copies the initial state, since the last segment may overwrite the pool's slot, to
    where the last one's added state would be, which nobody needs.
    """
    k_in = numbers
    q_in = numbers + C
    k_out = numbers + 2 * C
    decay = numbers + 3 * row_count
    pid = tl.program_id(0)
    NV: tl.constexpr = V // BV
    iv = pid % NV
    hv = (pid // NV) % HV
    is_matrix = (pid // (NV * HV)) % 2
    g = tl.load(inner + pid // (NV * HV * 2))
    first_run = tl.load(segments + g * 5)
    n = tl.load(segments + g * 5 + 2)
    place = tl.load(segments + g * 5 + 3)
    count = tl.load(segments + g * 5 + 4).to(tl.int64)
    ok = tl.arange(0, BK)
    ov = iv * BV + tl.arange(0, BV)
    tile = (g.to(tl.int64) * HV + hv) * (V * BK) + ov[:, None] * BK + ok[None, :]
    slot = tl.load(read_slots + n).to(tl.int64)
    S = tl.zeros([BV, BK], tl.float32)
    if place == 0:
        if (slot >= 0) & (slot < pool_slots):
            at = hv * (V * K) + ov[:, None] * K + ok[None, :]
            S = tl.load(pool + slot * pool_stride + at).to(tl.float32)
    elif is_matrix == 1:
        S = (ov[:, None] == ok[None, :]).to(tl.float32)
    t0 = tl.load(runs + first_run * RUN)
    c0 = tl.load(runs + first_run * RUN + 3)
    last_run = tl.load(segments + g * 5 + 1) - 1
    full = tl.load(runs + last_run * RUN + 3) + tl.load(runs + last_run * RUN + 1) - c0
    oi = tl.arange(0, MOST_CHUNKS)
    row = (c0 + oi) * HV + hv
    if PER_CHANNEL:
        logs = tl.load(
            decay + row[:, None] * BK + ok[None, :], mask=(oi < full)[:, None], other=0.0
        )
        later = tl.max(tl.sum(logs, 0)[None, :] - tl.cumsum(logs, 0) + logs, 1)
        whole = tl.max(tl.sum(logs, 0))
    else:
        logs = tl.load(decay + row, mask=oi < full, other=0.0)
        later = tl.sum(logs) - tl.cumsum(logs, 0) + logs
        whole = tl.sum(logs)
    skipped = tl.max(tl.where((oi < full) & (later < NEGLIGIBLE_LOG2), oi, 0))
    if is_matrix == 1:
        idle = (place == 0) | (whole < NEGLIGIBLE_LOG2)
        skipped = tl.where(idle, full, 0)
        if iv == 0:
            tl.store(live + g * HV + hv, tl.where(idle, 0, 1))
    elif skipped > 0:
        S = tl.zeros([BV, BK], tl.float32)
    if is_matrix == 1:
        S = _walk(
            S, q, k, kn, v, A, P, k_in, q_in, k_out, decay, o, q_tiles, k_tiles, kn_tiles,
            v_tiles, A_tiles, P_tiles, o_tiles, q_stride, k_stride, v_stride, pool, pool_stride,
            pool_slots, inner, 0, t0 + skipped * C, full - skipped, 0, c0 + skipped, hv, iv, 0,
            read_slots, runs, segments, H, HV,
            K, V, BK, BV, C, PER_CHANNEL, False, False, False, False, TMA, STAGES, 0,
        )  # fmt: skip
        if place == 0:
            tl.store(added + tile + (count - 1) * HV * (V * BK), S)
        else:
            tl.store(moved + tile, S.to(moved.dtype.element_ty))
    else:
        S = _walk(
            S, q, k, kn, v, A, P, k_in, q_in, k_out, decay, o, q_tiles, k_tiles, kn_tiles,
            v_tiles, A_tiles, P_tiles, o_tiles, q_stride, k_stride, v_stride, pool, pool_stride,
            pool_slots, inner, 0, t0 + skipped * C, full - skipped, 0, c0 + skipped, hv, iv, 0,
            read_slots, runs, segments, H, HV,
            K, V, BK, BV, C, PER_CHANNEL, True, False, False, False, TMA, STAGES, 0,
        )  # fmt: skip
        tl.store(added + tile, S)


@triton.jit
def _scan(
    pool,
    q,
    k,
    kn,
    v,
    A,
    P,
    numbers,
    o,
    read_slots,
    slots,
    runs,
    segments,
    stops,
    added,
    moved,
    live,
    q_tiles,
    k_tiles,
    kn_tiles,
    v_tiles,
    A_tiles,
    P_tiles,
    o_tiles,
    row_count,
    q_stride,
    k_stride,
    v_stride,
    pool_stride,
    pool_slots,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    SPLIT: tl.constexpr,
    MOST_SEGMENTS: tl.constexpr,
    EXPORT: tl.constexpr,
    TMA: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Outputs, exported states and final states of every segment."""
    k_in = numbers
    q_in = numbers + C
    k_out = numbers + 2 * C
    decay = numbers + 3 * row_count
    pid = tl.program_id(0)
    NV: tl.constexpr = V // BV
    iv = pid % NV
    hv = (pid // NV) % HV
    g = pid // (NV * HV)
    run = tl.load(segments + g * 5)
    end_run = tl.load(segments + g * 5 + 1)
    n = tl.load(segments + g * 5 + 2)
    place = tl.load(segments + g * 5 + 3)
    count = tl.load(segments + g * 5 + 4)
    slot = tl.load(slots + n).to(tl.int64)
    from_slot = tl.load(read_slots + n).to(tl.int64)
    ok = tl.arange(0, BK)
    ov = iv * BV + tl.arange(0, BV)
    mk = ok < K
    at = hv * (V * K) + ov[:, None] * K + ok[None, :]
    pairs_at = hv * (V * K) + ov[:, None] * K + 2 * tl.arange(0, BK // 2)[None, :]
    S = tl.zeros([BV, BK], tl.float32)
    if (not SPLIT) | (count == 1):  # noqa: SIM102 (the first may be a constant)
        if (from_slot >= 0) & (from_slot < pool_slots):
            if IN_PAIRS:
                S = load_pairs(pool + from_slot * pool_stride + pairs_at)
            else:
                start = pool + from_slot * pool_stride + at
                S = tl.load(start, mask=mk[None, :], other=0.0).to(tl.float32)
    if OVERLAP:
        gdc_wait()
    if (slot < 0) | (slot >= pool_slots):
        return
    if SPLIT and count > 1:
        size: tl.constexpr = V * BK
        tile = ov[:, None] * BK + ok[None, :]
        g0 = g - place
        if place == 0:
            S = tl.load(added + ((g0 + count - 1).to(tl.int64) * HV + hv) * size + tile)
        else:
            oi = tl.arange(0, MOST_SEGMENTS)
            alive = tl.load(live + (g0 + oi) * HV + hv, mask=oi < place, other=1)
            start = tl.max(tl.where(alive == 0, oi, 0))
            S = tl.load(added + ((g0 + start).to(tl.int64) * HV + hv) * size + tile)
            square = ok[:, None] * BK + ok[None, :]
            for i in tl.range(start + 1, place, num_stages=2):
                base = ((g0 + i).to(tl.int64) * HV + hv) * size
                M = tl.load(moved + base + square).to(INVERSE_DTYPE)
                most = tl.maximum(tl.max(tl.abs(S), 1), 1e-30)[:, None]
                part = (S * (1.0 / most)).to(INVERSE_DTYPE)
                S = tl.dot(part, M) * most + tl.load(added + base + tile)
    for r in range(run, end_run):
        t0 = tl.load(runs + r * RUN)
        full = tl.load(runs + r * RUN + 1)
        tail = tl.load(runs + r * RUN + 2)
        c0 = tl.load(runs + r * RUN + 3)
        export = tl.load(runs + r * RUN + 4).to(tl.int64)
        ahead = tl.where(r + 1 == end_run, pid + AHEAD, _NO_PROGRAM)
        S = _walk(
            S, q, k, kn, v, A, P, k_in, q_in, k_out, decay, o, q_tiles, k_tiles, kn_tiles,
            v_tiles, A_tiles, P_tiles, o_tiles, q_stride, k_stride, v_stride, pool, pool_stride,
            pool_slots, stops, tl.load(runs + r * RUN + 5), t0, full, tail, c0, hv, iv, ahead,
            read_slots, runs, segments, H, HV, K, V, BK, BV, C, PER_CHANNEL, True, True, True,
            EXPORT, TMA, STAGES, AHEAD,
        )  # fmt: skip
        if (export >= 0) & (export < pool_slots):
            if IN_PAIRS:
                store_pairs(pool + export * pool_stride + pairs_at, S)
            else:
                stop = pool + export * pool_stride + at
                tl.store(stop, S.to(pool.dtype.element_ty), mask=mk[None, :])
    if place + 1 == count:
        if IN_PAIRS:
            store_pairs(pool + slot * pool_stride + pairs_at, S)
        else:
            end = pool + slot * pool_stride + at
            tl.store(end, S.to(pool.dtype.element_ty), mask=mk[None, :])
