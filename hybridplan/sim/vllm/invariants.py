"""What must hold after every step of the replay, numbered. Tests call ``check``; nothing else does.

I1  free + referenced = all blocks but the null block; a free block that carries a key is cached.
I2  Each block's count is the number of table entries that name it (copies queued are released).
I3  A block named by two tables is named at the same column of the same group, and carries a key.
I4  Free blocks are in no table; the null block is never counted or keyed.
I5  The key map and the keys of blocks are each other's inverse.
I6  A table holds what its request has computed: no column before the window's edge is missing.
I7  Used blocks by group add up to the referenced blocks.
I8  Counters: 0 <= computed <= tokens + drafts in flight, running requests are within limits.
"""

from __future__ import annotations

from collections import Counter

from hybridplan.sim.vllm.engine import VllmEngine
from hybridplan.sim.vllm.sequence import Sequence
from hybridplan.sim.vllm.types import GroupKind


class InvariantError(AssertionError):
    """An invariant of the replay does not hold; the message starts with its number."""


def check(engine: VllmEngine) -> None:
    """Raise InvariantError at the first invariant that fails. Costs a walk over the pool."""
    sequences = [*engine.scheduler.running, *engine.scheduler.waiting]
    _check_pool(engine)
    _check_tables(engine, sequences)
    _check_keys(engine)
    _check_counters(engine)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)


def _check_pool(engine: VllmEngine) -> None:
    pool = engine.pool
    queue = pool.free_queue()
    referenced = sum(1 for count in pool.refs if count)
    _require(len(queue) == len(set(queue)) == pool.free_blocks, "I1: the free queue repeats blocks")
    _require(
        len(queue) + referenced == pool.num_blocks - 1,
        f"I1: {len(queue)} free + {referenced} referenced are not {pool.num_blocks - 1} blocks",
    )
    for block in queue:
        if block < len(pool.refs):
            _require(not pool.refs[block], f"I4: block {block} is free and referenced")
    _require(pool.refs[0] == 0 and pool.key_of[0] is None, "I4: the null block is counted or keyed")
    _require(
        sum(pool.used) == referenced,
        f"I7: groups use {sum(pool.used)} blocks, {referenced} are referenced",
    )


def _check_tables(engine: VllmEngine, sequences: list[Sequence]) -> None:
    pool = engine.pool
    named: Counter[int] = Counter()
    place: dict[int, tuple[int, int]] = {}
    for seq in sequences:
        for index, table in enumerate(seq.tables):
            for column, block in enumerate(table.blocks):
                if not block:
                    continue
                named[block] += 1
                first = place.setdefault(block, (index, column))
                _require(
                    first == (index, column),
                    f"I3: block {block} is column {first[1]} of group {first[0]} and column"
                    f" {column} of group {index}",
                )
                if named[block] > 1:
                    _require(
                        pool.key_of[block] is not None, f"I3: block {block} is shared without a key"
                    )
    for block, count in enumerate(pool.refs):
        _require(
            count == named[block], f"I2: block {block} counts {count}, tables name {named[block]}"
        )
    for seq in engine.scheduler.running:
        _check_coverage(engine, seq)


def _check_coverage(engine: VllmEngine, seq: Sequence) -> None:
    for index, group in enumerate(engine.config.groups):
        blocks = seq.tables[index].blocks
        if group.kind is GroupKind.RING:
            _require(len(blocks) == 1, "I6: a ring has one block")
            continue
        columns = -(-seq.computed // group.block_tokens)
        _require(
            len(blocks) >= columns,
            f"I6: {seq.request.request_id} computed {seq.computed} tokens, group {index} has"
            f" {len(blocks)} blocks",
        )
        if group.kind.is_full_attention:
            _require(all(blocks), f"I6: full attention group {index} has a hole")
        elif columns:
            _require(
                bool(blocks[columns - 1]),
                f"I6: group {index} has no block for the last computed token",
            )


def _check_keys(engine: VllmEngine) -> None:
    pool = engine.pool
    by_map = set()
    for group, cached in enumerate(pool.cached):
        for key, found in cached.items():
            for block in [found] if isinstance(found, int) else found:
                by_map.add((block, group, key))
    by_block = {
        (block, group, key) for block in range(len(pool.refs)) for group, key in pool.keys_of(block)
    }
    _require(by_map == by_block, "I5: the key map and the blocks' keys differ")


def _check_counters(engine: VllmEngine) -> None:
    config = engine.config
    _require(len(engine.scheduler.running) <= config.max_seqs, "I8: more requests than max_seqs")
    for seq in engine.scheduler.running:
        most = seq.num_tokens + seq.placeholders + config.draft_tokens
        _require(
            0 <= seq.computed <= most,
            f"I8: {seq.request.request_id} computed {seq.computed} of at most {most} tokens",
        )
