"""Decode step of the delta rule, scalar or per-channel decay, on a paged state pool in place.

One program owns BV rows of one request's state [V, K] for one value head, so a state is read and
written once, and no program waits for another.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from hybridplan.kernels.common.checks import (
    KernelInputError,
    check_slots,
    check_tensor,
    require,
)
from hybridplan.kernels.common.delta_inputs import checked_sizes
from hybridplan.kernels.common.gates import Gate, log_decay, sigmoid
from hybridplan.kernels.common.launch import Launcher, next_power_of_2


@triton.jit
def unit_row(x, EPS: tl.constexpr):
    return x * tl.rsqrt(tl.sum(x * x) + EPS)


@triton.jit
def delta_update(S, q, k, v, decay, beta):
    """One token: S [BV, K] fp32, q scaled, k of unit length -> new S, output row, correction."""
    S = S * decay
    u = (v - tl.sum(S * k[None, :], 1)) * beta
    S = S + u[:, None] * k[None, :]
    return S, tl.sum(S * q[None, :], 1), u


@triton.jit
def _decode(
    q,
    k,
    v,
    x,
    b,
    a_log,
    dt_bias,
    pool,
    slots,
    accepted,
    o,
    q_stride,
    k_stride,
    v_stride,
    pool_stride,
    pool_slots,
    scale,
    lower_bound,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    D: tl.constexpr,
    GATE: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
    L2NORM: tl.constexpr,
    SPECULATIVE: tl.constexpr,
):
    pid = tl.program_id(0)
    NV: tl.constexpr = V // BV
    iv = pid % NV
    hv = (pid // NV) % HV
    n = (pid // (NV * HV)).to(tl.int64)
    h = hv // (HV // H)
    taken = 0
    if SPECULATIVE:
        taken = tl.load(accepted + n) - 1
        if (taken < 0) | (taken >= D):
            return
    slot = tl.load(slots + n * D + taken).to(tl.int64)
    if (slot < 0) | (slot >= pool_slots):
        return
    ok = tl.arange(0, BK)
    ov = iv * BV + tl.arange(0, BV)
    mk = ok < K
    tile = hv * (V * K) + ov[:, None] * K + ok[None, :]
    if BK == K:
        S = tl.load(pool + slot * pool_stride + tile).to(tl.float32)
    else:
        S = tl.load(pool + slot * pool_stride + tile, mask=mk[None, :], other=0.0).to(tl.float32)
    for d in range(D):
        t = n * D + d
        bq = tl.load(q + t * q_stride + h * K + ok, mask=mk, other=0.0).to(tl.float32)
        bk = tl.load(k + t * k_stride + h * K + ok, mask=mk, other=0.0).to(tl.float32)
        bv = tl.load(v + t * v_stride + hv * V + ov).to(tl.float32)
        beta = tl.load(b + t * HV + hv).to(tl.float32)
        if BETA_LOGIT:
            beta = sigmoid(beta)
        if GATE == 0:
            decay = 1.0
        else:
            al = 0.0
            bias = 0.0
            if PER_CHANNEL:
                bx = tl.load(x + (t * HV + hv) * K + ok, mask=mk, other=0.0).to(tl.float32)
                if GATE > 1:
                    al = tl.load(a_log + hv)
                    bias = tl.load(dt_bias + hv * K + ok, mask=mk, other=0.0)
                decay = tl.exp(log_decay(bx, al, bias, lower_bound, GATE))[None, :]
            else:
                bx = tl.load(x + t * HV + hv).to(tl.float32)
                if GATE > 1:
                    al = tl.load(a_log + hv)
                    bias = tl.load(dt_bias + hv)
                decay = tl.exp(log_decay(bx, al, bias, lower_bound, GATE))
        if L2NORM:
            bq = unit_row(bq, 1e-6)
            bk = unit_row(bk, 1e-6)
        S, row, _ = delta_update(S, bq * scale, bk, bv, decay, beta)
        tl.store(o + (t * HV + hv) * V + ov, row.to(o.dtype.element_ty))
        if D > 1:
            slot = tl.load(slots + n * D + d).to(tl.int64)
        if (slot >= 0) & (slot < pool_slots):
            tl.store(
                pool + slot * pool_stride + tile, S.to(pool.dtype.element_ty), mask=mk[None, :]
            )


@functools.lru_cache(maxsize=1024)
def state_rows(requests: int, value_heads: int, V: int, state_bytes: int) -> int:
    """State rows of one program: few for small batches (more programs), more for large ones."""
    rows = 4 if requests * value_heads < 256 else 8
    if state_bytes == 2:
        rows *= 4 if rows == 8 else 2
    return next(r for r in (rows, 16, 8, 4) if r <= rows and V % r == 0)


def decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate_input: torch.Tensor | None,
    beta: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor | None,
    gate: Gate,
    a_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float,
    beta_is_logit: bool,
    l2norm: bool,
    scale: float | None,
    out: torch.Tensor | None,
    trust_ids: bool,
    per_channel: bool,
    rows: int | None = None,
) -> torch.Tensor:
    """Shared body of the two operators' ``recurrent_step``; see their docstrings."""
    z = checked_sizes(q, k, v, gate_input, beta, pool, gate, a_log, dt_bias, out, per_channel)
    require(slots.dim() in (1, 2), f"slots has {slots.dim()} dimensions, needed 1 or 2")
    requests, drafts = (slots.shape[0], 1) if slots.dim() == 1 else slots.shape
    if z.tokens != requests * drafts:
        raise KernelInputError(
            f"slots {tuple(slots.shape)} names {requests * drafts} tokens, q holds {z.tokens}"
        )
    if not trust_ids:
        check_slots("slots", slots, slots.shape, z.slots, q.device, unique=True)
    if accepted is not None:
        check_tensor("accepted", accepted, (requests,), (torch.int32,), q.device)
    if out is None:
        out = torch.empty((z.tokens, z.HV, z.V), dtype=q.dtype, device=q.device)
    if requests == 0:
        return out
    BV = rows or state_rows(requests, z.HV, z.V, pool.element_size())
    tensors = (q, k, v, gate_input, beta, a_log, dt_bias, pool, slots, accepted, out)
    flags = (drafts, int(gate), per_channel, beta_is_logit, l2norm, accepted is not None)
    _launch(
        (requests * z.HV * (z.V // BV), 1, 1),
        tensors,
        (),
        (
            q.stride(0), k.stride(0), v.stride(0), pool.stride(0), z.slots,
            z.K**-0.5 if scale is None else float(scale), float(lower_bound),
        ),
        (z.H, z.HV, z.K, z.V, next_power_of_2(z.K), BV, *flags),
        num_warps=1,
    )  # fmt: skip
    return out


_launch = Launcher(_decode)
