"""Order of the free queue, keys with several blocks, blocks with several keys."""

from __future__ import annotations

import pytest

from hybridplan.errors import InputError
from hybridplan.sim.vllm.pool import NULL_BLOCK, BlockPool
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup


def _pool(num_blocks: int = 8) -> BlockPool:
    return BlockPool(num_blocks, 1)


def test_unkeyed_blocks_are_reused_first_and_keyed_ones_last() -> None:
    pool = _pool()
    taken = pool.take(4, 0)
    assert taken == [1, 2, 3, 4]
    pool.publish(2, 0, "k2", 64)
    pool.free([4, 3, 2, 1])
    assert pool.free_queue() == [4, 3, 1, 5, 6, 7, 2]
    assert pool.take(3, 0) == [4, 3, 1]


def test_first_inserted_block_answers_while_it_keeps_the_key() -> None:
    pool = _pool()
    first, second = pool.take(2, 0)
    pool.publish(second, 0, "k", 64)
    pool.publish(first, 0, "k", 64)
    assert pool.lookup(0, "k") == second
    pool.lose(second, overwritten=True)
    assert pool.lookup(0, "k") == first
    pool.lose(first, overwritten=True)
    assert pool.lookup(0, "k") == NULL_BLOCK


def test_eviction_takes_every_key_of_the_block() -> None:
    pool = _pool(3)
    lost: list[object] = []
    pool.on_evict.append(lambda block, keys, overwritten: lost.extend(keys))
    block, other = pool.take(2, 0)
    pool.publish(block, 0, "full", 64)
    pool.publish(block, 0, "tail", 32)
    pool.free([other, block])
    pool.take(2, 0)
    assert lost == [(0, "full"), (0, "tail")]
    assert pool.evictions == 1
    assert not pool.cached[0]


def test_touch_takes_a_cached_block_out_of_the_queue() -> None:
    pool = _pool(3)
    (block,) = pool.take(1, 0)
    pool.publish(block, 0, "k", 64)
    pool.free([block])
    pool.touch([NULL_BLOCK, block])
    assert pool.free_queue() == [2]
    assert (pool.used, pool.peak) == ([1], [1])


def test_moved_keys_name_the_copy() -> None:
    pool = _pool()
    source, target = pool.take(2, 0)
    pool.publish(source, 0, "k", 64)
    pool.move_keys(source, target)
    assert pool.lookup(0, "k") == target
    assert pool.keys_of(source) == []


def test_untouched_blocks_cost_no_memory() -> None:
    pool = BlockPool(10**12, 1)
    assert pool.free_blocks == 10**12 - 1
    assert pool.take(2, 0) == [1, 2]
    assert len(pool.refs) == 3


@pytest.mark.parametrize(
    "change, words",
    [
        ({"version": "0.31"}, "0.31"),
        ({"num_blocks": 1}, "null block"),
        ({"prefix_match_unit_tokens": 48}, "does not divide"),
        ({"retention_interval_tokens": 100}, "multiple"),
        ({"groups": ()}, "at least one group"),
    ],
    ids=["version", "no-blocks", "unit", "retention", "no-groups"],
)
def test_impossible_configurations_name_the_numbers(change: dict[str, object], words: str) -> None:
    state, full = VllmGroup(GroupKind.MAMBA_ALIGN, 64), VllmGroup(GroupKind.FULL, 64)
    fields: dict[str, object] = {"groups": (state, full), "num_blocks": 10, **change}
    with pytest.raises(InputError, match=words):
        VllmCacheConfig(**fields)  # type: ignore[arg-type]
