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
from hybridplan.kernels.common.slots import Export, check_id_layout, check_prefill_slots
from hybridplan.kernels.common.spans import spans_of
from hybridplan.kernels.common.varlen import chunk_index, sequence_lengths

CHUNK_TOKENS = 64
CHANNELS = 512
WARPS = 2
MOST_TAPS = 4
_PASSED = checks.Passed()


@triton.jit
def _token(rows, stride_x, i, tokens, C, oc):
    """Channels of token i of a block, as stored; nothing past the block's end."""
    inside = oc < tl.where(i < tokens, C, 0)
    return tl.load(rows + i * stride_x, mask=inside, other=0.0)


@triton.jit
def _emit(
    y, x0, x1, x2, x3, w0, w1, w2, w3, start, t, end, C, oc, W: tl.constexpr, SILU: tl.constexpr
):
    acc = start + w0 * x0 + w1 * x1
    if W > 2:
        acc += w2 * x2
    if W > 3:
        acc += w3 * x3
    if SILU:
        acc = acc * tl.sigmoid(acc)
    inside = oc < tl.where(t < end, C, 0)
    tl.store(y + t.to(tl.int64) * C + oc, acc.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _convolve(
    x,
    weight,
    bias,
    y,
    pool,
    slots,
    read_slots,
    chunks,
    walks,
    spans,
    pool_slots,
    stride_x,
    stride_slot,
    chunk_count,
    C,
    W: tl.constexpr,
    WP: tl.constexpr,
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
        first = tl.load(spans + 4 * tl.load(walks + 8 * n))
        end = first
    span0 = tl.load(walks + 8 * n)
    span_count = tl.load(walks + 8 * n + 1)
    bos = tl.load(spans + 4 * span0)
    eos = tl.load(spans + 4 * (span0 + span_count - 1) + 1)
    slot = tl.load(slots + n)
    if (slot < 0) | (slot >= pool_slots) | ((first == end) & (bos < eos)):
        return
    origin = tl.load(read_slots + n)
    old = pool + origin.to(tl.int64) * stride_slot
    known = (origin >= 0) & (origin < pool_slots)
    old_end = tl.where(known, bos, bos - WINDOW)
    old_channels = tl.where(known, C, 0)
    # the window slides down the tokens in registers: each input is read once
    before = first.to(tl.int64) * stride_x
    x1 = tl.zeros([BC], tl.float32)
    x2 = tl.zeros([BC], tl.float32)
    x3 = tl.zeros([BC], tl.float32)
    if first > bos:
        x1 = tl.load(x + before - stride_x + oc, mask=in_c, other=0.0).to(tl.float32)
        if W > 2:
            x2 = tl.load(x + before - 2 * stride_x + oc, mask=in_c, other=0.0).to(tl.float32)
        if W > 3:
            x3 = tl.load(x + before - 3 * stride_x + oc, mask=in_c, other=0.0).to(tl.float32)
    else:
        held = oc < old_channels
        x1 = tl.load(old + (W - 2) * C + oc, mask=held, other=0.0).to(tl.float32)
        if W > 2:
            x2 = tl.load(old + (W - 3) * C + oc, mask=held, other=0.0).to(tl.float32)
        if W > 3:
            x3 = tl.load(old + oc, mask=held, other=0.0).to(tl.float32)
    # all taps in one wide load, then a column each; c0 weighs the oldest token
    column = tl.arange(0, 4)
    at_taps = weight + oc[:, None] * W + column[None, :]
    taps = tl.load(at_taps, mask=in_c[:, None] & (column < W)[None, :], other=0.0)
    even, odd = tl.split(tl.reshape(taps.to(tl.float32), [BC, 2, 2]))
    c0, c2 = tl.split(even)
    c1, c3 = tl.split(odd)
    w0 = c1
    w1 = c0
    w2 = c0
    w3 = c0
    if W == 3:
        w0 = c2
        w1 = c1
    if W == 4:
        w0 = c3
        w1 = c2
        w2 = c1
    start = tl.zeros([BC], tl.float32)
    if HAS_BIAS:
        start = tl.load(bias + oc, mask=in_c, other=0.0).to(tl.float32)
    # four rows are computed while the next four are on their way; a store would hold back any
    # load that follows it, because the two might overlap
    rows = x + before + oc
    n0 = _token(rows, stride_x, 0, end - first, C, oc)
    n1 = _token(rows, stride_x, 1, end - first, C, oc)
    n2 = _token(rows, stride_x, 2, end - first, C, oc)
    n3 = _token(rows, stride_x, 3, end - first, C, oc)
    for step in tl.range(0, tl.cdiv(end - first, 4)):
        a0 = n0.to(tl.float32)
        a1 = n1.to(tl.float32)
        a2 = n2.to(tl.float32)
        a3 = n3.to(tl.float32)
        i = 4 * step
        n0 = _token(rows, stride_x, i + 4, end - first, C, oc)
        n1 = _token(rows, stride_x, i + 5, end - first, C, oc)
        n2 = _token(rows, stride_x, i + 6, end - first, C, oc)
        n3 = _token(rows, stride_x, i + 7, end - first, C, oc)
        t = first + i
        _emit(y, a0, x1, x2, x3, w0, w1, w2, w3, start, t, end, C, oc, W, SILU)
        _emit(y, a1, a0, x1, x2, w0, w1, w2, w3, start, t + 1, end, C, oc, W, SILU)
        _emit(y, a2, a1, a0, x1, w0, w1, w2, w3, start, t + 2, end, C, oc, W, SILU)
        _emit(y, a3, a2, a1, a0, w0, w1, w2, w3, start, t + 3, end, C, oc, W, SILU)
        x3 = a1
        x2 = a2
        x1 = a3
    if first == bos:
        place = tl.arange(0, WP)
        wanted = (place < WINDOW)[:, None] & in_c[None, :]
        at_place = place[:, None] * C + oc[None, :]
        for j in range(span0, span0 + span_count):
            stop = tl.load(spans + 4 * j + 1)
            export_slot = tl.load(spans + 4 * j + 2)
            back = stop - WINDOW + place
            at_x = x + back.to(tl.int64)[:, None] * stride_x + oc[None, :]
            window = tl.load(at_x, mask=wanted & (back >= bos)[:, None], other=0.0).to(tl.float32)
            at_kept = old + (back - bos + WINDOW)[:, None] * C + oc[None, :]
            held = tl.load(at_kept, mask=wanted & (back < old_end)[:, None], other=0.0)
            window = (window + held.to(tl.float32)).to(pool.dtype.element_ty)
            kept = tl.where((export_slot >= 0) & (export_slot < pool_slots), WINDOW, 0)
            at_export = pool + export_slot.to(tl.int64) * stride_slot + at_place
            tl.store(at_export, window, mask=(place < kept)[:, None] & in_c[None, :])
            # the final window may lie over the old one: every thread has read before any writes
            tl.debug_barrier()
            last = tl.where(stop == eos, WINDOW, 0)
            at_final = pool + slot.to(tl.int64) * stride_slot + at_place
            tl.store(at_final, window, mask=(place < last)[:, None] & in_c[None, :])


_launch = launch.Launcher(_convolve)


def chunk_prefill(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: Tensor,
    slots: Tensor,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    *,
    read_slots: Tensor | None = None,
    exports: Sequence[Export] = (),
    activation: bool = True,
    out: Tensor | None = None,
    trust_ids: bool = False,
) -> Tensor:
    """Run N packed sequences; returns y [T, C] and writes each final window into ``pool``.

    x [T, C]: bf16, fp16 or fp32, rows may be slices of a wider row. weight [C, W]: newest token
    last, W from 2 to 4; bias [C] or None, in weight's dtype. SiLU follows if ``activation``.
    pool: [slots, W - 1, C], each request's last W - 1 inputs, oldest first; fp32, fp16 or bf16.
    cu_seqlens, slots, read_slots, exports (here of windows), trust_ids and what is raised: as
    :func:`hybridplan.kernels.scalar_decay.chunk.chunk_prefill`.
    """
    device = x.device
    key = _PASSED.key(x, weight, bias, pool, slots, read_slots, out, also=activation)
    if not _PASSED.has(key):
        check_inputs(x, weight, bias, pool, out)
        check_id_layout(device, slots, read_slots)
        _PASSED.add(key)
    T, C = x.shape
    W = weight.shape[1]
    lengths = (T,) if cu_seqlens is None else sequence_lengths(cu_seqlens, T)
    N = len(lengths)
    stops = check_prefill_slots(slots, read_slots, exports, N, pool.shape[0], trust_ids)
    if out is None:
        out = torch.empty((T, C), dtype=x.dtype, device=device)
    index = chunk_index(lengths, CHUNK_TOKENS, device)
    spans = spans_of(chunk_index(lengths, CHUNK_TOKENS, device, stops), stops)
    blocks = index.chunk_count + (N if 0 in lengths else 0)
    reads = slots if read_slots is None else read_slots
    _launch(
        (-(-C // CHANNELS) * blocks, 1, 1),
        (x, weight, bias, out, pool, slots, reads, index.chunks, spans.walks, spans.spans),
        (),
        (pool.shape[0], x.stride(0), pool.stride(0), index.chunk_count, C),
        (W, launch.next_power_of_2(W - 1), CHANNELS, bias is not None, activation),
        num_warps=WARPS,
    )  # fmt: skip
    return out


def check_inputs(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: Tensor,
    out: Tensor | None,
) -> None:
    """Check everything but the ids: x and out are [rows, C]."""
    device = x.device
    launch.require_device(device)
    checks.check_tensor("x", x, (-1, -1), checks.FLOATS, device, dense_dims=1)
    rows, C = x.shape
    checks.check_tensor("weight", weight, (C, -1), checks.FLOATS, device)
    W = weight.shape[1]
    checks.require(2 <= W <= MOST_TAPS, f"weight has {W} taps, needed 2 to {MOST_TAPS}")
    if bias is not None:
        checks.check_tensor("bias", bias, (C,), (weight.dtype,), device)
    checks.check_tensor("pool", pool, (-1, W - 1, C), checks.FLOATS, device, dense_dims=2)
    if out is not None:
        checks.check_tensor("out", out, (rows, C), (x.dtype,), device)
