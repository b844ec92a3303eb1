"""Chunked prefill of the scalar-decay recurrence (Mamba-2 SSD, lightning, RetNet, scalar GLA).

One program carries BV rows of one v-head's state through a sequence, 64 tokens at a time (see
``scan``). Gates that vary by token are summed beforehand by a small kernel, so that the loop holds
no scan of its own; where many heads share q and k, so is K Q^T worked out (see ``grouped``). A long
sequence with few heads is cut into segments: a first pass finds the state that each segment adds, a
second runs all segments side by side from the right states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch
from hybridplan.kernels.common.recipe import Recipes, launch_all
from hybridplan.kernels.common.slots import Export, check_id_layout, check_prefill_slots
from hybridplan.kernels.common.spans import spans_of
from hybridplan.kernels.common.stores import in_pairs
from hybridplan.kernels.common.varlen import chunk_index, sequence_lengths
from hybridplan.kernels.scalar_decay import prepare, scan
from hybridplan.kernels.scalar_decay.gates import (
    Gate,
    GateArguments,
    GateKind,
    check_gate,
    gate_arguments,
)

CHUNK_TOKENS = 64
_TAIL_TOKENS = 16
"""A span's last tokens go in steps of so many: the whole chunk's masks spilled into the loop."""
_AHEAD = 3
"""Chunks that v is brought into L2 ahead of the loads, where heads share q and k and segments run
side by side: 274 to 254 us at 16k tokens of Mamba-2's 8 groups. Elsewhere it has cost up to 6 %."""
_GATE_HEADS = 16
"""Heads whose sums of gates one program forms."""
_TMA_TOKENS = 1024
"""Below this many tokens, making descriptors on the host costs more than they save."""

_PASSED = checks.Passed()
_RECIPES = Recipes()
_sum_gates = launch.Launcher(prepare.sum_gates)
_prepare_groups = launch.Launcher(prepare.prepare_groups)
_local_states = launch.Launcher(scan.local_states)
_scan = launch.Launcher(scan.scan)


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
    segment_chunks: int | None = None,
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
    after the first p tokens of that sequence; a chunk begins anew there. It is the final state of a
    prefill of those p tokens, bit for bit if ``segment_chunks`` is given.

    ``segment_chunks`` cuts sequences into segments of that many chunks that run side by side (0:
    never; None: when the card would be half empty otherwise). ``tma`` forces tensor descriptors on
    or off. Raises KernelInputError before the launch on wrong shapes, dtypes, devices, layouts and
    slot ids; ``trust_ids`` skips reading the ids.
    """
    device = v.device
    args = gate_arguments(gate)
    given = (q, k, v, pool, slots, read_slots, skip, args.values, args.a_log, args.dt_bias)
    key = _PASSED.key(*given, out, also=(args.kind, args.softplus))
    if not _PASSED.has(key):
        _check(q, k, v, args, pool, skip, out)
        check_id_layout(device, slots, read_slots)
        _PASSED.add(key)
    T, HV, V = v.shape
    G, K = q.shape[1:]
    lengths = (T,) if cu_seqlens is None else sequence_lengths(cu_seqlens, T)
    stops = check_prefill_slots(slots, read_slots, exports, len(lengths), pool.shape[0], trust_ids)
    if out is None:
        out = torch.empty((T, HV, V), dtype=v.dtype, device=device)
    call_key = (key, lengths, stops, float(scale), segment_chunks, tma)
    known = _RECIPES.get(call_key, device)
    if known is not None and known.run((*given, out)):
        return out
    index = chunk_index(lengths, CHUNK_TOKENS, device, stops)
    KP = max(16, launch.next_power_of_2(K))
    tma = T >= _TMA_TOKENS and _use_tma(q, k, v, out, K, KP) if tma is None else tma and T > 0
    can_split = K == KP and all(p % CHUNK_TOKENS == 0 or p == lengths[n] for n, p, _ in stops)
    BV = min(64 if KP <= 128 else 32, V & -V)
    automatic = segment_chunks is None
    if segment_chunks is None:
        tiles = len(lengths) * HV * V // BV
        segment_chunks = _auto_segment_chunks(max(lengths), tiles, device) if can_split else 0
    # the local pass has few programs: each of its segments goes in parts, with given segments
    # whatever the number of tokens, as it decides the states' last bits
    shared = G < HV
    if tma and shared and automatic:
        segment_chunks += -segment_chunks % _parts(segment_chunks)
    parts = _parts(segment_chunks)
    if not (shared and (tma or not automatic) and segment_chunks % parts == 0):
        parts = 1
    checks.require(
        can_split or not segment_chunks,
        "segments need K a power of two from 16, and exports on chunk boundaries",
    )
    segment_tokens = segment_chunks * CHUNK_TOKENS
    part_tokens = segment_tokens // parts
    # a state that fills its tile is exported inside the scan's loop in pairs or not at all
    stop_tokens = CHUNK_TOKENS if KP != K or in_pairs(pool) else 0
    spans = spans_of(index, stops, segment_tokens, stop_tokens, part_tokens)
    local = spans_of(index, stops, part_tokens, CHUNK_TOKENS, group_tokens=segment_tokens)
    programs = HV * V // BV
    # two programs share a processor if there are enough, each with fewer buffers
    many = device.type == "cuda" and spans.walk_count * programs > launch.sm_count(
        device.index or 0
    )
    reads = slots if read_slots is None else read_slots
    dtype = _operand_dtype(v.dtype)
    split = local.inner_count > 0
    fold = scale > 0
    grouped = tma and fold and args.kind != GateKind.PER_HEAD and _use_groups(v, G, BV)
    room = launch.Scratch(device)
    launches = []
    reach = weight = products = None
    dq: launch.TileMap | None = None
    dk = dv = do = dr = dw = flat = dq
    # rows of sums lie on 16 bytes
    row = -(-T // 4) * 4
    if tma:
        wide, rows = (CHUNK_TOKENS, K), (CHUNK_TOKENS, BV)
        dq, dk = (q, T, G * K, q.stride(0), wide), (k, T, G * K, k.stride(0), wide)
        dv, do = (v, T, HV * V, v.stride(0), rows), (out, T, HV * V, out.stride(0), rows)
    # a tile's start must lie on 16 bytes
    aligned = tma and not any(x % 4 for x in (*lengths, *(p for _, p, _ in stops)))
    # two chunks are read ahead
    count = HV * row * (4 if grouped else 1) + 2 * CHUNK_TOKENS
    chunks = max(index.chunk_count, 1)
    blocks = -(-HV // _GATE_HEADS)
    gate_constants = (
        HV, _GATE_HEADS, CHUNK_TOKENS, int(args.kind), args.dt_bias is not None, args.softplus
    )  # fmt: skip
    if grouped:
        kept = torch.float32 if launch.INTERPRETED else v.dtype
        reach = room.piece((count,), torch.float32)
        # a tile is loaded before its chunk is known to be full
        products = room.piece((T + CHUNK_TOKENS, G * CHUNK_TOKENS), kept)
        if aligned:
            dr = (reach, 4 * HV, row, row, (4, CHUNK_TOKENS))
            flat = (reach, 1, count, count, (CHUNK_TOKENS,))
        launches.append(launch.Launch(
            _prepare_groups,
            (chunks * (G + blocks), 1, 1),
            (args.values, args.a_log, args.dt_bias, index.chunks, reach, products),
            (dq, dk),
            (row, float(scale)),
            (*gate_constants, G, K, dtype),
            {"num_warps": 4},
        ))  # fmt: skip
    elif args.kind != GateKind.PER_HEAD:
        reach = room.piece((count,), torch.float32)
        weight = room.piece((count,), torch.float32) if args.kind == GateKind.MAMBA else None
        if aligned:
            dr = flat = (reach, 1, count, count, (CHUNK_TOKENS,))
            dw = None if weight is None else (weight, 1, count, count, (CHUNK_TOKENS,))
        launches.append(launch.Launch(
            _sum_gates,
            (chunks * blocks, 1, 1),
            (args.values, args.a_log, args.dt_bias, reach, weight, index.chunks),
            (),
            (row,),
            (*gate_constants, fold),
            {"num_warps": 4},
        ))  # fmt: skip
    states = totals = None
    if split:
        states = room.piece((local.walk_count, HV, V, K), torch.float32)
        totals = room.piece((local.walk_count, HV), torch.float32)
        launches.append(launch.Launch(
            _local_states,
            (local.inner_count * programs, 1, 1),
            (k, v, reach, weight, args.values, pool, slots, reads, local.walks, local.spans,
             local.inner, states, totals),
            (dk, dv, flat, dw),
            (k.stride(0), v.stride(0), pool.stride(0), pool.shape[0], row),
            (G, HV, K, V, BV, CHUNK_TOKENS, dtype, int(args.kind), tma, fold, tma, 3, grouped),
            {"num_warps": 4},
        ))  # fmt: skip
    launches.append(launch.Launch(
        _scan,
        (spans.walk_count * programs, 1, 1),
        (q, k, v, out, reach, weight, args.values, skip, pool, slots, reads, spans.walks,
         spans.spans, spans.stops, states, totals, products),
        (dq, dk, dv, do, dr, dw),
        (q.stride(0), k.stride(0), v.stride(0), pool.stride(0), pool.shape[0], row, float(scale)),
        (G, HV, K, KP, V, BV, CHUNK_TOKENS, _TAIL_TOKENS, dtype, int(args.kind),
         skip is not None, tma, 3 if tma else 2, parts if split else 0, fold,
         spans.has_stops, tma and many, _AHEAD if tma and shared and split else 0, grouped),
        {"num_warps": 4},
    ))  # fmt: skip
    tables = (index.chunks, spans.walks, spans.spans, spans.stops, local.walks, local.spans,
              local.inner)  # fmt: skip
    _RECIPES.add(call_key, launch_all(launches, (*given, out), room, tables))
    return out


def _auto_segment_chunks(longest: int, tiles: int, device: torch.device) -> int:
    """Chunks per segment, 0 for none.

    A split costs a second pass over k and v, so that it pays only from three segments on: measured
    on an H200, 128 tiles are faster whole and 80 tiles are faster in three segments.
    """
    if device.type != "cuda":
        return 0
    segments = 2 * launch.sm_count(device.index or 0) // tiles
    chunks = longest // CHUNK_TOKENS
    if segments < 3 or chunks < 32:
        return 0
    return max(16, -(-chunks // segments))


def _parts(segment_chunks: int) -> int:
    """Parts that the local pass, with few programs, cuts each segment into.

    On an H200: 254 us in three, 259 in two with segments of 86 chunks, 85 and 82 with 22.
    """
    return 3 if segment_chunks >= 48 else 2


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    args: GateArguments,
    pool: Tensor,
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
    if skip is not None:
        checks.check_tensor("skip", skip, (HV,), (torch.float32,), device)
    if out is not None:
        checks.check_tensor("out", out, (T, HV, V), (v.dtype,), device)


def _use_tma(q: Tensor, k: Tensor, v: Tensor, out: Tensor, K: int, KP: int) -> bool:
    """Tensor maps need whole tiles of q/k heads, and rows and starts on 16 bytes.

    fp32 tiles are left to pointers: three stages of them do not fit in shared memory.
    """
    size = v.element_size()
    if K != KP or size != 2 or not launch.has_tma(v.device):
        return False
    return all(x.data_ptr() % 16 == 0 and x.stride(0) * size % 16 == 0 for x in (q, k, v, out))


def _use_groups(v: Tensor, G: int, BV: int) -> bool:
    """Whether K Q^T is worked out by group, before the scan.

    Only in bf16, whose range no product leaves. From four heads a group on: with ten of them it
    takes 21 us at 16k tokens, which grow with the groups, and saves 70 us, which do not.
    """
    T, HV, _ = v.shape
    bf16 = v.dtype == torch.bfloat16 or launch.INTERPRETED
    return bf16 and BV == 64 and HV >= 4 * G and 4 * HV * (T + 4) + 2 * CHUNK_TOKENS < 2**31


def _operand_dtype(dtype: torch.dtype) -> Any:
    if launch.INTERPRETED:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(dtype, tl.float32)
