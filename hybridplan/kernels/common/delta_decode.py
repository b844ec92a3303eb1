"""Decode step of the delta rule, scalar or per-channel decay, on a paged state pool in place.

One program owns BV rows of one request's state [V, K] for one value head, so a state is read and
written once, and no program waits for another. In large batches a program asks L2, at its end, for
the rows of one some thousands further on, which by then runs but has not asked for all of them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

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
from hybridplan.kernels.common.hints import LINE_BYTES, prefetch
from hybridplan.kernels.common.launch import Launcher, l2_bytes, next_power_of_2


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
def ask(start, wanted, NUMBERS: tl.constexpr):
    """Bring NUMBERS contiguous numbers into L2 if they are wanted."""
    LINE: tl.constexpr = LINE_BYTES * 8 // start.dtype.element_ty.primitive_bitwidth
    if wanted:
        prefetch(start + LINE * tl.arange(0, NUMBERS // LINE))


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
    AHEAD: tl.constexpr,
    KEEP: tl.constexpr,
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
    if AHEAD > 0:
        later = pid + AHEAD
        last = tl.num_programs(0) - 1
        later_slot = tl.load(slots + tl.minimum(later, last) // (NV * HV)).to(tl.int64)
    if (slot < 0) | (slot >= pool_slots):
        return
    ok = tl.arange(0, BK)
    ov = iv * BV + tl.arange(0, BV)
    mk = ok < K
    tile = hv * (V * K) + ov[:, None] * K + ok[None, :]
    if BK == K:
        S = tl.load(pool + slot * pool_stride + tile, eviction_policy=KEEP).to(tl.float32)
    else:
        S = tl.load(
            pool + slot * pool_stride + tile, mask=mk[None, :], other=0.0, eviction_policy=KEEP
        ).to(tl.float32)
    for d in range(D):
        t = n * D + d
        bq = tl.load(q + t * q_stride + h * K + ok, mask=mk, other=0.0).to(tl.float32)
        bk = tl.load(k + t * k_stride + h * K + ok, mask=mk, other=0.0).to(tl.float32)
        bv = tl.load(v + t * v_stride + hv * V + ov).to(tl.float32)
        if AHEAD == 0:
            # All loads are on their way before anything waits for one: to save registers, ptxas
            # would put off half of them until the norms of q and k are done.
            tl.debug_barrier()
        beta = tl.load(b + t * HV + hv).to(tl.float32)
        if GATE > 0:
            al = 0.0
            bias = 0.0
            if PER_CHANNEL:
                bx = tl.load(x + (t * HV + hv) * K + ok, mask=mk, other=0.0).to(tl.float32)
                if GATE > 1:
                    al = tl.load(a_log + hv)
                    bias = tl.load(dt_bias + hv * K + ok, mask=mk, other=0.0)
            else:
                bx = tl.load(x + t * HV + hv).to(tl.float32)
                if GATE > 1:
                    al = tl.load(a_log + hv)
                    bias = tl.load(dt_bias + hv)
        if BETA_LOGIT:
            beta = sigmoid(beta)
        decay = 1.0
        if GATE > 0:
            decay = tl.exp(log_decay(bx, al, bias, lower_bound, GATE))
            if PER_CHANNEL:
                decay = decay[None, :]
        if L2NORM:
            bq = unit_row(bq, 1e-6)
            bk = unit_row(bk, 1e-6)
        S, row, _ = delta_update(S, bq * scale, bk, bv, decay, beta)
        if AHEAD > 0:
            wanted = (later <= last) & (later_slot >= 0) & (later_slot < pool_slots)
            rows = later_slot * pool_stride + (later % (NV * HV)) * (BV * K)
            ask(pool + rows, wanted, BV * BK)
        tl.store(o + (t * HV + hv) * V + ov, row.to(o.dtype.element_ty))
        if D > 1:
            slot = tl.load(slots + n * D + d).to(tl.int64)
        if (slot >= 0) & (slot < pool_slots):
            tl.store(
                pool + slot * pool_stride + tile,
                S.to(pool.dtype.element_ty),
                mask=mk[None, :],
                eviction_policy=KEEP,
            )


class Tiles(NamedTuple):
    """How a decode call is cut.

    rows: state rows of one program. ahead_programs: how many programs further on is the one whose
    rows a program asks L2 for; 0 reads nothing ahead. fleeting: states leave L2 before anything
    else. options: of the compilation.
    """

    rows: int
    ahead_programs: int
    fleeting: bool
    options: dict[str, Any]


@functools.lru_cache(maxsize=1024)
def tiles(
    requests: int, value_heads: int, V: int, K: int, state_bytes: int, plain: bool, cache_bytes: int
) -> Tiles:
    """The cut of a call, as measured on one H200 (docs/decisions.md).

    Few rows for small batches (more programs), more for large ones. A call that is ``plain`` (one
    token a request, read from its only slot) reads a sixth of L2 (``cache_bytes``) ahead, with
    16-bit states a tenth, if its states are twice that. States of smaller calls leave L2 first:
    they come back only after those of all other layers, while q, k and v have just been written.
    """
    pairs = requests * value_heads
    wanted = 4 if pairs < 256 else 8
    if state_bytes == 2:
        wanted = 4 if pairs < 128 else 8 if pairs < 256 else 16
    rows = next(r for r in (wanted, 16, 8, 4) if r <= wanted and V % r == 0)
    tile_bytes = rows * K * state_bytes
    ahead = cache_bytes // (6 if state_bytes == 4 else 10) // tile_bytes
    small = pairs * (V // rows) < 2 * ahead
    if small or not plain or tile_bytes % LINE_BYTES.value or next_power_of_2(K) != K:
        ahead = 0
    options = {"num_warps": 1}
    numbers = rows * K // 32
    if ahead and numbers <= 32:
        options["maxnreg"] = 64
    elif not small and 32 < numbers <= 64:
        options["maxnreg"] = 128
    return Tiles(rows, ahead, small, options)


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
    plain = drafts == 1 and accepted is None
    size = pool.element_size()
    cut = tiles(requests, z.HV, z.V, z.K, size, plain, l2_bytes(q.device))
    tensors = (q, k, v, gate_input, beta, a_log, dt_bias, pool, slots, accepted, out)
    flags = (drafts, int(gate), per_channel, beta_is_logit, l2norm, accepted is not None)
    _launch(
        (requests * z.HV * (z.V // cut.rows), 1, 1),
        tensors,
        (),
        (
            q.stride(0), k.stride(0), v.stride(0), pool.stride(0), z.slots,
            z.K**-0.5 if scale is None else float(scale), float(lower_bound),
        ),
        (
            z.H, z.HV, z.K, z.V, next_power_of_2(z.K), cut.rows, *flags,
            cut.ahead_programs, "evict_first" if cut.fleeting else "",
        ),
        **cut.options,
    )  # fmt: skip
    return out


_launch = Launcher(_decode)
