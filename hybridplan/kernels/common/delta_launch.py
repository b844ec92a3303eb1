"""Host side of the chunked delta rule, shared by the scalar and the per-channel operator."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from hybridplan.kernels.common.checks import (
    check_ids,
    check_slot_layout,
    host_values,
    is_capturing,
    require,
)
from hybridplan.kernels.common.delta_inputs import Sizes
from hybridplan.kernels.common.delta_plan import (
    CHUNK_TOKENS,
    Export,
    Plan,
    aligned,
    check_exports,
    check_positions,
    plan,
)
from hybridplan.kernels.common.delta_scan import _local, _scan
from hybridplan.kernels.common.launch import (
    INTERPRETED,
    Launch,
    Launcher,
    Scratch,
    TileMap,
    has_tma,
    next_power_of_2,
    pipeline_stages,
    sm_count,
)
from hybridplan.kernels.common.stores import in_pairs


class Batch(NamedTuple):
    """A checked prefill batch: its plan and where each sequence's state is read and written."""

    plan: Plan
    slots: torch.Tensor
    read_slots: torch.Tensor
    state_rows: int
    split: bool
    in_pairs: bool


class Stages(NamedTuple):
    """Depth of the scan's pipeline by how many programs share a multiprocessor's shared memory.

    alone: one of 4 warps. shared: two of these. wide: one of 8 warps with twice the state rows, in
    batches with scalar decay.
    """

    alone: int
    shared: int
    wide: int = 0


WIDE_ROWS = 128
"""State rows of a program of 8 warps, which reads q, k, A and P once for all of them."""


@functools.cache
def state_rows(V: int, K: int, wide: bool = False) -> int:
    """State rows [BV, K] that one scan program keeps in registers."""
    if wide and V % WIDE_ROWS == 0 and K <= 128:
        return WIDE_ROWS
    most = 64 if K <= 128 else 32
    return next(r for r in (most, 32, 16) if V % r == 0)


def batch(
    z: Sizes,
    pool: torch.Tensor,
    lengths: tuple[int, ...],
    slots: torch.Tensor,
    read_slots: torch.Tensor | None,
    wanted: tuple[Export, ...],
    segment_chunks: int | None,
    trust_ids: bool,
    per_channel: bool,
) -> Batch:
    """Check a batch and make, or find, its tables."""
    device = pool.device
    check_slot_layout("slots", slots, (len(lengths),), device)
    if read_slots is not None:
        check_slot_layout("read_slots", read_slots, (len(lengths),), device)
    check_positions(wanted, lengths)
    if not trust_ids and not is_capturing(device):
        check_use(slots, read_slots, wanted, lengths, z.slots)
    rows = state_rows(z.V, z.K)
    can_split = aligned(wanted, lengths) and z.K == z.V and next_power_of_2(z.K) == z.K
    if segment_chunks is None:
        least = LEAST_PER_CHANNEL if per_channel else LEAST_SCALAR
        segment_chunks = auto_segment_chunks(lengths, z.HV, z.V // rows, device, least) * can_split
    require(
        can_split or not segment_chunks,
        "segments need K = V, a power of two, and exports on chunk boundaries",
    )
    p = plan(lengths, wanted, segment_chunks, device, exports_in_loop(pool))
    if device.type == "cuda" and has_tma(device) and not p.inner_count and not per_channel:
        programs = p.segment_count * z.HV * (z.V // rows)
        rows = state_rows(z.V, z.K, programs > sm_count(device.index or 0))
    reads = slots if read_slots is None else read_slots
    return Batch(p, slots, reads, rows, p.inner_count > 0, in_pairs(pool))


def exports_in_loop(pool: torch.Tensor) -> bool:
    """Whether states are exported from inside the scan's loop.

    Before SM90 ptxas leaves one such build 32 registers; there an export ends the loop, as it does
    where a state that fills its tile cannot be stored in pairs.
    """
    K = pool.shape[-1]
    here = pool.device.type != "cuda" or has_tma(pool.device)
    return here and (next_power_of_2(K) != K or in_pairs(pool))


def check_use(
    slots: torch.Tensor,
    read_slots: torch.Tensor | None,
    exports: tuple[Export, ...],
    lengths: tuple[int, ...],
    pool_slots: int,
) -> None:
    """Check ids, of right layout, by value: in the pool, and no slot written twice or in use."""
    final = host_values("slots", slots)
    read = None if read_slots is None else host_values("read_slots", read_slots)
    _check_writes(final, read, exports, lengths, pool_slots)


@functools.lru_cache(maxsize=1024)
def _check_writes(
    final: tuple[int, ...],
    read_slots: tuple[int, ...] | None,
    exports: tuple[Export, ...],
    lengths: tuple[int, ...],
    pool_slots: int,
) -> None:
    check_ids("slots", final, pool_slots, unique=True)
    if read_slots is not None:
        check_ids("read_slots", read_slots, pool_slots, unique=False)
    check_exports(exports, lengths, pool_slots, final)
    read = final if read_slots is None else read_slots
    writer = {slot: n for n, slot in enumerate(final) if slot >= 0}
    writer |= {slot: -1 for _, _, slot in exports}
    for n, slot in enumerate(read):
        require(
            writer.get(slot, n) == n,
            f"slot {slot} is written in the same pass in which sequence {n} starts from it",
        )


@functools.lru_cache(maxsize=1024)
def auto_segment_chunks(
    lengths: tuple[int, ...], value_heads: int, tiles: int, device: torch.device, least: int
) -> int:
    """Chunks per segment, ``least`` or more, 0 for no split: while programs leave the card idle."""
    if device.type != "cuda":
        return 0
    chunks = max(lengths) // CHUNK_TOKENS
    programs = len(lengths) * value_heads * tiles
    room = 2 * sm_count(device.index or 0) // programs
    if len(lengths) > 1 or room < 2 or chunks < 32 or (room < 4 and chunks < 512):
        return 0
    return min(max(least, next_power_of_2(chunks // room)), 128)


def tile_dtype(inputs: torch.dtype) -> torch.dtype:
    """Dtype of the prepared tiles: bf16, or fp32 to test the algebra under the interpreter."""
    return torch.float32 if INTERPRETED and inputs is torch.float32 else torch.bfloat16


def square_dtypes(inputs: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    """Dtypes of A and P.

    A in fp16: its entries are at most one, and a rounded beta biases every update. Nearly parallel
    keys with a constant beta of 0.99 give a state error of 1.5 % with fp16, 9.7 % with bf16.
    """
    dtype = tile_dtype(inputs)
    return (torch.float16 if dtype is torch.bfloat16 else dtype), dtype


def tma_usable(
    z: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor
) -> bool:
    """Whether tensor descriptors can address these inputs and the output."""
    if not has_tma(q.device) or z.K not in (64, 128) or not z.tokens:
        return False
    return all(
        t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 for t in (q, k, v, out)
    )


def row_tiles(t: torch.Tensor) -> TileMap:
    """Map of one head's chunk of q or k, a tensor [T, H, K]."""
    T, H, K = t.shape
    return t, T, H * K, t.stride(0), (CHUNK_TOKENS, K)


def tile_map(t: Any) -> TileMap:
    """Map of one chunk's tile in a prepared tensor [rows, width]."""
    rows, width = t.shape
    return t, rows, width, width, (CHUNK_TOKENS, width)


def scan(
    z: Sizes,
    b: Batch,
    scratch: Scratch,
    q: Any,
    k: Any,
    k_out: Any,
    strides: tuple[int, int],
    v: torch.Tensor,
    tiles: tuple[TileMap, TileMap, TileMap | None] | None,
    A: Any,
    P: Any,
    numbers: Any,
    out: torch.Tensor,
    pool: torch.Tensor,
    per_channel: bool,
    stages: Stages,
) -> list[Launch]:
    """The launch of the scan, after that of the local pass if the batch is split into segments.

    Scalar decay: q, k raw, k_out = k; ``numbers`` holds k_in, q_in and k_out of each token, then
    the chunks' log2 decays. Per channel: q, k, k_out are the prepared tiles and ``numbers`` is the
    log2 decays. ``strides``: of raw q's and k's tokens. ``tiles``: maps of q, k and (per channel)
    k_out, or None for plain loads.
    """
    p, BV, C = b.plan, b.state_rows, CHUNK_TOKENS
    device = v.device
    width = z.HV * (z.V // BV)
    wide = BV == WIDE_ROWS
    alone = device.type != "cuda" or p.segment_count * width <= sm_count(device.index or 0)
    depth = stages.wide if wide else stages.alone if alone else stages.shared
    if per_channel and z.K > 128:  # three tiles of 32 KiB a chunk
        depth = min(depth, 2)
    depth = pipeline_stages(depth, v.element_size(), device)
    overlap = can_overlap(device) and not b.split and not per_channel and p.chunk_count > 0
    whole_lines = v.element_size() == 2 and z.K in (64, 128)
    ahead = programs_ahead(p.segment_count * width, device, wide and whole_lines)
    options: dict[str, Any] = {"num_warps": 8 if wide else 4}
    if overlap:
        options["launch_pdl"] = True
    BK = next_power_of_2(z.K)
    tma = tiles is not None
    maps: tuple[TileMap | None, ...] = (None,) * 7
    if tiles is not None:
        v_tiles = (v, z.tokens, z.HV * z.V, v.stride(0), (C, BV))
        maps = (*tiles, v_tiles, tile_map(A), tile_map(P), None)
        if (wide or alone) and not per_channel:
            maps = (*maps[:6], (out, z.tokens, z.HV * z.V, z.HV * z.V, (C, BV)))
    row_count = 0 if per_channel else A.shape[0]
    sizes_of = (row_count, *strides, v.stride(0), pool.stride(0), z.slots)
    sizes = (z.H, z.HV, z.K, z.V, BK, BV, C, per_channel)
    added = moved = live = None
    if b.split:
        state, flags = (p.segment_count, z.HV, z.V * BK), (p.segment_count, z.HV)
        added = scratch.piece(state, torch.float32)
        moved = scratch.piece(state, A.dtype)
        live = scratch.piece(flags, torch.int32)
        local = Launch(
            _launch_local,
            (p.inner_count * 2 * width, 1, 1),
            (pool, q, k, k_out, v, A, P, numbers, out, b.read_slots, p.runs, p.segments, p.inner,
             added, moved, live),
            maps,
            sizes_of,
            (*sizes, next_power_of_2(p.longest_segment_chunks), tma,
             pipeline_stages(LOCAL_STAGES, v.element_size(), device)),
            options,
        )  # fmt: skip
    whole = Launch(
        _launch_scan,
        (p.segment_count * width, 1, 1),
        (pool, q, k, k_out, v, A, P, numbers, out, b.read_slots, b.slots, p.runs, p.segments,
         p.stops, added, moved, live),
        maps,
        sizes_of,
        (*sizes, b.split, next_power_of_2(p.most_segments), p.has_stops, tma, depth, overlap,
         b.in_pairs, ahead),
        options,
    )  # fmt: skip
    return [local, whole] if b.split else [whole]


def programs_ahead(programs: int, device: torch.device, fills: bool) -> int:
    """How much further on the program is that a processor runs next; 0 where none is read ahead.

    Only where one program ``fills`` a processor, since elsewhere another runs while one waits.
    """
    resident = sm_count(device.index or 0) if fills and device.type == "cuda" else 0
    return resident if programs > resident else 0


def can_overlap(device: torch.device) -> bool:
    """Whether a scan may start while its prepare kernel runs, and wait for it inside.

    Not where it is split into segments: there programs that wait were measured to be in the way.
    """
    return device.type == "cuda" and has_tma(device)


LEAST_SCALAR, LEAST_PER_CHANNEL = 16, 32
"""Chunks of a segment; with three tiles a chunk one program fills a multiprocessor."""

LOCAL_STAGES = 3
"""Pipeline depth of the local pass: without q and P two programs still fit one multiprocessor."""

_launch_local = Launcher(_local)
_launch_scan = Launcher(_scan)
