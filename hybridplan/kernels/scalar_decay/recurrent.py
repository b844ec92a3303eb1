"""Decode of the scalar-decay recurrence: read, update and write each request's state in place.

A program owns BV rows of one head's state and one warp, so that many small reads are in flight;
at every batch this beats larger tiles, because the time is the state's bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch
from hybridplan.kernels.common.slots import check_decode_slots, check_id_layout, decode_sizes
from hybridplan.kernels.scalar_decay.gates import (
    Gate,
    GateArguments,
    GateKind,
    check_gate,
    gate_arguments,
    mamba_step,
)

_PASSED = checks.Passed()
_PER_HEAD = tl.constexpr(int(GateKind.PER_HEAD))
_MAMBA = tl.constexpr(int(GateKind.MAMBA))


@triton.jit
def _decode(
    q,
    k,
    v,
    gate,
    a_log,
    dt_bias,
    skip,
    o,
    pool,
    slots,
    accepted,
    stride_slot,
    pool_slots,
    stride_q,
    stride_k,
    stride_v,
    scale,
    G: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    D: tl.constexpr,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    HAS_ACCEPTED: tl.constexpr,
):
    pid = tl.program_id(0)
    NV: tl.constexpr = V // BV
    iv = pid % NV
    hv = (pid // NV) % HV
    b = pid // (NV * HV)
    h = hv // (HV // G)
    column = 0
    if HAS_ACCEPTED:
        column = tl.minimum(tl.maximum(tl.load(accepted + b) - 1, 0), D - 1)
    origin = tl.load(slots + b * D + column)
    if (origin < 0) | (origin >= pool_slots):
        return
    ok = tl.arange(0, KP)
    ov = iv * BV + tl.arange(0, BV)
    in_k = ok < K
    cell = hv * (V * K) + ov[:, None] * K + ok[None, :]
    start = pool + origin.to(tl.int64) * stride_slot + cell
    S = tl.load(start, mask=in_k[None, :], other=0.0).to(tl.float32)
    for t in range(D):
        token = b.to(tl.int64) * D + t
        x = tl.load(v + token * stride_v + hv * V + ov).to(tl.float32)
        bk = tl.load(k + token * stride_k + h * K + ok, mask=in_k, other=0.0)
        bq = tl.load(q + token * stride_q + h * K + ok, mask=in_k, other=0.0)
        row = token * HV + hv
        write = x
        if KIND == _PER_HEAD:
            log_decay = tl.load(gate + hv)
        elif KIND == _MAMBA:
            bias = 0.0
            if HAS_BIAS:
                bias = tl.load(dt_bias + hv)
            step = mamba_step(tl.load(gate + row), bias, HAS_BIAS, SOFTPLUS)
            log_decay = -tl.exp(tl.load(a_log + hv)) * step
            write = x * step
        else:
            log_decay = tl.load(gate + row).to(tl.float32)
        S = S * tl.exp(log_decay) + write[:, None] * bk.to(tl.float32)[None, :]
        y = tl.sum(S * (bq.to(tl.float32) * scale)[None, :], 1)
        if HAS_SKIP:
            y += tl.load(skip + hv) * x
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
    gate: Gate,
    pool: Tensor,
    slots: Tensor,
    *,
    accepted: Tensor | None = None,
    skip: Tensor | None = None,
    scale: float = 1.0,
    out: Tensor | None = None,
    trust_ids: bool = False,
) -> Tensor:
    """Advance each request by D tokens; returns o [B*D, HV, V] and updates ``pool`` in place.

    q, k [B*D, G, K], v [B*D, HV, V]: bf16, fp16 or fp32, one dtype, tokens of one request are
    neighbours; only heads and channels need be contiguous. gate: HeadDecay, TokenDecay [B*D, HV] or
    MambaStep [B*D, HV]. skip: fp32 [HV], Mamba-2's D.
    pool: [slots, HV, V, K] fp32, fp16 or bf16; arithmetic is fp32, a state is rounded to the
    pool's dtype only where it is stored.

    slots: int32 [B] (D = 1), read and written; or [B, D], where token d's state goes to slots[n, d]
    and the state is read from slots[n, accepted[n] - 1], or slots[n, 0] without ``accepted`` (int32
    [B], 1 to D, the tokens of the last call that were kept). A request whose read slot is -1 is
    padding: its output rows and all slots stay as they are. A written slot of -1 drops that state.

    Raises KernelInputError before the launch on wrong shapes, dtypes, devices, layouts and slot
    ids; ``trust_ids`` skips reading the ids.
    """
    args = gate_arguments(gate)
    given = (q, k, v, pool, slots, accepted, skip, out, args.values, args.a_log, args.dt_bias)
    key = _PASSED.key(*given, also=(args.kind, args.softplus))
    if not _PASSED.has(key):
        check_id_layout(v.device, slots, accepted, "accepted")
        B, D = decode_sizes(slots)
        _check(q, k, v, args, pool, skip, out, B * D)
        _PASSED.add(key)
    B, D = check_decode_slots(slots, accepted, pool.shape[0], trust_ids)
    G, K = q.shape[1:]
    HV, V = v.shape[1:]
    if out is None:
        out = torch.empty((B * D, HV, V), dtype=v.dtype, device=v.device)
    KP = launch.next_power_of_2(K)
    BV = min(V & -V, 8 if pool.dtype == torch.float32 else 32)
    if B * HV * V <= 1 << 17:
        BV = min(BV, 4)
    _launch(
        (B * HV * (V // BV), 1, 1),
        (q, k, v, args.values, args.a_log, args.dt_bias, skip, out, pool, slots, accepted),
        (),
        (pool.stride(0), pool.shape[0], q.stride(0), k.stride(0), v.stride(0), float(scale)),
        (G, HV, K, KP, V, BV, D, int(args.kind), args.dt_bias is not None, args.softplus,
         skip is not None, accepted is not None),
        num_warps=1,
    )  # fmt: skip
    return out


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    args: GateArguments,
    pool: Tensor,
    skip: Tensor | None,
    out: Tensor | None,
    rows: int,
) -> None:
    device = v.device
    launch.require_device(device)
    checks.check_tensor("v", v, (rows, -1, -1), checks.FLOATS, device, dense_dims=2)
    HV, V = v.shape[1:]
    checks.check_tensor("q", q, (rows, -1, -1), (v.dtype,), device, dense_dims=2)
    G, K = q.shape[1:]
    checks.check_tensor("k", k, (rows, G, K), (v.dtype,), device, dense_dims=2)
    checks.require(G > 0 and HV % G == 0, f"{HV} v-heads are not a multiple of {G} q/k heads")
    checks.require(1 <= K <= 256, f"K is {K}, needed 1 to 256")
    check_gate(args, (rows,), HV, device)
    checks.check_tensor("pool", pool, (-1, HV, V, K), checks.FLOATS, device, dense_dims=3)
    if skip is not None:
        checks.check_tensor("skip", skip, (HV,), (torch.float32,), device)
    if out is not None:
        checks.check_tensor("out", out, (rows, HV, V), (v.dtype,), device)
