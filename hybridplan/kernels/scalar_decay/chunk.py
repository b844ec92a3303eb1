"""Chunked prefill of the scalar-decay recurrence (Mamba-2 SSD, lightning, RetNet, scalar GLA).

One program carries BV rows of one v-head's state through a whole sequence, 64 tokens at a time,
with the state in registers as S [BV, K]. Per chunk, with r the summed log2 decay up to a token:

    P^T = (K Q^T) * 2^(r_i - r_j) w_j        the chunk's own earlier tokens
    O^T = (S Q^T) * 2^r_i + V^T P^T
    S   = S * 2^r_end + (V^T * 2^(r_end - r_j) w_j) K

Only the last product is on the serial chain. Gates that vary by token are summed beforehand by a
small kernel, so that the scan's loop holds no scan of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch
from hybridplan.kernels.common.slots import Export, check_prefill_slots
from hybridplan.kernels.common.spans import spans_of
from hybridplan.kernels.common.varlen import chunk_index, sequence_lengths
from hybridplan.kernels.scalar_decay.gates import (
    LOG2E,
    Gate,
    GateArguments,
    GateKind,
    check_gate,
    gate_arguments,
    mamba_step,
)

CHUNK_TOKENS = 64
_PASSED = checks.Passed()
_GATE_HEADS = 16
_PER_HEAD = tl.constexpr(int(GateKind.PER_HEAD))
_MAMBA = tl.constexpr(int(GateKind.MAMBA))


@triton.jit
def _sum_gates(
    gate,
    a_log,
    dt_bias,
    reach,
    weight,
    chunks,
    tokens,
    HV: tl.constexpr,
    BH: tl.constexpr,
    C: tl.constexpr,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
):
    # one program per (chunk, BH heads): reach and weight are written token-contiguous, [HV, T]
    chunk = tl.program_id(0)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    first = tl.load(chunks + 4 * chunk)
    end = tl.load(chunks + 4 * chunk + 1)
    t = first + tl.arange(0, C)
    inside = (t < end)[:, None] & (h < HV)[None, :]
    x = tl.load(gate + t.to(tl.int64)[:, None] * HV + h[None, :], mask=inside, other=0.0)
    at = h.to(tl.int64)[None, :] * tokens + t[:, None]
    if KIND == _MAMBA:
        bias = h * 0.0
        if HAS_BIAS:
            bias = tl.load(dt_bias + h, mask=h < HV, other=0.0)
        step = mamba_step(x, bias[None, :], HAS_BIAS, SOFTPLUS)
        step = tl.where(inside, step, 0.0)
        tl.store(weight + at, step, mask=inside)
        decay = -tl.exp(tl.load(a_log + h, mask=h < HV, other=0.0))[None, :] * step
    else:
        decay = x.to(tl.float32)
    tl.store(reach + at, tl.cumsum(decay * LOG2E, 0), mask=inside)


@triton.jit
def _output(S, bq, bk, vt, reach, weight, scale, C: tl.constexpr, DT: tl.constexpr):
    i = tl.arange(0, C)
    later = i[None, :] >= i[:, None]
    gap = tl.exp2(tl.where(later, reach[None, :] - reach[:, None], -1e9))
    inside = tl.dot(bk, tl.trans(bq), input_precision="tf32x3") * gap * (weight * scale)[:, None]
    out = tl.dot(S.to(DT), tl.trans(bq), input_precision="tf32x3")
    out = out * (tl.exp2(reach) * scale)[None, :]
    return tl.dot(vt.to(DT), inside.to(DT), out, input_precision="tf32x3")


@triton.jit
def _next_state(S, bk, vt, reach, total, weight, DT: tl.constexpr):
    left = tl.exp2(tl.minimum(total - reach, 0.0)) * weight
    return tl.dot((vt * left[None, :]).to(DT), bk, S * tl.exp2(total), input_precision="tf32x3")


@triton.jit
def _scan(
    q,
    k,
    v,
    o,
    dq,
    dk,
    dv,
    stride_q,
    stride_k,
    stride_v,
    reach,
    weight,
    log_decay,
    skip,
    pool,
    stride_slot,
    slots,
    read_slots,
    pool_slots,
    sequences,
    spans,
    tokens,
    scale,
    G: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    TAIL: tl.constexpr,
    DT: tl.constexpr,
    KIND: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    TMA: tl.constexpr,
    STAGES: tl.constexpr,
):
    pid = tl.program_id(0)
    NV: tl.constexpr = V // BV
    iv = pid % NV
    hv = (pid // NV) % HV
    n = pid // (NV * HV)
    h = hv // (HV // G)
    slot = tl.load(slots + n)
    if (slot < 0) | (slot >= pool_slots):
        return
    origin = tl.load(read_slots + n)
    ok = tl.arange(0, KP)
    ov = iv * BV + tl.arange(0, BV)
    oc = tl.arange(0, C)
    in_k = ok < K
    cell = hv * (V * K) + ov[:, None] * K + ok[None, :]
    # a slot outside the pool masks every channel off (the interpreter lacks scalar & tensor masks)
    known = tl.where((origin >= 0) & (origin < pool_slots), K, 0)
    start = pool + origin.to(tl.int64) * stride_slot + cell
    S = tl.load(start, mask=(ok < known)[None, :], other=0.0).to(tl.float32)
    per_head = 0.0
    if KIND == _PER_HEAD:
        per_head = tl.load(log_decay + hv) * LOG2E
    skipped = 0.0
    if HAS_SKIP:
        skipped = tl.load(skip + hv)
    ones = tl.full([C], 1.0, tl.float32)
    gates = hv.to(tl.int64) * tokens
    span0 = tl.load(sequences + 2 * n)
    span_count = tl.load(sequences + 2 * n + 1)
    for j in range(span0, span0 + span_count):
        first = tl.load(spans + 4 * j)
        end = tl.load(spans + 4 * j + 1)
        export_slot = tl.load(spans + 4 * j + 2)
        full = (end - first) // C
        for it in tl.range(0, full, num_stages=STAGES):
            t0 = first + it * C
            t = t0.to(tl.int64) + oc
            if TMA:
                bq = dq.load([t0, h * K]).to(DT)
                bk = dk.load([t0, h * K]).to(DT)
                vt = tl.trans(dv.load([t0, hv * V + iv * BV])).to(tl.float32)
            else:
                rows = t[:, None]
                cols = h * K + ok[None, :]
                bq = tl.load(q + rows * stride_q + cols, mask=in_k[None, :], other=0.0).to(DT)
                bk = tl.load(k + rows * stride_k + cols, mask=in_k[None, :], other=0.0).to(DT)
                vt = tl.load(v + t[None, :] * stride_v + hv * V + ov[:, None]).to(tl.float32)
            if KIND == _PER_HEAD:
                r = (oc + 1) * per_head
                total = C * per_head
                w = ones
            else:
                r = tl.load(reach + gates + t)
                total = tl.load(reach + gates + t0 + C - 1)
                w = ones
                if KIND == _MAMBA:
                    w = tl.load(weight + gates + t)
            out = _output(S, bq, bk, vt, r, w, scale, C, DT)
            if HAS_SKIP:
                out += skipped * vt
            tl.store(o + (t[None, :] * HV + hv) * V + ov[:, None], out.to(o.dtype.element_ty))
            S = _next_state(S, bk, vt, r, total, w, DT)
        # the rest of a span in small steps, which need few registers beside the state
        tail = first + full * C
        for it in tl.range(0, tl.cdiv(end - tail, TAIL), num_stages=1):
            t0 = tail + it * TAIL
            t = t0.to(tl.int64) + tl.arange(0, TAIL)
            m = t < end
            mk = m[:, None] & in_k[None, :]
            cols = h * K + ok[None, :]
            bq = tl.load(q + t[:, None] * stride_q + cols, mask=mk, other=0.0).to(DT)
            bk = tl.load(k + t[:, None] * stride_k + cols, mask=mk, other=0.0).to(DT)
            at_v = v + t[None, :] * stride_v + hv * V + ov[:, None]
            vt = tl.load(at_v, mask=m[None, :], other=0.0).to(tl.float32)
            stop = tl.minimum(t0 + TAIL, end)
            w = tl.where(m, 1.0, 0.0)
            if KIND == _PER_HEAD:
                r = (tl.arange(0, TAIL) + 1) * per_head
                total = (stop - t0) * per_head
            else:
                before = tl.load(reach + gates + t0 - 1, mask=t0 > tail, other=0.0)
                total = tl.load(reach + gates + stop - 1) - before
                # beyond the end nothing decays, so that no exponent is positive
                r = tl.where(m, tl.load(reach + gates + t, mask=m, other=0.0) - before, total)
                if KIND == _MAMBA:
                    w = tl.load(weight + gates + t, mask=m, other=0.0)
            out = _output(S, bq, bk, vt, r, w, scale, TAIL, DT)
            if HAS_SKIP:
                out += skipped * vt
            at_o = o + (t[None, :] * HV + hv) * V + ov[:, None]
            tl.store(at_o, out.to(o.dtype.element_ty), mask=m[None, :])
            S = _next_state(S, bk, vt, r, total, w, DT)
        kept = tl.where((export_slot >= 0) & (export_slot < pool_slots), K, 0)
        target = pool + export_slot.to(tl.int64) * stride_slot + cell
        tl.store(target, S.to(pool.dtype.element_ty), mask=(ok < kept)[None, :])
    target = pool + slot.to(tl.int64) * stride_slot + cell
    tl.store(target, S.to(pool.dtype.element_ty), mask=in_k[None, :])


def chunk_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Gate,
    pool: Tensor,
    slots: Tensor,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    *,
    read_slots: Tensor | None = None,
    exports: Sequence[Export] = (),
    skip: Tensor | None = None,
    scale: float = 1.0,
    out: Tensor | None = None,
    tma: bool | None = None,
    trust_ids: bool = False,
) -> Tensor:
    """Run N packed sequences; returns o [T, HV, V] and writes each final state into ``pool``.

    q, k [T, G, K], v [T, HV, V]: bf16, fp16 or fp32, one dtype, G dividing HV; only heads and
    channels need be contiguous, so slices of one packed row are fine. K from 16 to 256, V a
    multiple of 16. In Mamba-2's words q is C, k is B, v is x, G the groups, K the state size.
    gate: HeadDecay, TokenDecay [T, HV] or MambaStep [T, HV]. skip: fp32 [HV], Mamba-2's D.
    pool: [slots, HV, V, K] fp32, fp16 or bf16, slots may be strided, each state contiguous.
    cu_seqlens: N + 1 cumulative starts, on the host or a tensor read once per content; None is
    one sequence.

    slots: int32 [N], where a sequence's final state goes and, unless ``read_slots`` names another,
    where its initial state is read; read_slots -1 starts from zero. A sequence whose slot is -1 is
    padding: its output rows stay as they are. exports: (sequence, p, slot) also stores the state
    after the first p tokens of that sequence; a chunk begins anew there, so it is the final state
    of a prefill of those p tokens, bit for bit.

    ``tma`` forces tensor descriptors on or off. Raises KernelInputError before the launch on wrong
    shapes, dtypes, devices, layouts and slot ids; ``trust_ids`` skips reading the ids.
    """
    device = v.device
    args = gate_arguments(gate)
    given = (q, k, v, pool, slots, skip, out, args.values, args.a_log, args.dt_bias)
    key = _PASSED.key(*given, also=args.kind)
    if key not in _PASSED:
        _check(q, k, v, args, pool, slots, skip, out)
        _PASSED.add(key)
    T, HV, V = v.shape
    G, K = q.shape[1:]
    lengths = (T,) if cu_seqlens is None else sequence_lengths(cu_seqlens, T)
    N = len(lengths)
    stops = check_prefill_slots(slots, read_slots, exports, N, pool.shape[0], trust_ids)
    if out is None:
        out = torch.empty((T, HV, V), dtype=v.dtype, device=device)
    index = chunk_index(lengths, CHUNK_TOKENS, device, stops)
    spans = spans_of(index, stops)
    reach = weight = None
    if args.kind != GateKind.PER_HEAD:
        reach = torch.empty((HV, T), dtype=torch.float32, device=device)
        weight = torch.empty_like(reach) if args.kind == GateKind.MAMBA else None
        _sum_gates[(max(index.chunk_count, 1), triton.cdiv(HV, _GATE_HEADS))](
            args.values,
            args.a_log,
            args.dt_bias,
            reach,
            weight,
            index.chunks,
            T,
            HV,
            _GATE_HEADS,
            CHUNK_TOKENS,
            int(args.kind),
            args.dt_bias is not None,
            args.softplus,
            num_warps=4,
        )
    KP = max(16, launch.next_power_of_2(K))
    if tma is None:
        tma = _use_tma(q, k, v, K, KP)
    BV, warps, stages = _tile(V, KP, tma)
    descriptors = (None, None, None)
    if tma:
        descriptors = tuple(
            launch.descriptor(x.flatten(1), (CHUNK_TOKENS, width))
            for x, width in ((q, K), (k, K), (v, BV))
        )
    _scan[(N * HV * (V // BV),)](
        q,
        k,
        v,
        out,
        *descriptors,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        reach,
        weight,
        args.values,
        skip,
        pool,
        pool.stride(0),
        slots,
        slots if read_slots is None else read_slots,
        pool.shape[0],
        spans.sequences,
        spans.spans,
        T,
        scale,
        G,
        HV,
        K,
        KP,
        V,
        BV,
        CHUNK_TOKENS,
        16,
        _operand_dtype(v.dtype),
        int(args.kind),
        skip is not None,
        tma,
        stages,
        num_warps=warps,
    )
    return out


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    args: GateArguments,
    pool: Tensor,
    slots: Tensor,
    skip: Tensor | None,
    out: Tensor | None,
) -> None:
    device = v.device
    launch.require_device(device)
    checks.check_tensor("v", v, (-1, -1, -1), checks.FLOATS, device, dense_dims=2)
    T, HV, V = v.shape
    checks.check_tensor("q", q, (T, -1, -1), (v.dtype,), device, dense_dims=2)
    G, K = q.shape[1:]
    checks.check_tensor("k", k, (T, G, K), (v.dtype,), device, dense_dims=2)
    checks.require(G > 0 and HV % G == 0, f"{HV} v-heads are not a multiple of {G} q/k heads")
    checks.require(16 <= K <= 256, f"K is {K}, needed 16 to 256")
    checks.require(V % 16 == 0, f"V is {V}, needed a multiple of 16")
    check_gate(args, (T,), HV, device)
    checks.check_tensor("pool", pool, (-1, HV, V, K), checks.FLOATS, device, dense_dims=3)
    checks.check_tensor("slots", slots, tuple(slots.shape), (torch.int32,), device)
    if skip is not None:
        checks.check_tensor("skip", skip, (HV,), (torch.float32,), device)
    if out is not None:
        checks.check_tensor("out", out, (T, HV, V), (v.dtype,), device)


def _tile(V: int, KP: int, tma: bool) -> tuple[int, int, int]:
    """State rows of a program (a power of two that divides V), warps and pipeline stages."""
    most = 64 if KP <= 128 else 32
    return min(most, V & -V), 4, 3 if tma else 2


def _use_tma(q: Tensor, k: Tensor, v: Tensor, K: int, KP: int) -> bool:
    """Tensor maps need whole tiles of q/k heads, and rows and starts on 16 bytes."""
    if K != KP or not launch.has_tma(v.device):
        return False
    size = v.element_size()
    return all(x.data_ptr() % 16 == 0 and x.stride(0) * size % 16 == 0 for x in (q, k, v))


def _operand_dtype(dtype: torch.dtype) -> Any:
    if launch.INTERPRETED:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(dtype, tl.float32)
