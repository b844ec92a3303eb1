"""Routers one by one: what they choose, and what they promise when the fleet changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.sim.fleet.routers import ROUTERS, Outstanding, RouterAsk
from hybridplan.sim.request import Prompt, Request


def names(count: int) -> list[str]:
    return [f"replica-{index}" for index in range(count)]


def request(index: int, ids: tuple[int, ...] = (), session: str | None = None) -> Request:
    return Request(f"r{index}", Prompt(max(len(ids), 1) * 16, 16, ids), 4, session=session)


def idle(count: int) -> list[Outstanding]:
    return [Outstanding() for _ in range(count)]


def test_round_robin_takes_turns() -> None:
    router = RouterAsk("round-robin").make(names(3))
    assert [router.choose(request(i), idle(3)) for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_least_loaded_counts_requests_or_prompt_tokens() -> None:
    loads = [Outstanding(2, 100), Outstanding(1, 900), Outstanding(3, 50)]
    assert RouterAsk("least-loaded").make(names(3)).choose(request(0), loads) == 1
    assert RouterAsk("least-loaded", load="tokens").make(names(3)).choose(request(0), loads) == 2


def test_an_idle_fleet_is_used_evenly() -> None:
    router = RouterAsk("least-loaded").make(names(4))
    chosen = Counter(router.choose(request(i), idle(4)) for i in range(40))
    assert chosen == {0: 10, 1: 10, 2: 10, 3: 10}


def test_a_session_stays_and_requests_without_one_go_round() -> None:
    router = RouterAsk("session").make(names(5))
    assert len({router.choose(request(i, session="s"), idle(5)) for i in range(9)}) == 1
    assert [router.choose(request(i), idle(5)) for i in range(6)] == [0, 1, 2, 3, 4, 0]


@given(st.integers(1, 12), st.integers(0, 10_000))
def test_adding_a_replica_moves_sessions_to_it_only(count: int, seed: int) -> None:
    before = RouterAsk("session").make(names(count))
    after = RouterAsk("session").make(names(count + 1))
    for index in range(30):
        one = request(index, session=f"{seed}/{index}")
        was, now = before.choose(one, idle(count)), after.choose(one, idle(count + 1))
        assert now in (was, count)


@given(st.permutations(names(6)))
def test_sessions_follow_names_and_not_positions(order: list[str]) -> None:
    usual = RouterAsk("session").make(names(6))
    other = RouterAsk("session").make(order)
    for index in range(20):
        one = request(index, session=f"s{index}")
        assert names(6)[usual.choose(one, idle(6))] == order[other.choose(one, idle(6))]


def test_sessions_spread_over_all_replicas() -> None:
    router = RouterAsk("session").make(names(4))
    chosen = Counter(router.choose(request(i, session=f"s{i}"), idle(4)) for i in range(40_000))
    assert all(9_700 < chosen[index] < 10_300 for index in range(4))


def test_prefix_aware_returns_to_the_longest_match() -> None:
    router = RouterAsk("prefix-aware").make(names(3))
    homes = [router.choose(request(i, (i, i, i)), idle(3)) for i in range(3)]
    assert sorted(homes) == [0, 1, 2]
    for i in (2, 0, 1):
        assert router.choose(request(9, (i, i, i, 7)), idle(3)) == homes[i]
        assert router.believed_tokens == 48


def test_a_short_match_goes_to_the_smallest_index() -> None:
    router = RouterAsk("prefix-aware", cache_threshold=0.5).make(names(2))
    first = router.choose(request(0, (1, 2, 3, 4, 5, 6)), idle(2))
    assert router.choose(request(1, (1, 2, 7, 8, 9, 9)), idle(2)) == 1 - first
    assert router.believed_tokens == 0


def test_an_uneven_fleet_is_balanced_whatever_matches() -> None:
    router = RouterAsk("prefix-aware", balance_abs=8, balance_rel=2.0).make(names(2))
    home = router.choose(request(0, (1, 2, 3)), idle(2))

    def loads(busy: int, other: int) -> list[Outstanding]:
        return [Outstanding(busy if index == home else other) for index in range(2)]

    assert router.choose(request(1, (1, 2, 3)), loads(8, 0)) == home
    assert router.choose(request(1, (1, 2, 3)), loads(18, 9)) == home
    assert router.choose(request(1, (1, 2, 3)), loads(19, 9)) == 1 - home


def test_a_forgetful_index_loses_old_prompts() -> None:
    router = RouterAsk("prefix-aware", index_tokens=48).make(names(1))
    router.choose(request(0, (1, 1, 1)), idle(1))
    router.choose(request(1, (2, 2, 2)), idle(1))
    router.choose(request(2, (1, 1, 1)), idle(1))
    assert router.believed_tokens == 0


@pytest.mark.parametrize("kind", ROUTERS)
def test_one_replica_takes_everything(kind: str) -> None:
    router = RouterAsk(kind).make(names(1))
    assert {router.choose(request(i, (i,), f"s{i}"), [Outstanding(i, i)]) for i in range(20)} == {0}


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "random"},
        {"load": "bytes"},
        {"cache_threshold": 1.5},
        {"balance_rel": 0.5},
        {"balance_abs": -1},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_a_parameter_that_means_nothing_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        RouterAsk(**bad)


@pytest.mark.parametrize("bad", [[], ["a", "a"]], ids=["none", "twice"])
def test_replicas_need_names_of_their_own(bad: list[str]) -> None:
    with pytest.raises(InputError):
        RouterAsk().make(bad)


def test_an_index_needs_room() -> None:
    with pytest.raises(InputError):
        RouterAsk("prefix-aware", index_tokens=0).make(names(1))
