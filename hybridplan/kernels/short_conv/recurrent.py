"""Decode of the short causal convolution: a few tokens per request behind its stored window."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch
from hybridplan.kernels.common.slots import check_decode_slots, check_id_layout, decode_sizes
from hybridplan.kernels.short_conv.chunk import check_inputs

MOST_TOKENS = 16
_PASSED = checks.Passed()


@triton.jit
def _update(
    x,
    weight,
    bias,
    y,
    pool,
    slots,
    accepted,
    pool_slots,
    stride_x,
    stride_slot,
    C,
    W: tl.constexpr,
    D: tl.constexpr,
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
        column = tl.minimum(tl.maximum(tl.load(accepted + b) - 1, 0), D - 1)
    origin = tl.load(slots + b * D + column)
    if (origin < 0) | (origin >= pool_slots):
        return
    # the line: the window's rows, then the new tokens'
    r = tl.arange(0, LP)
    old = (r < WINDOW)[:, None] & in_c[None, :]
    new = ((r >= WINDOW) & (r < WINDOW + D))[:, None] & in_c[None, :]
    at_old = pool + origin.to(tl.int64) * stride_slot + r[:, None] * C + oc[None, :]
    at_new = x + (b.to(tl.int64) * D + (r - WINDOW))[:, None] * stride_x
    line = tl.load(at_old, mask=old, other=0.0).to(tl.float32)
    line += tl.load(at_new + oc[None, :], mask=new, other=0.0).to(tl.float32)
    # a snapshot may go where the window was: every thread has read before any writes
    tl.debug_barrier()
    for t in tl.static_range(D):
        reads = ((r >= t) & (r < t + W))[:, None] & in_c[None, :]
        taps = tl.load(weight + oc[None, :] * W + (r - t)[:, None], mask=reads, other=0.0)
        acc = tl.sum(line * taps.to(tl.float32), 0)
        if HAS_BIAS:
            acc += tl.load(bias + oc, mask=in_c, other=0.0).to(tl.float32)
        if SILU:
            acc = acc * tl.sigmoid(acc)
        at_y = y + (b.to(tl.int64) * D + t) * C + oc
        tl.store(at_y, acc.to(y.dtype.element_ty), mask=in_c)
        target = origin
        if D > 1:
            target = tl.load(slots + b * D + t)
        last = tl.where((target >= 0) & (target < pool_slots), t + W, 0)
        kept = ((r > t) & (r < last))[:, None] & in_c[None, :]
        at = pool + target.to(tl.int64) * stride_slot + (r - t - 1)[:, None] * C
        tl.store(at + oc[None, :], line.to(pool.dtype.element_ty), mask=kept)


_launch = launch.Launcher(_update)


def recurrent_step(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: Tensor,
    slots: Tensor,
    *,
    accepted: Tensor | None = None,
    activation: bool = True,
    out: Tensor | None = None,
    trust_ids: bool = False,
) -> Tensor:
    """Advance each request by D tokens, at most 16; returns y [B*D, C], windows change in place.

    x [B*D, C], tokens of one request are neighbours; weight, bias and pool as
    :func:`hybridplan.kernels.short_conv.chunk.chunk_prefill`. slots, accepted, trust_ids and what
    is raised: as :func:`hybridplan.kernels.scalar_decay.recurrent.recurrent_step`, of windows.
    """
    key = _PASSED.key(x, weight, bias, pool, slots, accepted, out, also=activation)
    if not _PASSED.has(key):
        check_id_layout(x.device, slots, accepted, "accepted")
        B, D = decode_sizes(slots)
        check_inputs(x, weight, bias, pool, out)
        checks.require(x.shape[0] == B * D, f"x has {x.shape[0]} rows, slots ask for {B} x {D}")
        checks.require(D <= MOST_TOKENS, f"slots has {D} columns, needed at most {MOST_TOKENS}")
        _PASSED.add(key)
    B, D = check_decode_slots(slots, accepted, pool.shape[0], trust_ids)
    C, W = weight.shape
    if out is None:
        out = torch.empty((B * D, C), dtype=x.dtype, device=x.device)
    BC = 256
    _launch(
        (-(-C // BC) * B, 1, 1),
        (x, weight, bias, out, pool, slots, accepted),
        (),
        (pool.shape[0], x.stride(0), pool.stride(0), C),
        (W, D, launch.next_power_of_2(W - 1 + D), BC, bias is not None, activation,
         accepted is not None),
        num_warps=2,
    )  # fmt: skip
    return out
