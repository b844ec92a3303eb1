"""Chunked prefill of gated linear attention with one decay per key channel.

A first kernel works on all chunks of 16 tokens at once: it scales q and k to the chunk's edges and
finds the chunk's own part of the attention. In a second one a program carries BV rows of one head's
state through a sequence; its loop holds three products and no exponential. Within a
chunk the decay between two tokens is split at a token between them, so that both factors stay
representable: at the edge between halves, or between the quarters of a half, where no factor
exceeds 1. Within a quarter of 4 tokens it is split at the quarter's start, where a factor grows by
up to 4 tokens' decay; for that case only, a token's decay below exp(-17) counts as exp(-17), so
that 4e-8 of what it should have removed may remain in the outputs of its quarter. The state
itself is decayed without that limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch
from hybridplan.kernels.common.recipe import Recipes, launch_all
from hybridplan.kernels.common.slots import Export, check_id_layout, check_prefill_slots
from hybridplan.kernels.common.varlen import chunk_index, sequence_lengths
from hybridplan.kernels.gated_linear.recurrent import check_inputs

CHUNK_TOKENS = 16
_PREPARE_WARPS = 2
_VALUE_ROWS = 32
_WARPS = 4
_STAGES = 4
_PASSED = checks.Passed()
_RECIPES = Recipes()
_LOG2E = tl.constexpr(1.4426950408889634)
_FLOOR = tl.constexpr(-17.0 * 1.4426950408889634)


@triton.jit
def _row(x, i, row):
    """Row ``row`` of x [C, K] as [1, K]; i is the column of row numbers."""
    return tl.sum(tl.where(i == row, x, 0.0), 0)[None, :]


@triton.jit
def _prepare(
    q,
    k,
    g,
    q_in,
    k_out,
    inside_out,
    decay,
    chunks,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    C: tl.constexpr,
    DT: tl.constexpr,
):
    # one program per (chunk, head): q and k scaled to the chunk's edges, and the chunk's own part
    chunk = tl.program_id(0) // H
    h = tl.program_id(0) % H
    first = tl.load(chunks + 4 * chunk)
    end = tl.load(chunks + 4 * chunk + 1)
    ok = tl.arange(0, KP)
    oc = tl.arange(0, C)
    in_k = ok < K
    i = oc[:, None]
    j = oc[None, :]
    half: tl.constexpr = C // 2
    quarter: tl.constexpr = C // 4
    t = first.to(tl.int64) + oc
    m = t < end
    mk = m[:, None] & in_k[None, :]
    at = (t[:, None] * H + h) * K + ok[None, :]
    bq = tl.load(q + at, mask=mk, other=0.0).to(tl.float32) * scale
    bk = tl.load(k + at, mask=mk, other=0.0).to(tl.float32)
    bg = tl.load(g + at, mask=mk, other=0.0).to(tl.float32) * _LOG2E
    reach = tl.cumsum(bg, 0)
    total = tl.sum(bg, 0)
    # the two halves, then the quarters of each: split at an edge, no factor above 1
    edge = _row(reach, i, half - 1)
    q_far = tl.where(i >= half, bq * tl.exp2(tl.minimum(reach - edge, 0.0)), 0.0)
    k_far = tl.where(i < half, bk * tl.exp2(tl.minimum(edge - reach, 0.0)), 0.0)
    inside = tl.dot(q_far.to(DT), tl.trans(k_far).to(DT), input_precision="tf32x3")
    low_edge = _row(reach, i, quarter - 1)
    edge = tl.where(i < half, low_edge, _row(reach, i, half + quarter - 1))
    second = (i // quarter) % 2 == 1
    q_mid = tl.where(second, bq * tl.exp2(tl.minimum(reach - edge, 0.0)), 0.0)
    k_mid = tl.where(second, 0.0, bk * tl.exp2(tl.minimum(edge - reach, 0.0)))
    mid = tl.dot(q_mid.to(DT), tl.trans(k_mid).to(DT), input_precision="tf32x3")
    inside += tl.where(i // half == j // half, mid, 0.0)
    # within a quarter: decay summed from its start, floored
    soft = tl.reshape(tl.maximum(bg, _FLOOR), [C // quarter, quarter, KP])
    soft = tl.reshape(tl.cumsum(soft, 1), [C, KP])
    k_near = tl.trans((bk * tl.exp2(-soft)).to(DT))
    near = tl.dot((bq * tl.exp2(soft)).to(DT), k_near, input_precision="tf32x3")
    inside += tl.where((i >= j) & (i // quarter == j // quarter), near, 0.0)
    at_row = (t[:, None] * H + h) * C + j
    tl.store(inside_out + at_row, inside.to(inside_out.dtype.element_ty), mask=m[:, None])
    scaled = bq * tl.exp2(reach)
    tl.store(q_in + at, scaled.to(q_in.dtype.element_ty), mask=mk)
    scaled = bk * tl.exp2(total[None, :] - reach)
    tl.store(k_out + at, scaled.to(k_out.dtype.element_ty), mask=mk)
    tl.store(decay + (chunk.to(tl.int64) * H + h) * K + ok, tl.exp2(total), mask=in_k)


@triton.jit
def _scan(
    v,
    q_in,
    k_out,
    inside,
    decay,
    o,
    pool,
    slots,
    read_slots,
    sequences,
    chunks,
    stride_slot,
    pool_slots,
    H: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    DT: tl.constexpr,
    STAGES: tl.constexpr,
):
    pid = tl.program_id(0)
    NV: tl.constexpr = V // BV
    iv = pid % NV
    h = (pid // NV) % H
    n = pid // (NV * H)
    slot = tl.load(slots + n)
    if (slot < 0) | (slot >= pool_slots):
        return
    origin = tl.load(read_slots + n)
    ok = tl.arange(0, KP)
    oc = tl.arange(0, C)
    ov = iv * BV + tl.arange(0, BV)
    in_k = ok < K
    cell = h * (V * K) + ov[:, None] * K + ok[None, :]
    known = tl.where((origin >= 0) & (origin < pool_slots), K, 0)
    start = pool + origin.to(tl.int64) * stride_slot + cell
    S = tl.load(start, mask=(ok < known)[None, :], other=0.0).to(tl.float32)
    first_chunk = tl.load(sequences + 4 * n + 2)
    chunk_count = tl.load(sequences + 4 * n + 3)
    first = tl.load(chunks + 4 * first_chunk)
    for c in tl.range(first_chunk, first_chunk + chunk_count, num_stages=STAGES):
        # chunks lie end to end, so that no address waits for the table
        end = tl.load(chunks + 4 * c + 1)
        export_slot = tl.load(chunks + 4 * c + 3)
        t = first.to(tl.int64) + oc
        m = t < end
        mk = m[:, None] & in_k[None, :]
        at = (t[:, None] * H + h) * K + ok[None, :]
        bq = tl.load(q_in + at, mask=mk, other=0.0).to(DT)
        bk = tl.load(k_out + at, mask=mk, other=0.0).to(DT)
        at_row = (t[:, None] * H + h) * C + oc[None, :]
        a = tl.load(inside + at_row, mask=m[:, None], other=0.0).to(DT)
        e = tl.load(decay + (c * H + h).to(tl.int64) * K + ok, mask=in_k, other=0.0)
        at_v = (t[:, None] * H + h) * V + ov[None, :]
        bv = tl.load(v + at_v, mask=m[:, None], other=0.0).to(DT)
        out = tl.dot(bq, tl.trans(S).to(DT), input_precision="tf32x3")
        out = tl.dot(a, bv, out, input_precision="tf32x3")
        tl.store(o + at_v, out.to(o.dtype.element_ty), mask=m[:, None])
        S = tl.dot(tl.trans(bv), bk, S * e[None, :], input_precision="tf32x3")
        kept = tl.where((export_slot >= 0) & (export_slot < pool_slots), K, 0)
        target = pool + export_slot.to(tl.int64) * stride_slot + cell
        tl.store(target, S.to(pool.dtype.element_ty), mask=(ok < kept)[None, :])
        first = end
    target = pool + slot.to(tl.int64) * stride_slot + cell
    tl.store(target, S.to(pool.dtype.element_ty), mask=in_k[None, :])


_launch_prepare = launch.Launcher(_prepare)
_launch = launch.Launcher(_scan)


def chunk_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    pool: Tensor,
    slots: Tensor,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    *,
    read_slots: Tensor | None = None,
    exports: Sequence[Export] = (),
    scale: float = 1.0,
    out: Tensor | None = None,
    trust_ids: bool = False,
) -> Tensor:
    """Run N packed sequences; returns o [T, H, V] and writes each final state into ``pool``.

    q, k [T, H, K], v [T, H, V]: bf16, fp16 or fp32, one dtype, contiguous; K from 16 to 256, V a
    multiple of 16. g [T, H, K]: natural-log decay of each channel, finite, not positive.
    pool: [slots, H, V, K] fp32, fp16 or bf16. cu_seqlens, slots, read_slots, exports, trust_ids and
    what is raised: as :func:`hybridplan.kernels.scalar_decay.chunk.chunk_prefill`; a chunk has 16
    tokens here. Products of half-precision inputs take bf16 operands, for bf16's exponent range.
    """
    device = v.device
    given = (q, k, v, g, pool, slots, read_slots)
    key = _PASSED.key(*given, out)
    if not _PASSED.has(key):
        check_inputs(q, k, v, g, pool, out, -1)
        check_id_layout(device, slots, read_slots)
        checks.require(q.shape[2] >= 16, f"K is {q.shape[2]}, needed 16 to 256")
        checks.require(v.shape[2] % 16 == 0, f"V is {v.shape[2]}, needed a multiple of 16")
        _PASSED.add(key)
    T, H, V = v.shape
    K = q.shape[2]
    lengths = (T,) if cu_seqlens is None else sequence_lengths(cu_seqlens, T)
    N = len(lengths)
    stops = check_prefill_slots(slots, read_slots, exports, N, pool.shape[0], trust_ids)
    if out is None:
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    call_key = (key, lengths, stops, float(scale))
    known = _RECIPES.get(call_key, device)
    if known is not None and known.run((*given, out)):
        return out
    index = chunk_index(lengths, CHUNK_TOKENS, device, stops)
    BV = min(_VALUE_ROWS, V & -V)
    reads = slots if read_slots is None else read_slots
    KP = max(16, launch.next_power_of_2(K))
    tile = torch.float32 if v.dtype == torch.float32 else torch.bfloat16
    dtype = tl.float32 if launch.INTERPRETED or tile == torch.float32 else tl.bfloat16
    chunk_count = max(index.chunk_count, 1)
    room = launch.Scratch(device)
    q_in, k_out = (room.piece((T, H, K), tile) for _ in "qk")
    inside = room.piece((T, H, CHUNK_TOKENS), tile)
    decay = room.piece((chunk_count, H, K), torch.float32)
    launches = [
        launch.Launch(
            _launch_prepare,
            (chunk_count * H, 1, 1),
            (q, k, g, q_in, k_out, inside, decay, index.chunks),
            (),
            (float(scale),),
            (H, K, KP, CHUNK_TOKENS, dtype),
            {"num_warps": _PREPARE_WARPS},
        ),
        launch.Launch(
            _launch,
            (N * H * (V // BV), 1, 1),
            (v, q_in, k_out, inside, decay, out, pool, slots, reads, index.sequences, index.chunks),
            (),
            (pool.stride(0), pool.shape[0]),
            (H, K, KP, V, BV, CHUNK_TOKENS, dtype, _STAGES),
            {"num_warps": _WARPS},
        ),
    ]
    tables = (index.chunks, index.sequences)
    _RECIPES.add(call_key, launch_all(launches, (*given, out), room, tables))
    return out
