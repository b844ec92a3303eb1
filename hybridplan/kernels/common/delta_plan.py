"""How a packed batch is walked by the chunk kernels of the delta rule: chunks, runs, segments."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from hybridplan.kernels.common.checks import KernelInputError, is_capturing, require
from hybridplan.kernels.common.varlen import chunk_bounds

CHUNK_TOKENS = 64
"""Tokens of a chunk in both delta-rule prefills."""

RUN_COLUMNS = 6
"""Of the table of runs."""

Export = tuple[int, int, int]
"""A state to keep: (sequence, tokens from its start, slot)."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Tables for one batch, on the device.

    chunks int32 [C, 2]: first and end token. runs int32 [R, 6]: first token, full chunks, tail
    tokens, first chunk, slot for the state at its end or -1, first stop at or after its first
    chunk; a run is walked by one loop. stops int32 [S + 1, 2]: a full chunk, the slot for the
    state before it; the last row names a chunk that does not exist. segments int32 [G, 5]: first
    run, end run, sequence, place in its sequence, segments of its sequence; a segment is walked by
    one program.
    inner int32 [I]: the segments that another one of the same sequence follows.
    """

    chunks: torch.Tensor
    runs: torch.Tensor
    segments: torch.Tensor
    stops: torch.Tensor
    inner: torch.Tensor
    chunk_count: int
    segment_count: int
    inner_count: int
    has_stops: bool
    longest_segment_chunks: int
    most_segments: int


@dataclass(frozen=True)
class Layout:
    """The same as plain numbers, for the host."""

    chunks: tuple[tuple[int, int], ...]
    runs: tuple[tuple[int, int, int, int, int, int], ...]
    segments: tuple[tuple[int, int, int, int, int], ...]
    stops: tuple[tuple[int, int], ...]


def layout(
    lengths: tuple[int, ...],
    exports: tuple[Export, ...],
    segment_chunks: int,
    export_in_loop: bool,
) -> Layout:
    """Walk of a batch. A segment ends after ``segment_chunks`` chunks (0: never).

    An export ends a run; with ``export_in_loop`` one between two full chunks is a stop of its run.
    """
    slot_at = {(n, p): slot for n, p, slot in exports}
    chunks: list[tuple[int, int]] = []
    runs: list[tuple[int, int, int, int, int, int]] = []
    stops: list[tuple[int, int]] = []
    segments: list[tuple[int, int, int, int, int]] = []
    base = 0
    for n, length in enumerate(lengths):
        bounds = chunk_bounds(length, CHUNK_TOKENS, [p for s, p in slot_at if s == n])
        per = segment_chunks or max(len(bounds), 1)
        starts = range(0, max(len(bounds), 1), per)
        for place, first in enumerate(starts):
            first_run = len(runs)
            run: list[tuple[int, int]] = []
            first_stop = len(stops)
            part = bounds[first : first + per]
            for i, (a, z) in enumerate(part):
                run.append((a, z))
                slot = slot_at.get((n, z), -1)
                whole = i + 1 < len(part) and part[i + 1][1] - part[i + 1][0] == CHUNK_TOKENS
                if export_in_loop and slot >= 0 and whole and z - a == CHUNK_TOKENS:
                    stops.append((len(chunks) + first + i + 1, slot))
                    continue
                if slot >= 0 or z - a < CHUNK_TOKENS or i + 1 == len(part):
                    tail = (z - a) % CHUNK_TOKENS
                    full = len(run) - (tail > 0)
                    at = len(chunks) + first + i + 1 - len(run)
                    runs.append((base + run[0][0], full, tail, at, slot, first_stop))
                    run = []
                    first_stop = len(stops)
            segments.append((first_run, len(runs), n, place, len(starts)))
        chunks += [(base + a, base + z) for a, z in bounds]
        base += length
    stops.append((_NO_CHUNK, -1))
    return Layout(tuple(chunks), tuple(runs), tuple(segments), tuple(stops))


_NO_CHUNK = 2**31 - 1


def plan(
    lengths: tuple[int, ...],
    exports: tuple[Export, ...],
    segment_chunks: int,
    device: torch.device,
    export_in_loop: bool,
) -> Plan:
    """The tables of a batch on ``device``, kept for the batches seen last."""
    key = (lengths, exports, segment_chunks, device, export_in_loop)
    found = _recent.pop(key, None) or _captured.get(key)
    if found is None:
        if is_capturing(device):
            raise KernelInputError(
                "this batch's tables are not on the device yet and a CUDA graph is being captured; "
                "call once with the same lengths and exports before the capture"
            )
        found = _build(*key)
    _recent[key] = found
    if len(_recent) > _RECENT_PLANS:
        _recent.pop(next(iter(_recent)))
    if is_capturing(device):
        _captured[key] = found
    return found


_Key = tuple[tuple[int, ...], tuple[Export, ...], int, torch.device, bool]
_RECENT_PLANS = 256
_recent: dict[_Key, Plan] = {}
_captured: dict[_Key, Plan] = {}
"""Tables that a captured graph reads: never freed."""


def _build(
    lengths: tuple[int, ...],
    exports: tuple[Export, ...],
    segment_chunks: int,
    device: torch.device,
    export_in_loop: bool,
) -> Plan:
    walk = layout(lengths, exports, segment_chunks, export_in_loop)
    inner = [i for i, s in enumerate(walk.segments) if s[3] + 1 < s[4]]
    spans = [
        sum(full + (tail > 0) for _, full, tail, *_ in walk.runs[a:z]) for a, z, *_ in walk.segments
    ]

    def table(rows: object, width: int) -> torch.Tensor:
        return torch.tensor(rows or [0] * width, dtype=torch.int32, device=device)

    return Plan(
        table(walk.chunks, 2),
        table(walk.runs, RUN_COLUMNS),
        table(walk.segments, 5),
        table(walk.stops, 2),
        table(inner, 1),
        len(walk.chunks),
        len(walk.segments),
        len(inner),
        len(walk.stops) > 1,
        max(spans),
        max(s[4] for s in walk.segments),
    )


@functools.lru_cache(maxsize=4096)
def check_positions(exports: tuple[Export, ...], lengths: tuple[int, ...]) -> None:
    """Raise unless each export names an existing token, and no two the same one."""
    positions = set()
    for sequence, position, _ in exports:
        require(
            0 <= sequence < len(lengths),
            f"export names sequence {sequence}, the batch has {len(lengths)}",
        )
        require(
            0 < position <= lengths[sequence],
            f"export after token {position} of sequence {sequence}, which has {lengths[sequence]}",
        )
        require(
            (sequence, position) not in positions,
            f"token {position} of sequence {sequence} is exported twice",
        )
        positions.add((sequence, position))


@functools.lru_cache(maxsize=4096)
def check_exports(
    exports: tuple[Export, ...], lengths: tuple[int, ...], pool_slots: int, final: tuple[int, ...]
) -> None:
    """Raise unless each export names an existing token and a slot nothing else writes."""
    check_positions(exports, lengths)
    slots = {s for s in final if s >= 0}
    for _, _, slot in exports:
        require(
            0 <= slot < pool_slots, f"export slot {slot} is outside the pool of {pool_slots} slots"
        )
        require(slot not in slots, f"slot {slot} would be written twice")
        slots.add(slot)


def aligned(exports: tuple[Export, ...], lengths: tuple[int, ...]) -> bool:
    """Whether every export lies on a chunk boundary or at a sequence's end."""
    return all(p % CHUNK_TOKENS == 0 or p == lengths[n] for n, p, _ in exports)
