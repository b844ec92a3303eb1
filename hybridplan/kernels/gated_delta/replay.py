"""Gated delta rule, decode by replay: read the state, keep inputs, fold them in every L tokens.

A step writes one record a token (correction u, unit key k, log decay g) instead of the state. The
state in the pool is that of ``pending`` tokens ago. Rejecting draft tokens is counting fewer of
them as pending. (The idea is ReplaySSM's, "Cache SSM Inputs, Not State", Dao AI Lab with NVIDIA;
this kernel is our own.)

With e the decay up to a draft, and x the drafts' keys and queries as columns, a program forms

    Y = (S x) e + U ((K_pending x) decays)      what came before gives each draft
    [u, o] = [(v - Y_k) beta, Y_q] T            T: the drafts' triangular system, inverted

so that the state is read once and touched by one product, whatever is pending.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hybridplan.kernels.common.checks import FLOATS, check_slots, check_tensor, require
from hybridplan.kernels.common.delta_inputs import checked_sizes
from hybridplan.kernels.common.gates import Gate, log_decay, power_of_2, sigmoid
from hybridplan.kernels.common.launch import Launcher, next_power_of_2, sm_count


@dataclass(frozen=True, eq=False)
class Ring:
    """Records of the tokens since each slot's state was folded, and where they lie.

    corrections [slots, rows, HV, V] and keys [slots, rows, H, K] of one float dtype; log_decays
    [slots, rows, HV] fp32; head and pending int32 [slots]: the first pending row and their number.
    rows = fold_tokens + D, so that new rows never overwrite pending ones; pending never exceeds
    fold_tokens, and :func:`advance` keeps it so.
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


LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _log2(g):
    """Log2 decay of a natural one: from 2^-64 on, which is nothing, so that -inf is in no sum."""
    g = g * LOG2E
    return tl.where(g < -64.0, -64.0, g)


@triton.jit
def _high(x):
    """fp32 x cut to the 11 leading bits that tf32 keeps."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _product(x, y, total, X_SHORT: tl.constexpr, Y_SHORT: tl.constexpr):
    """total + x y to fp32 rounding; a short factor holds values of bf16 or fp16, exact in tf32."""
    if X_SHORT and Y_SHORT:
        total = tl.dot(x, y, total, input_precision="tf32")
    elif Y_SHORT:
        high = _high(x)
        total = tl.dot(x - high, y, total, input_precision="tf32")
        total = tl.dot(high, y, total, input_precision="tf32")
    elif X_SHORT:
        high = _high(y)
        total = tl.dot(x, y - high, total, input_precision="tf32")
        total = tl.dot(x, high, total, input_precision="tf32")
    else:
        total = tl.dot(x, y, total, input_precision="tf32x3")
    return total


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
    PART: tl.constexpr,
    BV: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    GATE: tl.constexpr,
    BETA_LOGIT: tl.constexpr,
    L2NORM: tl.constexpr,
    STAGES: tl.constexpr,
):
    """PART rows of a request's state for one value head, BV at a time.

    Columns of the small matrices are vectors: the drafts' keys, then from DP on their queries.
    """
    N: tl.constexpr = 2 * DP
    SHORT: tl.constexpr = q.dtype.element_ty != tl.float32
    RING_SHORT: tl.constexpr = ring_k.dtype.element_ty != tl.float32
    POOL_SHORT: tl.constexpr = pool.dtype.element_ty != tl.float32
    pid = tl.program_id(0)
    PARTS: tl.constexpr = V // PART
    part = pid % PARTS
    hv = (pid // PARTS) % HV
    n = (pid // (PARTS * HV)).to(tl.int64)
    h = hv // (HV // H)
    slot = tl.load(slots + n).to(tl.int64)
    if (slot < 0) | (slot >= pool_slots):
        return
    ok = tl.arange(0, BK)
    oj = tl.arange(0, R)
    ov = part * PART + tl.arange(0, BV)
    mk = (ok < K)[None, :]
    head = tl.load(ring_head + slot)
    pending = tl.load(ring_pending + slot)
    ring_k += slot * rows * (H * K) + h * K
    ring_u += slot * rows * (HV * V) + hv * V
    ring_g += slot * rows * HV + hv
    state = pool + slot * pool_stride + hv * (V * K)
    first = n * D
    q += first * q_stride + h * K
    k += first * k_stride + h * K
    v += first * v_stride + hv * V
    o += first * (HV * V) + hv * V
    at_gate = first * HV + hv

    on = tl.arange(0, N)
    d = on % DP
    key = on < DP
    real = d < D
    token = tl.minimum(d, D - 1)
    at_vectors = tl.where(
        key[:, None],
        k + token[:, None] * k_stride + ok[None, :],
        q + token[:, None] * q_stride + ok[None, :],
    )
    vectors = tl.load(at_vectors, mask=mk, other=0.0).to(tl.float32)
    held = oj < pending
    row = head + oj
    row = tl.where(row >= rows, row - rows, row)
    gj = _log2(tl.load(ring_g + row * HV, mask=held, other=0.0))
    at_keys = ring_k + row[:, None] * (H * K) + ok[None, :]
    keys = tl.load(at_keys, mask=held[:, None] & mk, other=0.0).to(tl.float32)
    beta = tl.load(b + at_gate + token * HV).to(tl.float32)
    if BETA_LOGIT:
        beta = sigmoid(beta)
    if GATE == 0:
        g = beta * 0.0
    else:
        g = tl.load(x + at_gate + token * HV).to(tl.float32)
        if GATE > 1:
            g = log_decay(g, tl.load(a_log + hv), tl.load(dt_bias + hv), 0.0, GATE)
    size = tl.where(key, 1.0, scale)
    if L2NORM:
        size *= tl.rsqrt(tl.sum(vectors * vectors, 1) + 1e-6)
    total = tl.sum(gj)
    upto = (d[None, :] <= d[:, None]) & key[None, :]
    reach = total + tl.sum(tl.where(upto, _log2(g)[None, :], 0.0), 1)

    # what a pending record's correction gives each vector
    columns = tl.trans(vectors)
    W = tl.zeros([R, N], tl.float32)
    W = _product(keys, columns, W, RING_SHORT, SHORT)
    gap = tl.minimum(reach[None, :] - tl.cumsum(gj, 0)[:, None], 0.0)
    W = W * (power_of_2(gap) * size[None, :])
    # a draft's correction is its own share less what the drafts before it give, all at once
    P = tl.zeros([N, N], tl.float32)
    P = _product(vectors, columns, P, SHORT, SHORT)
    sees = tl.where(key[None, :], d[:, None] < d[None, :], d[:, None] <= d[None, :])
    gap = tl.where(sees & key[:, None], reach[None, :] - reach[:, None], -1e9)
    P = P * power_of_2(gap) * size[:, None] * (tl.where(key, beta, -1.0) * size)[None, :]
    T = tl.where(on[:, None] == on[None, :], 1.0, 0.0)
    for i in tl.static_range(D):
        given = tl.sum(tl.where((on == i)[:, None], P, 0.0), 0)
        T -= tl.sum(tl.where((on == i)[None, :], T, 0.0), 1)[:, None] * given[None, :]
    length = size
    size *= power_of_2(reach)

    ahead = head + pending + d
    ahead = tl.where(ahead >= rows, ahead - rows, ahead)
    for r in tl.range(0, PART, BV, num_stages=STAGES):
        S = tl.load(state + (ov + r)[:, None] * K + ok[None, :], mask=mk, other=0.0)
        us = tl.load(
            ring_u + row[None, :] * (HV * V) + (ov + r)[:, None], mask=held[None, :], other=0.0
        )
        bv = tl.load(v + token[None, :] * v_stride + (ov + r)[:, None]).to(tl.float32)
        Y = tl.zeros([BV, N], tl.float32)
        Y = _product(S.to(tl.float32), columns, Y, POOL_SHORT, SHORT) * size[None, :]
        Y = _product(us.to(tl.float32), W, Y, RING_SHORT, False)
        C = tl.where(key[None, :], (bv - Y) * beta[None, :], Y)
        C = tl.dot(C, T, input_precision="tf32x3")
        at_u = ring_u + ahead[None, :] * (HV * V) + (ov + r)[:, None]
        tl.store(at_u, C.to(ring_u.dtype.element_ty), mask=(key & real)[None, :])
        at_o = o + d[None, :] * (HV * V) + (ov + r)[:, None]
        tl.store(at_o, C.to(o.dtype.element_ty), mask=(real & (on >= DP))[None, :])
    if part == 0:
        tl.store(ring_g + ahead * HV, g, mask=key & real)
        if hv % (HV // H) == 0:
            unit = vectors * length[:, None]
            at_k = ring_k + ahead[:, None] * (H * K) + ok[None, :]
            tl.store(at_k, unit.to(ring_k.dtype.element_ty), mask=(key & real)[:, None] & mk)

    if pending + D > fold_tokens:
        left = power_of_2(tl.minimum(total - tl.cumsum(gj, 0), 0.0))
        for r in tl.range(0, PART, BV, num_stages=1):
            tile = state + (ov + r)[:, None] * K + ok[None, :]
            S = tl.load(tile, mask=mk, other=0.0).to(tl.float32) * power_of_2(total)
            us = tl.load(
                ring_u + row[None, :] * (HV * V) + (ov + r)[:, None], mask=held[None, :], other=0.0
            )
            S = _product(us.to(tl.float32) * left[None, :], keys, S, False, RING_SHORT)
            tl.store(tile, S.to(pool.dtype.element_ty), mask=mk)


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
    PART = _rows(requests, z.HV, z.V, q.device)
    flags = (int(gate), beta_is_logit, l2norm)
    ring_rows = max(16, next_power_of_2(ring.fold_tokens))
    _launch(
        (requests * z.HV * -(-z.V // PART), 1, 1),
        (
            q, k, v, gate_input, beta, a_log, dt_bias, pool, slots,
            ring.corrections, ring.keys, ring.log_decays, ring.head, ring.pending, out,
        ),
        (),
        (
            q.stride(0), k.stride(0), v.stride(0), pool.stride(0), z.slots,
            z.K**-0.5 if scale is None else float(scale), ring.fold_tokens, ring.rows,
        ),
        (z.H, z.HV, z.K, z.V, next_power_of_2(z.K), PART, _TILE_ROWS,
         ring_rows, drafts, max(8, next_power_of_2(drafts)),
         *flags, 1 if PART == _TILE_ROWS else 2),
        num_warps=max(1, ring_rows // 32),
    )  # fmt: skip
    return out


_launch = Launcher(_replay)
_TILE_ROWS = 16
_PROGRAMS_PER_PROCESSOR = 5
"""As many or more programs of one warp hide each other's loads, measured on an H200."""
_INTERPRETED_PROCESSORS = 132
"""An H200's, so that the interpreter takes the programs that it would."""


def _rows(requests: int, value_heads: int, V: int, device: torch.device) -> int:
    """State rows of one program: all of a head's if there are programs enough."""
    cuda = device.type == "cuda"
    processors = sm_count(device.index or 0) if cuda else _INTERPRETED_PROCESSORS
    wanted = processors * _PROGRAMS_PER_PROCESSOR
    rows = 128
    while rows > _TILE_ROWS and (V % rows or requests * value_heads * V // rows < wanted):
        rows //= 2
    return rows


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
