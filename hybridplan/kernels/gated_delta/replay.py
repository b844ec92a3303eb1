"""Gated delta rule, decode by replay: read the state, keep inputs, fold them in every L tokens.

A step writes one record a token (correction u, unit key k, log decay g) instead of the state. The
state in the pool is that of ``pending`` tokens ago; a step reads it, replays the pending records in
registers, and goes on. Rejecting draft tokens is counting fewer of them as pending. (The idea is
ReplaySSM's, "Cache SSM Inputs, Not State", Dao AI Lab with NVIDIA; this kernel is our own.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hybridplan.kernels.common.checks import FLOATS, check_slots, check_tensor, require
from hybridplan.kernels.common.delta_decode import delta_update, state_rows, unit_row
from hybridplan.kernels.common.delta_inputs import checked_sizes
from hybridplan.kernels.common.gates import Gate, log_decay, sigmoid
from hybridplan.kernels.common.launch import Launcher, next_power_of_2


@dataclass(frozen=True, eq=False)
class Ring:
    """Records of the tokens since each slot's state was folded, and where they lie.

    corrections [slots, rows, HV, V] and keys [slots, rows, H, K] of one float dtype; log_decays
    [slots, rows, HV] fp32; head and pending int32 [slots]: the first pending row and their number.
    rows = fold_tokens + D, so that new rows never overwrite pending ones.
    """

    corrections: torch.Tensor
    keys: torch.Tensor
    log_decays: torch.Tensor
    head: torch.Tensor
    pending: torch.Tensor
    fold_tokens: int

    @property
    def rows(self) -> int:
        """Rows of the ring."""
        return int(self.keys.shape[1])


def make_ring(
    slots: int,
    H: int,
    HV: int,
    K: int,
    V: int,
    fold_tokens: int,
    drafts: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Ring:
    """An empty ring for steps of up to ``drafts`` tokens, folded after ``fold_tokens``."""
    require(fold_tokens >= drafts >= 1, f"fold_tokens {fold_tokens} is below drafts {drafts}")
    rows = fold_tokens + drafts
    return Ring(
        torch.empty(slots, rows, HV, V, dtype=dtype, device=device),
        torch.empty(slots, rows, H, K, dtype=dtype, device=device),
        torch.empty(slots, rows, HV, dtype=torch.float32, device=device),
        torch.zeros(slots, dtype=torch.int32, device=device),
        torch.zeros(slots, dtype=torch.int32, device=device),
        fold_tokens,
    )


@triton.jit
def _replay(
    q,
    k,
    v,
    x,
    b,
    a_log,
    dt_bias,
    pool,
    slots,
    ring_u,
    ring_k,
    ring_g,
    ring_head,
    ring_pending,
    o,
    q_stride,
    k_stride,
    v_stride,
    pool_stride,
    pool_slots,
    scale,
    fold_tokens,
    rows,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    D: tl.constexpr,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
    L2NORM: tl.constexpr,
):
    pid = tl.program_id(0)
    NV: tl.constexpr = V // BV
    iv = pid % NV
    hv = (pid // NV) % HV
    n = (pid // (NV * HV)).to(tl.int64)
    h = hv // (HV // H)
    slot = tl.load(slots + n).to(tl.int64)
    if (slot < 0) | (slot >= pool_slots):
        return
    ok = tl.arange(0, BK)
    ov = iv * BV + tl.arange(0, BV)
    mk = ok < K
    tile = pool + slot * pool_stride + hv * (V * K) + ov[:, None] * K + ok[None, :]
    S = tl.load(tile, mask=mk[None, :], other=0.0).to(tl.float32)
    head = tl.load(ring_head + slot)
    pending = tl.load(ring_pending + slot)
    base = slot * rows
    for i in range(pending):
        row = base + (head + i) % rows
        bk = tl.load(ring_k + (row * H + h) * K + ok, mask=mk, other=0.0).to(tl.float32)
        u = tl.load(ring_u + (row * HV + hv) * V + ov).to(tl.float32)
        S = S * tl.exp(tl.load(ring_g + row * HV + hv)) + u[:, None] * bk[None, :]
    if pending + D > fold_tokens:
        tl.store(tile, S.to(pool.dtype.element_ty), mask=mk[None, :])
    for d in range(D):
        t = n * D + d
        bq = tl.load(q + t * q_stride + h * K + ok, mask=mk, other=0.0).to(tl.float32)
        bk = tl.load(k + t * k_stride + h * K + ok, mask=mk, other=0.0).to(tl.float32)
        bv = tl.load(v + t * v_stride + hv * V + ov).to(tl.float32)
        beta = tl.load(b + t * HV + hv).to(tl.float32)
        if BETA_LOGIT:
            beta = sigmoid(beta)
        if GATE == 0:
            g = 0.0
        elif GATE == 1:
            g = tl.load(x + t * HV + hv).to(tl.float32)
        else:
            bx = tl.load(x + t * HV + hv).to(tl.float32)
            g = log_decay(bx, tl.load(a_log + hv), tl.load(dt_bias + hv), 0.0, GATE)
        if L2NORM:
            bq = unit_row(bq, 1e-6)
            bk = unit_row(bk, 1e-6)
        S, out_row, u = delta_update(S, bq * scale, bk, bv, tl.exp(g), beta)
        tl.store(o + (t * HV + hv) * V + ov, out_row.to(o.dtype.element_ty))
        row = base + (head + pending + d) % rows
        tl.store(ring_u + (row * HV + hv) * V + ov, u.to(ring_u.dtype.element_ty))
        if iv == 0:
            tl.store(ring_g + row * HV + hv, g)
            if hv % (HV // H) == 0:
                tl.store(ring_k + (row * H + h) * K + ok, bk.to(ring_k.dtype.element_ty), mask=mk)


def replay_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    ring: Ring,
    *,
    gate: Gate = Gate.SOFTPLUS,
    gate_input: torch.Tensor | None = None,
    a_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_is_logit: bool = False,
    scale: float | None = None,
    l2norm: bool = True,
    out: torch.Tensor | None = None,
    trust_ids: bool = False,
) -> torch.Tensor:
    """Advance each request by D = tokens / B tokens without writing its state, unless it folds.

    Inputs as :func:`hybridplan.kernels.gated_delta.recurrent.recurrent_step`; slots int32 [B].
    The kernel appends D records per request and folds the pending ones into ``pool`` when
    pending + D > fold_tokens; it does not move the cursors: call :func:`advance` after it, with
    the number of tokens kept. With fp32 records the outputs equal the plain step's to rounding.
    """
    z = checked_sizes(q, k, v, gate_input, beta, pool, gate, a_log, dt_bias, out, False)
    requests = slots.shape[0]
    require(
        requests > 0 and z.tokens % requests == 0,
        f"{z.tokens} tokens cannot be shared evenly by {requests} requests",
    )
    drafts = z.tokens // requests
    _check_ring(ring, z.slots, z.H, z.HV, z.K, z.V, drafts, q.device)
    if not trust_ids:
        check_slots("slots", slots, (requests,), z.slots, q.device, unique=True)
    if out is None:
        out = torch.empty((z.tokens, z.HV, z.V), dtype=q.dtype, device=q.device)
    BV = state_rows(requests, z.HV, z.V, pool.element_size())
    flags = (drafts, int(gate), beta_is_logit, l2norm)
    _launch(
        (requests * z.HV * (z.V // BV), 1, 1),
        (
            q, k, v, gate_input, beta, a_log, dt_bias, pool, slots,
            ring.corrections, ring.keys, ring.log_decays, ring.head, ring.pending, out,
        ),
        (),
        (
            q.stride(0), k.stride(0), v.stride(0), pool.stride(0), z.slots,
            z.K**-0.5 if scale is None else float(scale), ring.fold_tokens, ring.rows,
        ),
        (z.H, z.HV, z.K, z.V, next_power_of_2(z.K), BV, *flags),
        num_warps=1,
    )  # fmt: skip
    return out


_launch = Launcher(_replay)


def advance(ring: Ring, slots: torch.Tensor, drafts: int, kept: torch.Tensor | int) -> None:
    """Move the cursors of ``slots`` after a step of ``drafts`` tokens of which ``kept`` stay.

    Runs on the device without a host read, so it can be captured in a CUDA graph. Padding slots
    (-1) move nothing.
    """
    real = slots >= 0
    index = slots.clamp_min(0).long()
    head, pending = ring.head[index], ring.pending[index]
    folds = pending + drafts > ring.fold_tokens
    new_head = torch.where(folds, (head + pending) % ring.rows, head)
    new_pending = torch.where(folds, 0, pending) + kept
    spare = torch.zeros_like(head)
    ring.head.index_add_(0, index, torch.where(real, new_head - head, spare))
    ring.pending.index_add_(0, index, torch.where(real, new_pending - pending, spare))


def _check_ring(
    ring: Ring, slots: int, H: int, HV: int, K: int, V: int, drafts: int, device: torch.device
) -> None:
    rows = ring.fold_tokens + drafts
    require(ring.rows >= rows, f"the ring has {ring.rows} rows, needed fold_tokens + D = {rows}")
    require(ring.fold_tokens >= drafts, f"{drafts} tokens exceed fold_tokens {ring.fold_tokens}")
    rows = ring.rows
    check_tensor("ring keys", ring.keys, (slots, rows, H, K), FLOATS, device)
    check_tensor(
        "ring corrections", ring.corrections, (slots, rows, HV, V), (ring.keys.dtype,), device
    )
    check_tensor("ring log decays", ring.log_decays, (slots, rows, HV), (torch.float32,), device)
    check_tensor("ring head", ring.head, (slots,), (torch.int32,), device)
    check_tensor("ring pending", ring.pending, (slots,), (torch.int32,), device)
