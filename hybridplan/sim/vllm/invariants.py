"""What must hold in a replay, numbered. Tests call the checks; nothing else does.

After every step (``check``):

I1  free + referenced = all blocks but the null block; a free block that carries a key is cached.
I2  Each block's count is the number of table entries that name it (copies queued are released).
I3  A block named by two tables belongs to one group and carries a key; an attention block is at the
    same column in both (0.32 can share a state whose first owner has moved it along).
I4  Free blocks are in no table; the null block is never counted or keyed.
I5  The key map and the keys of blocks are each other's inverse.
I6  A table holds what its request has computed: no column before the window's edge is missing.
I7  Used blocks by group add up to the referenced blocks.
I8  Counters: 0 <= computed <= tokens + drafts in flight, running requests are within limits.

When a request is about to start on a hit (``check_admission``):

I9  The hit is a multiple of the hit alignment and leaves at least one token to compute.
I10 Every block of the hit was written for this very prefix: it carries the request's key.
I11 No recurrent state of the hit is one that this same step writes.

Of an outcome (``check_outcome``):

I12 The causes of loss are positive and sum to the ceiling minus the hit.
I13 hit <= what KV alone allows <= prompt.
"""

from __future__ import annotations

from collections import Counter

from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.vllm.coordinator import Lookup
from hybridplan.sim.vllm.engine import VllmEngine
from hybridplan.sim.vllm.sequence import Sequence
from hybridplan.sim.vllm.types import GroupKind


def check_admission(engine: VllmEngine, seq: Sequence, lookup: Lookup) -> None:
    """Raise InvariantError if the prefix ``seq`` is to start on is not one it may use."""
    config = engine.config
    hit = lookup.hit_tokens
    single = len(config.groups) == 1
    alignment = config.groups[0].block_tokens if single else config.hit_alignment_tokens
    _require(
        hit % alignment == 0 and 0 <= hit < seq.num_tokens,
        f"I9: a hit of {hit} of {seq.num_tokens} tokens, alignment {alignment}",
    )
    for index, (group, blocks) in enumerate(zip(config.groups, lookup.blocks, strict=True)):
        manager = engine.scheduler.coordinator.managers[index]
        for column, block in enumerate(blocks):
            if not block:
                continue
            per_block = group.block_tokens // config.hash_block_tokens
            inside = seq.keys[column * per_block : (column + 1) * per_block]
            _require(
                any((index, key) in engine.pool.keys_of(block) for key in inside),
                f"I10: block {block} of group {index} is not the request's prefix in column"
                f" {column}",
            )
        if group.kind.is_mamba and blocks:
            _require(
                engine.pool.key_of[blocks[-1]] not in manager.published_this_step,
                f"I11: group {index} starts on a state of this step",
            )


def check_outcome(outcome: RequestOutcome) -> None:
    """Raise InvariantError if an outcome's tokens do not add up."""
    lost = sum(tokens for _, tokens in outcome.lost)
    if outcome.ceiling_tokens is not None:
        _require(
            lost == outcome.ceiling_tokens - outcome.hit_tokens
            and all(tokens > 0 for _, tokens in outcome.lost),
            f"I12: {outcome.request_id} lost {lost} tokens of"
            f" {outcome.ceiling_tokens} - {outcome.hit_tokens}",
        )
    _require(
        outcome.hit_tokens <= outcome.kv_hit_tokens <= outcome.prompt_tokens,
        f"I13: {outcome.request_id} hits {outcome.hit_tokens}, KV {outcome.kv_hit_tokens}",
    )


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
                at = -1 if engine.config.groups[index].kind.is_mamba else column
                first = place.setdefault(block, (index, at))
                _require(
                    first == (index, at),
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
