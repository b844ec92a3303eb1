"""The replay against a twin that steps every token and scans lists for its victims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.sim.arrival import Closed
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.sequence import TokenSequence
from hybridplan.sim.sglang.cache import Decoded, SglangCache
from hybridplan.sim.sglang.config import PoolExhaustedError, SglangCacheConfig
from hybridplan.sim.sglang.integrity import check_integrity
from hybridplan.sim.sglang.node import Node
from hybridplan.sim.sglang.replayed import ReplayedSglang
from hybridplan.sim.sglang.tree import StateTree


class ScanningTree(StateTree):
    """Victims found by looking at every node each time."""

    def evict_kv(self, short_tokens: int) -> None:
        target = self.kv_free + short_tokens
        while self.kv_free < target:
            leaves = [node for node in self.nodes() if node.evictable_leaf]
            if not leaves:
                return
            self._delete_leaf(min(leaves, key=lambda node: node.access))

    def walked(self) -> tuple[int, int, int]:
        nodes = list(self.nodes())
        return (
            sum(node.tokens for node in nodes if not node.full_lock),
            sum(node.tokens for node in nodes if node.full_lock),
            sum(node.state for node in nodes),
        )


class SteppingCache(SglangCache):
    """Decode token by token; a list instead of a linked order of states."""

    def __init__(self, config: SglangCacheConfig) -> None:
        super().__init__(config)
        self.tree = self.scanning = ScanningTree(
            config.kv_tokens,
            config.state_slots,
            config.page_tokens,
            config.checkpoint_grid,
            config.max_states_per_path,
        )

    def decode(self, request_id: str, output_tokens: int) -> Decoded:
        parts = [super(SteppingCache, self).decode(request_id, 1) for _ in range(output_tokens)]
        tracked = tuple(position for part in parts for position in part.tracked)
        return Decoded(
            self.running[request_id].kv_end,
            tracked,
            sum(part.evicted_states for part in parts),
            sum(part.evicted_kv_tokens for part in parts),
        )


def picture(cache: SglangCache) -> Any:
    def row(node: Node) -> tuple[Any, ...]:
        return (node.end, node.tokens, node.state, node.full_lock, node.state_lock, node.access)

    tree = cache.tree
    order = [row(node) for node in tree.states.most_recent_first()]
    return tree.kv_free, tree.slots_free, sorted(map(row, tree.nodes())), order


def answered(call: Callable[[], Any]) -> Any:
    """What a call returns, or the sentence with which it refuses."""
    try:
        return call()
    except PoolExhaustedError as refusal:
        return refusal.sentence


CONFIGS = st.builds(
    SglangCacheConfig,
    kv_tokens=st.sampled_from([192, 320, 640]),
    state_slots=st.integers(10, 16),
    strategy=st.sampled_from(["extra_buffer", "extra_buffer_lazy"]),
    page_tokens=st.sampled_from([1, 4, 16]),
    chunk_tokens=st.sampled_from([16, 32]),
    track_interval_tokens=st.sampled_from([16, 64]),
    chunked_prefill_tokens=st.sampled_from([None, 32]),
    max_states_per_path=st.sampled_from([-1, 1, 2]),
    overlap=st.booleans(),
    skip_decode_lock=st.booleans(),
) | st.builds(
    SglangCacheConfig,
    kv_tokens=st.sampled_from([192, 320, 640]),
    state_slots=st.integers(6, 10),
    strategy=st.just("no_buffer"),
    chunk_tokens=st.just(16),
    chunked_prefill_tokens=st.sampled_from([None, 32]),
)


@st.composite
def token_lists(draw: st.DrawFn, most: int = 12) -> list[tuple[list[int], int]]:
    """(tokens, how many are prompt); later ones often continue earlier ones."""
    made: list[tuple[list[int], int]] = []
    for index in range(draw(st.integers(1, most))):
        fresh = list(range(1000 * index + 500, 1000 * index + 500 + draw(st.integers(1, 70))))
        prompt = fresh
        if made and draw(st.integers(0, 3)):
            old = draw(st.sampled_from(made))[0]
            prompt = old[: draw(st.integers(1, len(old)))] + fresh
        prompt = prompt[:110]
        answer = range(1000 * index, 1000 * index + draw(st.integers(0, 70)))
        made.append((prompt + list(answer), len(prompt)))
    return made


def requests_of(lists: list[tuple[list[int], int]]) -> list[Request]:
    return [
        Request(
            str(index),
            Prompt(prompt_tokens, 1, tokens[:prompt_tokens]),
            len(tokens) - prompt_tokens,
            sequence=Prompt(len(tokens), 1, tokens),
        )
        for index, (tokens, prompt_tokens) in enumerate(lists)
    ]


@given(CONFIGS, token_lists(), st.data())
@settings(max_examples=80, deadline=None)
def test_jumping_and_heaps_agree_with_stepping_and_scanning(
    config: SglangCacheConfig, lists: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    clever, naive = SglangCache(config), SteppingCache(config)
    live: list[tuple[str, int]] = []
    todo = [(str(index), *made) for index, made in enumerate(lists)]
    while todo or live:
        if todo and (not live or (len(live) < 2 and data.draw(st.booleans()))):
            name, tokens, prompt_tokens = todo.pop()
            sequence = TokenSequence.of_tokens(tokens)
            start = partial(SglangCache.start, request_id=name, sequence=sequence)
            both = [
                answered(partial(start, cache, prompt_tokens=prompt_tokens))
                for cache in (clever, naive)
            ]
            assert both[0] == both[1]
            live.append((name, len(tokens) - prompt_tokens))
        else:
            name, output_tokens = live.pop(0)
            both = [answered(partial(c.decode, name, output_tokens)) for c in (clever, naive)]
            assert both[0] == both[1]
            if isinstance(both[0], Decoded):
                assert clever.finish(name) == naive.finish(name)
        if isinstance(both[0], str):
            return  # two requests at once were more than these pools hold
        check_integrity(clever)
        assert picture(clever) == picture(naive)
        tree = clever.tree
        totals = (tree.kv_evictable, tree.protected_tokens, len(tree.states))
        assert naive.scanning.walked() == totals


@given(CONFIGS, token_lists(8), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_requests_in_step_agree_token_by_token(
    config: SglangCacheConfig, lists: list[tuple[list[int], int]], running: int
) -> None:
    requests = requests_of(lists)
    clever, naive = (ReplayedSglang(config, skipping=skipping) for skipping in (True, False))
    replays = [Replay(requests, engine, arrival=Closed(running)) for engine in (clever, naive)]
    ours, theirs = map(list, replays)
    assert ours == theirs
    assert picture(clever.cache) == picture(naive.cache)
    check_integrity(clever.cache)
    exact = config.page_tokens == 1
    assert clever.use().groups[0].peak_blocks == naive.use().groups[0].peak_blocks
    assert clever.use() == naive.use() or not exact


@given(CONFIGS, token_lists())
@settings(max_examples=40, deadline=None)
def test_host_tier_keeps_its_invariants(
    config: SglangCacheConfig, lists: list[tuple[list[int], int]]
) -> None:
    engine = ReplayedSglang(replace(config, host_kv_tokens=480, host_state_slots=6))
    for outcome in Replay(requests_of(lists), engine):
        check_integrity(engine.cache)
        assert outcome.hit_tokens < max(1, outcome.prompt_tokens)


def test_a_full_pool_is_refused_with_its_numbers() -> None:
    cache = SglangCache(SglangCacheConfig(kv_tokens=100, state_slots=12, chunk_tokens=16))
    cache.start("a", TokenSequence.of_tokens(range(80)), 80)
    with pytest.raises(PoolExhaustedError, match="needs 80 KV tokens to reach 80 and 20 of 100"):
        cache.start("b", TokenSequence.of_tokens(range(200, 280)), 80)
