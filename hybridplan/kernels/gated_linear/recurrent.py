"""Decode of gated linear attention with one decay per key channel, states in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch
from hybridplan.kernels.common.slots import check_decode_slots, check_id_layout, decode_sizes

_PASSED = checks.Passed()


@triton.jit
def _decode(
    q,
    k,
    v,
    g,
    o,
    pool,
    slots,
    accepted,
    stride_slot,
    pool_slots,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    D: tl.constexpr,
    HAS_ACCEPTED: tl.constexpr,
):
    pid = tl.program_id(0)
    NV: tl.constexpr = V // BV
    iv = pid % NV
    h = (pid // NV) % H
    b = pid // (NV * H)
    column = 0
    if HAS_ACCEPTED:
        column = tl.minimum(tl.maximum(tl.load(accepted + b) - 1, 0), D - 1)
    origin = tl.load(slots + b * D + column)
    if (origin < 0) | (origin >= pool_slots):
        return
    ok = tl.arange(0, KP)
    ov = iv * BV + tl.arange(0, BV)
    in_k = ok < K
    cell = h * (V * K) + ov[:, None] * K + ok[None, :]
    start = pool + origin.to(tl.int64) * stride_slot + cell
    S = tl.load(start, mask=in_k[None, :], other=0.0).to(tl.float32)
    for t in range(D):
        row = (b.to(tl.int64) * D + t) * H + h
        x = tl.load(v + row * V + ov).to(tl.float32)
        bk = tl.load(k + row * K + ok, mask=in_k, other=0.0).to(tl.float32)
        bq = tl.load(q + row * K + ok, mask=in_k, other=0.0).to(tl.float32)
        decay = tl.exp(tl.load(g + row * K + ok, mask=in_k, other=0.0).to(tl.float32))
        S = S * decay[None, :] + x[:, None] * bk[None, :]
        y = tl.sum(S * (bq * scale)[None, :], 1)
        tl.store(o + row * V + ov, y.to(o.dtype.element_ty))
        if D > 1:
            target = tl.load(slots + b * D + t)
            kept = tl.where((target >= 0) & (target < pool_slots), K, 0)
            at = pool + target.to(tl.int64) * stride_slot + cell
            tl.store(at, S.to(pool.dtype.element_ty), mask=(ok < kept)[None, :])
    if D == 1:
        tl.store(start, S.to(pool.dtype.element_ty), mask=in_k[None, :])


_launch = launch.Launcher(_decode)


def recurrent_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    pool: Tensor,
    slots: Tensor,
    *,
    accepted: Tensor | None = None,
    scale: float = 1.0,
    out: Tensor | None = None,
    trust_ids: bool = False,
) -> Tensor:
    """Advance each request by D tokens; returns o [B*D, H, V] and updates ``pool`` in place.

    q, k [B*D, H, K], v [B*D, H, V]: bf16, fp16 or fp32, one dtype, contiguous, tokens of one
    request are neighbours. g [B*D, H, K]: natural-log decay of each channel, finite, not positive.
    pool: [slots, H, V, K] fp32, fp16 or bf16. slots, accepted, trust_ids and what is raised: as
    :func:`hybridplan.kernels.scalar_decay.recurrent.recurrent_step`.
    """
    key = _PASSED.key(q, k, v, g, pool, slots, accepted, out)
    if not _PASSED.has(key):
        check_id_layout(v.device, slots, accepted, "accepted")
        B, D = decode_sizes(slots)
        check_inputs(q, k, v, g, pool, out, B * D)
        _PASSED.add(key)
    B, D = check_decode_slots(slots, accepted, pool.shape[0], trust_ids)
    H, V = v.shape[1:]
    K = q.shape[2]
    if out is None:
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    BV = min(V & -V, 4 if B * H * V <= 1 << 17 else 8)
    _launch(
        (B * H * (V // BV), 1, 1),
        (q, k, v, g, out, pool, slots, accepted),
        (),
        (pool.stride(0), pool.shape[0], float(scale)),
        (H, K, launch.next_power_of_2(K), V, BV, D, accepted is not None),
        num_warps=1,
    )  # fmt: skip
    return out


def check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    pool: Tensor,
    out: Tensor | None,
    rows: int,
) -> None:
    """Check everything but the ids; ``rows`` is the number of tokens, -1 for any."""
    device = v.device
    launch.require_device(device)
    checks.check_tensor("v", v, (rows, -1, -1), checks.FLOATS, device)
    rows, H, V = v.shape
    checks.check_tensor("q", q, (rows, H, -1), (v.dtype,), device)
    K = q.shape[2]
    checks.check_tensor("k", k, (rows, H, K), (v.dtype,), device)
    checks.check_tensor("g", g, (rows, H, K), checks.FLOATS, device)
    checks.require(1 <= K <= 256, f"K is {K}, needed 1 to 256")
    checks.check_tensor("pool", pool, (-1, H, V, K), checks.FLOATS, device, dense_dims=3)
    if out is not None:
        checks.check_tensor("out", out, (rows, H, V), (v.dtype,), device)
