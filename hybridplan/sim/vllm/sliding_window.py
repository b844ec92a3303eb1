"""Sliding-window and chunked local attention; ``SlidingWindowManager`` and its chunked sibling."""

from __future__ import annotations

from collections.abc import Sequence

from hybridplan.sim.vllm.keys import Key
from hybridplan.sim.vllm.manager import GroupManager
from hybridplan.sim.vllm.pool import NULL_BLOCK, BlockPool
from hybridplan.sim.vllm.positions import ceil_div
from hybridplan.sim.vllm.types import VllmCacheConfig, VllmGroup


def blocks_for_hit(window_tokens: int, block: int, *, drop: bool) -> int:
    """Blocks in a row that a hit must find: the window before the next token (plus one dropped)."""
    return ceil_div(window_tokens - 1, block) + (1 if drop else 0)


class SlidingWindowManager(GroupManager):
    """Releases blocks left of the window; publishes only columns a hit can use."""

    def __init__(
        self, index: int, group: VllmGroup, config: VllmCacheConfig, pool: BlockPool
    ) -> None:
        super().__init__(index, group, config, pool)
        held = group.window_tokens - 1 + group.extra_retained_tokens + config.max_in_flight_tokens
        self.admission_cap = ceil_div(min(held, config.max_model_len), self.block) + 1

    def skipped_tokens(self, computed: int) -> int:
        group = self.group
        return max(0, computed - group.window_tokens + 1 - group.extra_retained_tokens)

    def kept_columns(self, start: int, end: int, reachable: Sequence[int]) -> list[bool] | None:
        alignment, block = self.alignment, self.block
        if alignment % block:
            return None
        need = blocks_for_hit(self.group.window_tokens, block, drop=self.drops)
        shift = 1 if self.drops else 0
        interval = self.config.retention_interval_tokens
        mask = [False] * (end - start)
        segment = alignment if interval is None else interval
        if segment:
            per_segment = segment // block
            if need >= per_segment:
                return None
            for column in range(max(start, shift), end):
                if (column - shift) % per_segment >= per_segment - need:
                    mask[column - start] = True
        if interval is not None:
            for boundary in reachable:
                edge = boundary // alignment * alignment // block + shift
                for column in range(max(start, edge - need), min(end, edge)):
                    mask[column - start] = True
        return mask


class ChunkedLocalManager(GroupManager):
    """Attention inside chunks of ``window_tokens``; everything left of the chunk is released."""

    def __init__(
        self, index: int, group: VllmGroup, config: VllmCacheConfig, pool: BlockPool
    ) -> None:
        super().__init__(index, group, config, pool)
        held = group.window_tokens + config.max_in_flight_tokens
        self.admission_cap = ceil_div(min(held, config.max_model_len), self.block)

    def skipped_tokens(self, computed: int) -> int:
        return computed // self.group.window_tokens * self.group.window_tokens


def find_sliding(
    pool: BlockPool,
    groups: Sequence[int],
    keys: Sequence[Key],
    num_keys: int,
    *,
    max_tokens: int,
    block: int,
    alignment: int,
    unit: int,
    window_tokens: int,
    drop: bool,
) -> tuple[list[list[int]], int]:
    """Rightmost run of blocks that covers the window, in all ``groups`` at once.

    Returns each group's blocks (nulls left of the run) and the hit in tokens.
    ``SlidingWindowManager.find_longest_cache_hit``.
    """
    per_block = block // unit
    need = blocks_for_hit(window_tokens, block, drop=drop)
    limit = min(max_tokens // block, num_keys // per_block)
    tables = [[NULL_BLOCK] * limit for _ in groups]
    run = 0
    complete = False
    for column in range(limit - 1, -1, -1):
        key = keys[(column + 1) * per_block - 1]
        found = [pool.lookup(group, key) for group in groups]
        if not all(found):
            run = 0
            continue
        edge = column if drop else column + 1
        if run == 0 and block != alignment and edge * block % alignment:
            continue
        for table, hit_block in zip(tables, found, strict=True):
            table[column] = hit_block
        run += 1
        if run >= need:
            _cut(tables, column + run)
            complete = True
            break
    if not complete:
        _cut(tables, run if block == alignment else _aligned(run, block, alignment))
    if drop and tables[0]:
        columns = len(tables[0]) - 1
        _cut(tables, columns if block == alignment else _aligned(columns, block, alignment))
    return tables, len(tables[0]) * block


def find_chunked(
    pool: BlockPool,
    groups: Sequence[int],
    keys: Sequence[Key],
    num_keys: int,
    *,
    max_tokens: int,
    block: int,
    unit: int,
    window_tokens: int,
) -> tuple[list[list[int]], int]:
    """Chunks left of the last one count as found; the last must be published from its start.

    ``ChunkedLocalAttentionManager.find_longest_cache_hit``.
    """
    per_block = block // unit
    start = max_tokens // window_tokens * window_tokens // block
    tables = [[NULL_BLOCK] * start for _ in groups]
    for column in range(start, min(max_tokens // block, num_keys // per_block)):
        found = [pool.lookup(group, keys[(column + 1) * per_block - 1]) for group in groups]
        if not all(found):
            break
        for table, hit_block in zip(tables, found, strict=True):
            table.append(hit_block)
    return tables, len(tables[0]) * block


def _aligned(columns: int, block: int, alignment: int) -> int:
    while columns and columns * block % alignment:
        columns -= 1
    return columns


def _cut(tables: list[list[int]], columns: int) -> None:
    for table in tables:
        del table[columns:]
