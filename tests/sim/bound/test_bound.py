"""Bounds against exhaustive search, and real policies against the bounds."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.sim.bound import cache_bounds
from hybridplan.sim.bound.kv import optimal_kv_hits
from hybridplan.sim.bound.placement import optimal_placement, overlap_histogram
from hybridplan.sim.bound.states import choices, state_hits_bound
from hybridplan.sim.bound.trie import Trie
from hybridplan.sim.ceiling import InfiniteCache
from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.replayed import MarconiConfig, ReplayedMarconi
from hybridplan.sim.replay import simulate
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.sglang.config import SglangCacheConfig
from hybridplan.sim.sglang.replayed import ReplayedSglang

Served = tuple[tuple[int, ...], int]  # tokens, and how many of them are prompt


@st.composite
def traces(draw: st.DrawFn, requests: int = 5, tokens: int = 3) -> list[Served]:
    token = st.integers(0, 1)
    made: list[Served] = []
    for _ in range(draw(st.integers(1, requests))):
        prompt = tuple(draw(st.lists(token, min_size=1, max_size=tokens)))
        if made and draw(st.booleans()):
            prompt = (draw(st.sampled_from(made))[0] + prompt)[: tokens + 1]
        answer = tuple(draw(st.lists(token, max_size=1)))
        made.append((prompt + answer, len(prompt)))
    return made


def as_requests(trace: list[Served]) -> list[Request]:
    return [
        Request(
            str(index),
            Prompt(prompt_tokens, 1, tokens[:prompt_tokens]),
            len(tokens) - prompt_tokens,
            sequence=Prompt(len(tokens), 1, tokens),
        )
        for index, (tokens, prompt_tokens) in enumerate(trace)
    ]


def prefixes(tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tokens[:end] for end in range(1, len(tokens) + 1)]


def best_by_search(trace: list[Served], capacity: int, kv: bool) -> int:
    """The most hit tokens over every way to keep ``capacity`` prefixes: tokens of KV, which need
    all before them, or states, of which the deepest counts."""

    @cache
    def best(index: int, kept: frozenset[tuple[int, ...]]) -> int:
        if index == len(trace):
            return 0
        tokens, prompt_tokens = trace[index]
        reusable = prefixes(tokens[: prompt_tokens - 1])
        if kv:
            hit = next((k for k, p in enumerate(reusable) if p not in kept), len(reusable))
        else:
            hit = max((len(p) for p in reusable if p in kept), default=0)
        available = sorted(kept | set(prefixes(tokens)))
        sizes = range(min(capacity, len(available)), min(capacity, len(available)) + 1)
        return hit + max(
            best(index + 1, frozenset(chosen))
            for size in sizes
            for chosen in combinations(available, size)
        )

    return best(0, frozenset())


@given(traces(), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_kv_bound_is_the_optimum(trace: list[Served], capacity: int) -> None:
    hits = optimal_kv_hits(Trie(as_requests(trace)), capacity)
    assert sum(hits) == best_by_search(trace, capacity, kv=True)


@given(traces(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_state_bound_is_never_below_the_optimum(trace: list[Served], states: int) -> None:
    bound = state_hits_bound(Trie(as_requests(trace)), states)
    assert bound >= best_by_search(trace, states, kv=False)


def lru(trace: list[Served], capacity: int, kv: bool) -> int:
    """Least recently used over tokens of KV (deeper ones of a request older) or over states."""
    kept: OrderedDict[tuple[int, ...], None] = OrderedDict()
    total = 0
    for tokens, prompt_tokens in trace:
        reusable = prefixes(tokens[: prompt_tokens - 1])
        if kv:
            total += next((k for k, p in enumerate(reusable) if p not in kept), len(reusable))
        else:
            total += max((len(p) for p in reusable if p in kept), default=0)
        for prefix in reversed(prefixes(tokens)):
            kept[prefix] = None
            kept.move_to_end(prefix)
        while len(kept) > capacity:
            kept.popitem(last=False)
    return total


@given(traces(requests=25, tokens=12), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_lru_never_beats_the_bound(trace: list[Served], capacity: int) -> None:
    trie = Trie(as_requests(trace))
    infinite = sum(trie.infinite_hits())
    kv, states = sum(optimal_kv_hits(trie, capacity)), state_hits_bound(trie, capacity)
    assert lru(trace, capacity, kv=True) <= kv <= infinite
    assert lru(trace, capacity, kv=False) <= states <= infinite


@given(traces(requests=25, tokens=12))
@settings(max_examples=100, deadline=None)
def test_enough_memory_is_infinite_memory(trace: list[Served]) -> None:
    trie = Trie(as_requests(trace))
    assert optimal_kv_hits(trie, 10_000) == trie.infinite_hits()
    assert state_hits_bound(trie, 10_000) == sum(trie.infinite_hits())
    ceiling = InfiniteCache()
    for request, hit in zip(as_requests(trace), trie.infinite_hits(), strict=True):
        spare = max(0, request.prompt.length_tokens - 1)
        assert hit == min(ceiling.reusable_tokens(request), spare)
        ceiling.remember(request)


@given(traces(requests=5, tokens=8))
@settings(max_examples=60, deadline=None)
def test_no_order_of_requests_hits_more_than_the_most(trace: list[Served]) -> None:
    most = Trie(as_requests(trace)).most_hits()
    for order in permutations(trace):
        assert sum(Trie(as_requests(list(order))).infinite_hits()) <= most


@st.composite
def long_traces(draw: st.DrawFn) -> list[Request]:
    made: list[Served] = []
    for index in range(draw(st.integers(2, 14))):
        fresh = tuple(range(1000 * index, 1000 * index + draw(st.integers(1, 60))))
        prompt = fresh
        if made and draw(st.integers(0, 3)):
            old = draw(st.sampled_from(made))[0]
            prompt = old[: draw(st.integers(1, len(old)))] + fresh
        answer = tuple(range(1000 * index + 500, 1000 * index + 500 + draw(st.integers(0, 40))))
        made.append((prompt[:120] + answer, len(prompt[:120])))
    return as_requests(made)


@given(long_traces(), st.sampled_from(["no_buffer", "extra_buffer"]), st.integers(200, 500))
@settings(max_examples=60, deadline=None)
def test_sglang_never_beats_the_bound(requests: list[Request], strategy: str, kv: int) -> None:
    config = SglangCacheConfig(kv, 8, strategy, chunk_tokens=16, track_interval_tokens=16)
    hits = simulate(requests, ReplayedSglang(config)).hit_tokens
    assert hits <= cache_bounds(Trie(requests), kv, 8).hit_tokens


@given(long_traces(), st.integers(1, 6), st.integers(40, 400))
@settings(max_examples=60, deadline=None)
def test_marconi_never_beats_the_bound(requests: list[Request], states: int, kv: int) -> None:
    costs = ModelCosts.from_paper(64, 16, 2, 3, 4)
    capacity = costs.prefix_bytes(kv, states)
    hits = simulate(requests, ReplayedMarconi(MarconiConfig(costs, capacity))).hit_tokens
    most_kv, most_states = capacity // costs.kv_bytes_per_token, capacity // costs.state_bytes
    assert hits <= cache_bounds(Trie(requests, 0), most_kv, most_states).hit_tokens


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_placement_agrees_with_trying_every_one(overlaps: list[int], states: int) -> None:
    def saved(positions: tuple[int, ...]) -> int:
        return sum(
            count * max((p for p in positions if p <= depth), default=0)
            for depth, count in enumerate(overlaps)
        )

    found = optimal_placement(overlaps, states)
    places = range(1, len(overlaps))
    tried = [c for k in range(states + 1) for c in combinations(places, k)]
    assert found.saved_tokens == max(map(saved, tried)) == saved(found.positions)
    assert len(found.positions) <= states
    fewest = min(len(c) for c in tried if saved(c) == found.saved_tokens)
    assert len(found.positions) == fewest


def test_placement_on_a_worked_case() -> None:
    overlaps = [0] * 101
    overlaps[100], overlaps[40], overlaps[10] = 3, 5, 1
    one, two, all_three = (optimal_placement(overlaps, states) for states in (1, 2, 5))
    assert (one.positions, one.saved_tokens) == ((40,), 320)
    assert (two.positions, two.saved_tokens) == ((40, 100), 500)
    assert (all_three.positions, all_three.saved_share) == ((10, 40, 100), 1.0)


def test_overlaps_of_a_trace() -> None:
    prompts = [range(10), range(7), [0, 1, 2, 90, 91]]
    requests = [Request(str(i), Prompt(len(p), 1, p), 2) for i, p in enumerate(prompts)]
    assert overlap_histogram(Trie(requests)) == [1, 0, 0, 1, 0, 0, 1]
    assert overlap_histogram(Trie(requests), grid_tokens=2) == [1, 1, 0, 1]


def test_a_grid_lowers_what_states_can_reach() -> None:
    requests = [Request(str(i), Prompt(100, 1, range(100)), 4) for i in range(3)]
    trie = Trie(requests)
    assert state_hits_bound(trie, 1) == 2 * 99
    assert state_hits_bound(trie, 1, grid_tokens=64) == 2 * 64
    assert choices(trie, 64)[1][-1].tokens == 64


def test_units_are_not_expanded() -> None:
    requests = [Request(str(i), Prompt(1300, 512, [1, 2, 30 + i]), 9) for i in range(2)]
    bounds = cache_bounds(Trie(requests), 10_000, 4)
    assert (bounds.infinite_hit_tokens, bounds.hit_tokens) == (1024, 1024)


@pytest.mark.parametrize(
    "ask, words",
    [
        (lambda trie: optimal_kv_hits(trie, -1), "-1 KV tokens"),
        (lambda trie: state_hits_bound(trie, -1), "-1 states"),
        (lambda trie: state_hits_bound(trie, 1, 0), "grid of 0"),
        (lambda trie: optimal_placement([1, -2], 1), "-2"),
    ],
    ids=["kv", "states", "grid", "overlaps"],
)
def test_bad_numbers_are_refused(ask: object, words: str) -> None:
    assert callable(ask)
    with pytest.raises(InputError, match=words):
        ask(Trie([]))
