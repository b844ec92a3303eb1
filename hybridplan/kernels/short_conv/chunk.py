"""Prefill of the short causal convolution: one pass over the tokens, windows in the slot pool.

A program convolves a block of tokens of one sequence over a block of channels. The program of a
sequence's first block also owns that sequence's windows: it reads the old one, and afterwards
writes the exported and the final ones from the inputs, so that no other program can overtake it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch
from hybridplan.kernels.common.slots import checked_exports
from hybridplan.kernels.common.spans import spans_of
from hybridplan.kernels.common.varlen import chunk_index, sequence_lengths

CHUNK_TOKENS = 32
CHANNELS = 128
MOST_TAPS = 8


@triton.jit
def _convolve(
    x,
    weight,
    bias,
    y,
    pool,
    slot_ids,
    initial_slot_ids,
    pool_slots,
    stride_x,
    stride_slot,
    chunks,
    chunk_count,
    sequences,
    spans,
    C,
    W: tl.constexpr,
    WP: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
):
    WINDOW: tl.constexpr = W - 1
    NC = tl.cdiv(C, BC)
    block = tl.program_id(0) // NC
    oc = (tl.program_id(0) % NC) * BC + tl.arange(0, BC)
    in_c = oc < C
    if block < chunk_count:
        first = tl.load(chunks + 4 * block)
        end = tl.load(chunks + 4 * block + 1)
        n = tl.load(chunks + 4 * block + 2)
    else:
        # one more program for each sequence: it moves the window of a sequence without tokens
        n = block - chunk_count
        first = tl.load(spans + 4 * tl.load(sequences + 2 * n))
        end = first
    span0 = tl.load(sequences + 2 * n)
    span_count = tl.load(sequences + 2 * n + 1)
    bos = tl.load(spans + 4 * span0)
    eos = tl.load(spans + 4 * (span0 + span_count - 1) + 1)
    slot = tl.load(slot_ids + n)
    if (slot < 0) | (slot >= pool_slots) | ((first == end) & (bos < eos)):
        return
    origin = tl.load(initial_slot_ids + n)
    old = pool + origin.to(tl.int64) * stride_slot
    old_end = tl.where((origin >= 0) & (origin < pool_slots), bos, bos - WINDOW)
    t = first + tl.arange(0, BT)
    inside = (t < end)[:, None] & in_c[None, :]
    acc = tl.zeros([BT, BC], tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias + oc, mask=in_c, other=0.0).to(tl.float32)[None, :]
    for i in tl.static_range(W):
        row = t - (WINDOW - i)
        tap = tl.load(weight + oc * W + i, mask=in_c, other=0.0).to(tl.float32)
        at = x + row.to(tl.int64)[:, None] * stride_x + oc[None, :]
        seen = tl.load(at, mask=inside & (row >= bos)[:, None], other=0.0).to(tl.float32)
        if first == bos:
            at_old = old + (row - bos + WINDOW)[:, None] * C + oc[None, :]
            earlier = tl.load(at_old, mask=inside & (row < old_end)[:, None], other=0.0)
            seen += earlier.to(tl.float32)
        acc += seen * tap[None, :]
    if SILU:
        acc = acc * tl.sigmoid(acc)
    at_y = y + t.to(tl.int64)[:, None] * C + oc[None, :]
    tl.store(at_y, acc.to(y.dtype.element_ty), mask=inside)
    if first == bos:
        place = tl.arange(0, WP)
        wanted = (place < WINDOW)[:, None] & in_c[None, :]
        at_place = place[:, None] * C + oc[None, :]
        for j in range(span0, span0 + span_count):
            stop = tl.load(spans + 4 * j + 1)
            export_slot = tl.load(spans + 4 * j + 2)
            row = stop - WINDOW + place
            at = x + row.to(tl.int64)[:, None] * stride_x + oc[None, :]
            window = tl.load(at, mask=wanted & (row >= bos)[:, None], other=0.0).to(tl.float32)
            at_old = old + (row - bos + WINDOW)[:, None] * C + oc[None, :]
            earlier = tl.load(at_old, mask=wanted & (row < old_end)[:, None], other=0.0)
            window = (window + earlier.to(tl.float32)).to(pool.dtype.element_ty)
            kept = tl.where((export_slot >= 0) & (export_slot < pool_slots), WINDOW, 0)
            at_export = pool + export_slot.to(tl.int64) * stride_slot + at_place
            tl.store(at_export, window, mask=(place < kept)[:, None] & in_c[None, :])
            # the final window may lie over the old one: every thread has read before any writes
            tl.debug_barrier()
            last = tl.where(stop == eos, WINDOW, 0)
            at_final = pool + slot.to(tl.int64) * stride_slot + at_place
            tl.store(at_final, window, mask=(place < last)[:, None] & in_c[None, :])


def chunk_short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: Tensor,
    slot_ids: Tensor,
    cu_seqlens: Tensor | Sequence[int],
    *,
    initial_slot_ids: Tensor | None = None,
    activation: bool = True,
    exports: Sequence[tuple[int, int, int]] = (),
    out: Tensor | None = None,
) -> Tensor:
    """Convolve a packed batch causally per channel, then SiLU; windows in ``pool`` in place.

    x: [T, C] bf16, fp16 or fp32, rows may be slices of a wider row; weight: [C, W], newest token
    last, W from 2 to 8; bias: [C] or None, in weight's dtype.
    pool: [slots, W - 1, C], each request's last W - 1 inputs, oldest first; fp32, fp16 or bf16.
    slot_ids: int32 [N], where each sequence's final window goes; -1 marks a padding sequence, whose
    output rows are left as they are. initial_slot_ids: int32 [N], where its window is read
    (default: slot_ids); -1 starts from zeros.
    cu_seqlens: N + 1 cumulative lengths, on the host or on the device.
    exports: (sequence, tokens, slot): the window after that many tokens goes into that slot.
    Returns [T, C] in x's dtype. Raises KernelInputError before anything is launched.
    """
    device = x.device
    launch.require_device(device)
    checks.check_tensor("x", x, (-1, -1), checks.FLOATS, device, dense_dims=1)
    T, C = x.shape
    W = check_taps(weight, bias, C, device)
    checks.check_tensor("pool", pool, (-1, W - 1, C), checks.FLOATS, device, dense_dims=2)
    lengths = sequence_lengths(cu_seqlens, T)
    N = len(lengths)
    slots = pool.shape[0]
    checks.check_slots("slot_ids", slot_ids, (N,), slots, device, unique=True)
    if initial_slot_ids is None:
        initial_slot_ids = slot_ids
    else:
        checks.check_slots("initial_slot_ids", initial_slot_ids, (N,), slots, device, unique=False)
    stops = checked_exports(exports, slots, slot_ids, initial_slot_ids)
    if out is None:
        out = torch.empty((T, C), dtype=x.dtype, device=device)
    else:
        checks.check_tensor("out", out, (T, C), (x.dtype,), device)
    index = chunk_index(lengths, CHUNK_TOKENS, device)
    spans = spans_of(chunk_index(lengths, CHUNK_TOKENS, device, stops), stops)
    blocks = index.chunk_count + (N if 0 in lengths else 0)
    _convolve[(triton.cdiv(C, CHANNELS) * blocks,)](
        x,
        weight,
        bias,
        out,
        pool,
        slot_ids,
        initial_slot_ids,
        slots,
        x.stride(0),
        pool.stride(0),
        index.chunks,
        index.chunk_count,
        spans.sequences,
        spans.spans,
        C,
        W,
        launch.next_power_of_2(W - 1),
        CHUNK_TOKENS,
        CHANNELS,
        bias is not None,
        activation,
        num_warps=4,
    )
    return out


def check_taps(weight: Tensor, bias: Tensor | None, C: int, device: torch.device) -> int:
    """Check the taps [C, W] and bias [C] of a convolution over C channels; returns W."""
    checks.check_tensor("weight", weight, (C, -1), checks.FLOATS, device)
    W = int(weight.shape[1])
    checks.require(2 <= W <= MOST_TAPS, f"weight has {W} taps, needed 2 to {MOST_TAPS}")
    if bias is not None:
        checks.check_tensor("bias", bias, (C,), (weight.dtype,), device)
    return W
