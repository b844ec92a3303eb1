"""Chunked prefill of gated linear attention with one decay per key channel.

One program carries BV rows of one head's state through a sequence, 16 tokens at a time. Within a
chunk the decay between two tokens is split at a token between them, so that both factors stay
representable: at the edge between halves, or between the quarters of a half, where no factor
exceeds 1. Within a quarter of 4 tokens it is split at the quarter's start, where a factor grows by
up to 4 tokens' decay; for that case only, a token's decay below exp(-17) counts as exp(-17), so
that 4e-8 of what it should have removed may remain in the outputs of its quarter. The state
itself is decayed without that limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch
from hybridplan.kernels.common.slots import Export, check_id_layout, check_prefill_slots
from hybridplan.kernels.common.varlen import chunk_index, sequence_lengths
from hybridplan.kernels.gated_linear.recurrent import check_inputs

CHUNK_TOKENS = 16
_PASSED = checks.Passed()
_LOG2E = tl.constexpr(1.4426950408889634)
_FLOOR = tl.constexpr(-17.0 * 1.4426950408889634)


@triton.jit
def _row(x, i, row):
    """Row ``row`` of x [C, K] as [1, K]; i is the column of row numbers."""
    return tl.sum(tl.where(i == row, x, 0.0), 0)[None, :]


@triton.jit
def _scan(
    q,
    k,
    v,
    g,
    o,
    pool,
    slots,
    read_slots,
    sequences,
    chunks,
    stride_slot,
    pool_slots,
    scale,
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
    i = oc[:, None]
    j = oc[None, :]
    half: tl.constexpr = C // 2
    quarter: tl.constexpr = C // 4
    cell = h * (V * K) + ov[:, None] * K + ok[None, :]
    known = tl.where((origin >= 0) & (origin < pool_slots), K, 0)
    start = pool + origin.to(tl.int64) * stride_slot + cell
    S = tl.load(start, mask=(ok < known)[None, :], other=0.0).to(tl.float32)
    first_chunk = tl.load(sequences + 4 * n + 2)
    chunk_count = tl.load(sequences + 4 * n + 3)
    for c in tl.range(first_chunk, first_chunk + chunk_count, num_stages=STAGES):
        first = tl.load(chunks + 4 * c)
        end = tl.load(chunks + 4 * c + 1)
        export_slot = tl.load(chunks + 4 * c + 3)
        t = first.to(tl.int64) + oc
        m = t < end
        mk = m[:, None] & in_k[None, :]
        at = (t[:, None] * H + h) * K + ok[None, :]
        bq = tl.load(q + at, mask=mk, other=0.0).to(tl.float32) * scale
        bk = tl.load(k + at, mask=mk, other=0.0).to(tl.float32)
        bg = tl.load(g + at, mask=mk, other=0.0).to(tl.float32) * _LOG2E
        at_v = (t[:, None] * H + h) * V + ov[None, :]
        bv = tl.load(v + at_v, mask=m[:, None], other=0.0).to(DT)
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
        carried = (bq * tl.exp2(reach)).to(DT)
        out = tl.dot(carried, tl.trans(S).to(DT), input_precision="tf32x3")
        out = tl.dot(inside.to(DT), bv, out, input_precision="tf32x3")
        tl.store(o + at_v, out.to(o.dtype.element_ty), mask=m[:, None])
        left = (bk * tl.exp2(total[None, :] - reach)).to(DT)
        S = S * tl.exp2(total)[None, :]
        S = tl.dot(tl.trans(bv), left, S, input_precision="tf32x3")
        kept = tl.where((export_slot >= 0) & (export_slot < pool_slots), K, 0)
        target = pool + export_slot.to(tl.int64) * stride_slot + cell
        tl.store(target, S.to(pool.dtype.element_ty), mask=(ok < kept)[None, :])
    target = pool + slot.to(tl.int64) * stride_slot + cell
    tl.store(target, S.to(pool.dtype.element_ty), mask=in_k[None, :])


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
    key = _PASSED.key(q, k, v, g, pool, slots, read_slots, out)
    number = _PASSED.number(key)
    if number is None:
        check_inputs(q, k, v, g, pool, out, -1)
        check_id_layout(device, slots, read_slots)
        checks.require(q.shape[2] >= 16, f"K is {q.shape[2]}, needed 16 to 256")
        checks.require(v.shape[2] % 16 == 0, f"V is {v.shape[2]}, needed a multiple of 16")
        number = _PASSED.add(key)
    T, H, V = v.shape
    K = q.shape[2]
    lengths = (T,) if cu_seqlens is None else sequence_lengths(cu_seqlens, T)
    N = len(lengths)
    stops = check_prefill_slots(slots, read_slots, exports, N, pool.shape[0], trust_ids)
    if out is None:
        out = torch.empty_like(v)
    index = chunk_index(lengths, CHUNK_TOKENS, device, stops)
    BV = min(32, V & -V)
    reads = slots if read_slots is None else read_slots
    _launch(
        (number,),
        (N * H * (V // BV), 1, 1),
        (q, k, v, g, out, pool, slots, reads, index.sequences, index.chunks),
        (pool.stride(0), pool.shape[0], scale, H, K, max(16, launch.next_power_of_2(K)), V, BV,
         CHUNK_TOKENS, _operand_dtype(v.dtype), 2),
        num_warps=4,
    )  # fmt: skip
    return out


def _operand_dtype(dtype: torch.dtype) -> Any:
    if launch.INTERPRETED or dtype == torch.float32:
        return tl.float32
    return tl.bfloat16
