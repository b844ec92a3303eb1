"""The host tier: what it takes in, what it finds, and what a load leaves on the device."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.sim.fleet.host import HostStore, HostTier
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Request
from hybridplan.sim.vllm import invariants
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup
from tests.sim.fleet.cases import BLOCK, engine, request, trace


def run(served: ReplayedVllm, requests: list[Request]) -> list[int]:
    """Hit tokens by request, one at a time."""
    return [outcome.hit_tokens for outcome in Replay(requests, served)]


def tier(served: ReplayedVllm, blocks: int = 1000) -> HostTier:
    return HostTier(served, blocks * 1000, 1000)


def test_an_evicted_prefix_comes_back() -> None:
    served = engine(20)
    host = tier(served)
    run(served, [request("a", (1, 2, 3))])
    assert host.find(request("again", (1, 2, 3))) is None
    run(served, [request(f"other{i}", (10 + i, 20 + i, 30 + i)) for i in range(6)])
    load = host.find(request("again", (1, 2, 3)))
    assert load is not None
    assert (load.device_tokens, load.hit_tokens) == (0, 3 * BLOCK)
    assert load.moved_bytes == 1000 * (3 + 2)  # three blocks of KV and the states at their end
    assert host.restore(load)
    found = served.engine.scheduler.coordinator.lookup(load.sequence)
    positions = [served.engine.pool.key_position[block] for block in found.blocks[0]]
    assert positions == [BLOCK, 2 * BLOCK, 3 * BLOCK]
    assert run(served, [request("again", (1, 2, 3))]) == [3 * BLOCK]


def test_a_state_that_its_owner_overwrites_is_not_kept() -> None:
    served = engine(20)
    host = tier(served)
    (block,) = served.engine.pool.take(1, 1)
    host.evicted(block, [(1, 77)], overwritten=True)
    assert len(host.store) == 0
    host.evicted(block, [(1, 77)], overwritten=False)
    assert host.store.number((1, 77)) is not None


def test_without_the_state_kv_on_the_host_is_no_hit() -> None:
    served = engine(20)
    host = tier(served)
    run(served, [request("a", (1, 2, 3))])
    run(served, [request(f"other{i}", (10 + i, 20 + i, 30 + i)) for i in range(6)])
    assert host.find(request("shorter", (1, 2, 9))) is None


def test_a_full_host_forgets_the_oldest() -> None:
    store = HostStore(2000, 1000)
    for key in (1, 2, 3):
        store.store((0, key), BLOCK)
    assert [store.number((0, key)) is not None for key in (1, 2, 3)] == [False, True, True]
    store.touch([(0, 2)])
    store.store((0, 4), BLOCK)
    assert [store.number((0, key)) is not None for key in (2, 3, 4)] == [True, False, True]
    assert (store.stored_blocks, store.evictions, len(store)) == (4, 2, 2)


def test_a_host_too_small_for_a_block_is_refused() -> None:
    with pytest.raises(InputError, match="does not hold one block"):
        HostStore(999, 1000)


def test_a_load_without_room_changes_nothing() -> None:
    served = engine(20)
    host = tier(served)
    run(served, [request("a", (1, 2, 3))])
    run(served, [request(f"other{i}", (10 + i, 20 + i, 30 + i)) for i in range(6)])
    load = host.find(request("again", (1, 2, 3)))
    assert load is not None
    pool = served.engine.pool
    held = pool.take(pool.free_blocks - 1, 0)
    before = (pool.free_queue(), pool.evictions)
    assert not host.restore(load)
    assert (pool.free_queue(), pool.evictions) == before
    pool.free(held)


@given(st.integers(0, 10_000), st.integers(16, 60), st.integers(1, 80))
def test_a_load_gives_what_was_found_and_keeps_the_pool_whole(
    seed: int, device_blocks: int, host_blocks: int
) -> None:
    served = engine(device_blocks, max_model_len=64 * 5)
    host = tier(served, host_blocks)
    rng = Random(seed)
    for one in trace(seed, 30, sessions=False):
        ids = one.prompt.ids[:3]
        asked = request(one.request_id, tuple(ids), rng.randrange(1, 60))
        load = host.find(asked)
        expected = None
        if load is not None:
            assert load.device_tokens < load.hit_tokens < asked.prompt.length_tokens
            assert len(load.blocks) == len(set(load.blocks))
            if host.restore(load):
                expected = load.hit_tokens
        invariants.check(served.engine)
        (hit,) = run(served, [asked])
        assert expected is None or hit == expected
        assert len(host.store) <= host_blocks


@given(st.integers(0, 10_000))
def test_an_unlimited_host_hits_what_an_unlimited_device_would(seed: int) -> None:
    """For attention alone. With states it need not: prompts that part where only the host has KV
    leave no state there."""
    kv = (VllmGroup(GroupKind.FULL, BLOCK),)
    small, large = (
        ReplayedVllm(VllmCacheConfig(kv, num_blocks, max_model_len=64 * 5))
        for num_blocks in (9, 100_000)
    )
    host = tier(small, 10**6)
    for one in trace(seed, 30, sessions=False):
        asked = request(one.request_id, tuple(one.prompt.ids[:3]), 20)
        load = host.find(asked)
        if load is not None:
            assert host.restore(load)
        assert run(small, [asked]) == run(large, [asked])
