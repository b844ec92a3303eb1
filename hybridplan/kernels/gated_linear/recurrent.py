"""Decode of gated linear attention with one decay per key channel, states in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch

_INPUTS = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def _decode(
    q,
    k,
    v,
    g,
    o,
    pool,
    slot_ids,
    accepted,
    stride_slot,
    pool_slots,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    TOKENS: tl.constexpr,
    SLOTS: tl.constexpr,
    HAS_ACCEPTED: tl.constexpr,
):
    pid = tl.program_id(0)
    NV: tl.constexpr = V // BV
    iv = pid % NV
    h = (pid // NV) % H
    b = pid // (NV * H)
    column = 0
    if HAS_ACCEPTED:
        column = tl.minimum(tl.maximum(tl.load(accepted + b) - 1, 0), SLOTS - 1)
    origin = tl.load(slot_ids + b * SLOTS + column)
    if (origin < 0) | (origin >= pool_slots):
        return
    ok = tl.arange(0, KP)
    ov = iv * BV + tl.arange(0, BV)
    in_k = ok < K
    cell = h * (V * K) + ov[:, None] * K + ok[None, :]
    start = pool + origin.to(tl.int64) * stride_slot + cell
    S = tl.load(start, mask=in_k[None, :], other=0.0).to(tl.float32)
    b = b.to(tl.int64)
    for t in range(TOKENS):
        row = (b * TOKENS + t) * H + h
        x = tl.load(v + row * V + ov).to(tl.float32)
        bk = tl.load(k + row * K + ok, mask=in_k, other=0.0).to(tl.float32)
        bq = tl.load(q + row * K + ok, mask=in_k, other=0.0).to(tl.float32)
        decay = tl.exp(tl.load(g + row * K + ok, mask=in_k, other=0.0).to(tl.float32))
        S = S * decay[None, :] + x[:, None] * bk[None, :]
        y = tl.sum(S * (bq * scale)[None, :], 1)
        tl.store(o + row * V + ov, y.to(o.dtype.element_ty))
        if SLOTS > 1:
            target = tl.load(slot_ids + b * SLOTS + t)
            kept = tl.where((target >= 0) & (target < pool_slots), K, 0)
            at = pool + target.to(tl.int64) * stride_slot + cell
            tl.store(at, S.to(pool.dtype.element_ty), mask=(ok < kept)[None, :])
    if SLOTS == 1:
        tl.store(start, S.to(pool.dtype.element_ty), mask=in_k[None, :])


def recurrent_gated_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    pool: Tensor,
    slot_ids: Tensor,
    *,
    accepted: Tensor | None = None,
    scale: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Advance B requests by D tokens each; the states in ``pool`` change in place.

    q, k: [B, D, H, K]; v: [B, D, H, V] (or all without D for one token), bf16, fp16 or fp32,
    contiguous; g: the natural-log decay of each channel in k's shape, finite, not positive.
    pool: [slots, H, V, K] fp32, fp16 or bf16. slot_ids, accepted and padding as in
    recurrent_scalar_decay. Returns v's shape and dtype.
    Raises KernelInputError before anything is launched.
    """
    device = v.device
    launch.require_device(device)
    checks.require(v.dim() in (3, 4), f"v has {v.dim()} dimensions, needed 3 or 4")
    leading = tuple(v.shape[:-2])
    H, V = v.shape[-2:]
    K = q.shape[-1]
    checks.check_tensor("v", v, (*leading, H, V), _INPUTS, device)
    checks.check_tensor("q", q, (*leading, H, K), (v.dtype,), device)
    checks.check_tensor("k", k, (*leading, H, K), (v.dtype,), device)
    checks.check_tensor("g", g, (*leading, H, K), _INPUTS, device)
    checks.require(1 <= K <= 256, f"K is {K}, needed 1 to 256")
    checks.check_tensor("pool", pool, (-1, H, V, K), checks.FLOATS, device, dense_dims=3)
    B = leading[0]
    D = leading[1] if len(leading) == 2 else 1
    columns = slot_ids.shape[1] if slot_ids.dim() == 2 else 1
    checks.require(columns in (1, D), f"slot_ids has {columns} columns for {D} tokens, needed {D}")
    wanted = (B, columns) if slot_ids.dim() == 2 else (B,)
    checks.check_slots("slot_ids", slot_ids, wanted, pool.shape[0], device, unique=True)
    if accepted is not None:
        checks.check_tensor("accepted", accepted, (B,), (torch.int32,), device)
    if out is None:
        out = torch.empty_like(v)
    else:
        checks.check_tensor("out", out, tuple(v.shape), (v.dtype,), device)
    BV = min(V & -V, 4 if B * H * V <= 1 << 17 else 8)
    _decode[(B * H * (V // BV),)](
        q,
        k,
        v,
        g,
        out,
        pool,
        slot_ids,
        accepted,
        pool.stride(0),
        pool.shape[0],
        scale,
        H,
        K,
        launch.next_power_of_2(K),
        V,
        BV,
        D,
        columns,
        accepted is not None,
        num_warps=1,
    )
    return out
