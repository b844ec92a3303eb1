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
from hybridplan.kernels.scalar_decay.gates import Gate, GateKind, gate_arguments, mamba_step

_INPUTS = (torch.bfloat16, torch.float16, torch.float32)
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
    slot_ids,
    accepted,
    stride_slot,
    pool_slots,
    q_request,
    q_token,
    k_request,
    k_token,
    v_request,
    v_token,
    scale,
    G: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    TOKENS: tl.constexpr,
    SLOTS: tl.constexpr,
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
        column = tl.minimum(tl.maximum(tl.load(accepted + b) - 1, 0), SLOTS - 1)
    origin = tl.load(slot_ids + b * SLOTS + column)
    if (origin < 0) | (origin >= pool_slots):
        return
    ok = tl.arange(0, KP)
    ov = iv * BV + tl.arange(0, BV)
    in_k = ok < K
    cell = hv * (V * K) + ov[:, None] * K + ok[None, :]
    start = pool + origin.to(tl.int64) * stride_slot + cell
    S = tl.load(start, mask=in_k[None, :], other=0.0).to(tl.float32)
    b = b.to(tl.int64)
    for t in range(TOKENS):
        x = tl.load(v + b * v_request + t * v_token + hv * V + ov).to(tl.float32)
        bk = tl.load(k + b * k_request + t * k_token + h * K + ok, mask=in_k, other=0.0)
        bq = tl.load(q + b * q_request + t * q_token + h * K + ok, mask=in_k, other=0.0)
        row = (b * TOKENS + t) * HV + hv
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
        if SLOTS > 1:
            target = tl.load(slot_ids + b * SLOTS + t)
            kept = tl.where((target >= 0) & (target < pool_slots), K, 0)
            at = pool + target.to(tl.int64) * stride_slot + cell
            tl.store(at, S.to(pool.dtype.element_ty), mask=(ok < kept)[None, :])
    if SLOTS == 1:
        tl.store(start, S.to(pool.dtype.element_ty), mask=in_k[None, :])


def recurrent_scalar_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Gate,
    pool: Tensor,
    slot_ids: Tensor,
    *,
    accepted: Tensor | None = None,
    skip: Tensor | None = None,
    scale: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Advance B requests by D tokens each; the states in ``pool`` change in place.

    q, k: [B, D, G, K]; v: [B, D, HV, V] (or all without D for one token); one dtype, bf16, fp16 or
    fp32; rows may be slices of a wider row. gate: HeadDecay, or TokenDecay or MambaStep with
    [B, D, HV] (or [B, HV]).
    pool: [slots, HV, V, K] fp32, fp16 or bf16. Arithmetic is fp32; a state is rounded to the pool's
    dtype only where it is stored.
    slot_ids: int32 [B], one slot per request, read and written; or [B, D], the speculative form:
    the state after token t goes to column t, and the initial state is read from column
    ``accepted`` - 1. A request whose initial slot is -1 is padding: nothing of it is written. A
    column of -1 takes no snapshot.
    accepted: int32 [B], tokens of the previous window that were accepted (1 to D); default 1.
    skip: fp32 [HV], Mamba-2's D. Returns v's shape and dtype.
    Raises KernelInputError before anything is launched.
    """
    device = v.device
    launch.require_device(device)
    shape = v.shape
    if v.dim() == 3:
        q, k, v = (x.unsqueeze(1) if x.dim() == 3 else x for x in (q, k, v))
    checks.check_tensor("v", v, (-1, -1, -1, -1), _INPUTS, device, dense_dims=2)
    B, D, HV, V = v.shape
    checks.check_tensor("q", q, (B, D, -1, -1), (v.dtype,), device, dense_dims=2)
    G, K = q.shape[2:]
    checks.check_tensor("k", k, (B, D, G, K), (v.dtype,), device, dense_dims=2)
    checks.require(G > 0 and HV % G == 0, f"{HV} v-heads are not a multiple of {G} q/k heads")
    checks.require(1 <= K <= 256, f"K is {K}, needed 1 to 256")
    args = gate_arguments(gate, tuple(shape[:-2]), HV, device)
    checks.check_tensor("pool", pool, (-1, HV, V, K), checks.FLOATS, device, dense_dims=3)
    columns = slot_ids.shape[1] if slot_ids.dim() == 2 else 1
    checks.require(columns in (1, D), f"slot_ids has {columns} columns for {D} tokens, needed {D}")
    wanted = (B, columns) if slot_ids.dim() == 2 else (B,)
    checks.check_slots("slot_ids", slot_ids, wanted, pool.shape[0], device, unique=True)
    if accepted is not None:
        checks.check_tensor("accepted", accepted, (B,), (torch.int32,), device)
    if skip is not None:
        checks.check_tensor("skip", skip, (HV,), (torch.float32,), device)
    if out is None:
        out = torch.empty(shape, dtype=v.dtype, device=device)
    else:
        checks.check_tensor("out", out, tuple(shape), (v.dtype,), device)
    KP = launch.next_power_of_2(K)
    BV = min(V & -V, 8 if pool.dtype == torch.float32 else 32)
    if B * HV * V <= 1 << 17:
        BV = min(BV, 4)
    _decode[(B * HV * (V // BV),)](
        q,
        k,
        v,
        args.values,
        args.a_log,
        args.dt_bias,
        skip,
        out,
        pool,
        slot_ids,
        accepted,
        pool.stride(0),
        pool.shape[0],
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        scale,
        G,
        HV,
        K,
        KP,
        V,
        BV,
        D,
        columns,
        int(args.kind),
        args.dt_bias is not None,
        args.softplus,
        skip is not None,
        accepted is not None,
        num_warps=1,
    )
    return out
