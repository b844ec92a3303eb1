"""Decode of the short causal convolution: a few tokens per request behind its stored window."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch
from hybridplan.kernels.short_conv.chunk import check_taps

MOST_TOKENS = 16


@triton.jit
def _update(
    x,
    weight,
    bias,
    y,
    pool,
    slot_ids,
    accepted,
    pool_slots,
    stride_request,
    stride_token,
    stride_slot,
    C,
    W: tl.constexpr,
    TOKENS: tl.constexpr,
    SLOTS: tl.constexpr,
    LP: tl.constexpr,
    BC: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    HAS_ACCEPTED: tl.constexpr,
):
    WINDOW: tl.constexpr = W - 1
    NC = tl.cdiv(C, BC)
    b = tl.program_id(0) // NC
    oc = (tl.program_id(0) % NC) * BC + tl.arange(0, BC)
    in_c = oc < C
    column = 0
    if HAS_ACCEPTED:
        column = tl.minimum(tl.maximum(tl.load(accepted + b) - 1, 0), SLOTS - 1)
    origin = tl.load(slot_ids + b * SLOTS + column)
    if (origin < 0) | (origin >= pool_slots):
        return
    # the line: the window's rows, then the new tokens'
    r = tl.arange(0, LP)
    old = (r < WINDOW)[:, None] & in_c[None, :]
    new = ((r >= WINDOW) & (r < WINDOW + TOKENS))[:, None] & in_c[None, :]
    at_old = pool + origin.to(tl.int64) * stride_slot + r[:, None] * C + oc[None, :]
    at_new = x + b.to(tl.int64) * stride_request + (r - WINDOW)[:, None] * stride_token
    line = tl.load(at_old, mask=old, other=0.0).to(tl.float32)
    line += tl.load(at_new + oc[None, :], mask=new, other=0.0).to(tl.float32)
    # a snapshot may go where the window was: every thread has read before any writes
    tl.debug_barrier()
    for t in tl.static_range(TOKENS):
        reads = ((r >= t) & (r < t + W))[:, None] & in_c[None, :]
        taps = tl.load(weight + oc[None, :] * W + (r - t)[:, None], mask=reads, other=0.0)
        acc = tl.sum(line * taps.to(tl.float32), 0)
        if HAS_BIAS:
            acc += tl.load(bias + oc, mask=in_c, other=0.0).to(tl.float32)
        if SILU:
            acc = acc * tl.sigmoid(acc)
        at_y = y + (b.to(tl.int64) * TOKENS + t) * C + oc
        tl.store(at_y, acc.to(y.dtype.element_ty), mask=in_c)
        if SLOTS > 1 or t == TOKENS - 1:
            target = origin
            if SLOTS > 1:
                target = tl.load(slot_ids + b * SLOTS + t)
            last = tl.where((target >= 0) & (target < pool_slots), t + W, 0)
            kept = ((r > t) & (r < last))[:, None] & in_c[None, :]
            at = pool + target.to(tl.int64) * stride_slot + (r - t - 1)[:, None] * C
            tl.store(at + oc[None, :], line.to(pool.dtype.element_ty), mask=kept)


def recurrent_short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: Tensor,
    slot_ids: Tensor,
    *,
    accepted: Tensor | None = None,
    activation: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """Convolve D new tokens of B requests; the windows in ``pool`` change in place.

    x: [B, D, C] or [B, C], bf16, fp16 or fp32, channels contiguous, D up to 16; weight, bias, pool
    as in chunk_short_conv.
    slot_ids: int32 [B], one slot per request, read and written; or [B, D], the speculative form:
    the window after token t goes to column t, and the old window is read from column
    ``accepted`` - 1. A request whose old slot is -1 is padding: nothing of it is written. A column
    of -1 takes no snapshot.
    accepted: int32 [B], tokens of the previous window that were accepted (1 to D); default 1.
    Returns x's shape and dtype. Raises KernelInputError before anything is launched.
    """
    device = x.device
    launch.require_device(device)
    shape = tuple(x.shape)
    if x.dim() == 2:
        x = x.unsqueeze(1)
    checks.check_tensor("x", x, (-1, -1, -1), checks.FLOATS, device, dense_dims=1)
    B, D, C = x.shape
    checks.require(1 <= D <= MOST_TOKENS, f"x has {D} tokens a request, needed 1 to {MOST_TOKENS}")
    W = check_taps(weight, bias, C, device)
    checks.check_tensor("pool", pool, (-1, W - 1, C), checks.FLOATS, device, dense_dims=2)
    columns = slot_ids.shape[1] if slot_ids.dim() == 2 else 1
    checks.require(columns in (1, D), f"slot_ids has {columns} columns for {D} tokens, needed {D}")
    wanted = (B, columns) if slot_ids.dim() == 2 else (B,)
    checks.check_slots("slot_ids", slot_ids, wanted, pool.shape[0], device, unique=True)
    if accepted is not None:
        checks.check_tensor("accepted", accepted, (B,), (torch.int32,), device)
    if out is None:
        out = torch.empty(shape, dtype=x.dtype, device=device)
    else:
        checks.check_tensor("out", out, shape, (x.dtype,), device)
    BC = 256
    _update[(triton.cdiv(C, BC) * B,)](
        x,
        weight,
        bias,
        out,
        pool,
        slot_ids,
        accepted,
        pool.shape[0],
        x.stride(0),
        x.stride(1),
        pool.stride(0),
        C,
        W,
        D,
        columns,
        launch.next_power_of_2(W - 1 + D),
        BC,
        bias is not None,
        activation,
        accepted is not None,
        num_warps=2,
    )
    return out
