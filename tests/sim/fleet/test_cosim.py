"""Replicas on one clock: one replica is the plain replay, independent ones are replays apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.sim.arrival import Arrival, Closed, Timed
from hybridplan.sim.fleet.cosim import Fleet, Served, Site, StepCount
from hybridplan.sim.fleet.routers import ROUTERS, RouterAsk
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.time.clock import Clock
from tests.sim.fleet.cases import QueueClock, engine, trace

STAND_IN = Timed(20_000, 0.005)
ARRIVALS: list[Arrival] = [Closed(1), Closed(4), STAND_IN]


def fleet(
    requests: list[Request],
    count: int,
    kind: str,
    arrival: Arrival,
    *,
    names: list[str] | None = None,
    num_blocks: int = 60,
    skipping: bool = True,
    async_depth: int = 1,
    sees_queue: bool = False,
) -> tuple[Fleet, list[Served]]:
    called = names or [f"replica-{index}" for index in range(count)]
    clock: Clock = arrival.stand_in if isinstance(arrival, Timed) else StepCount()
    if sees_queue:
        clock = QueueClock(STAND_IN.stand_in)
    limits = {"max_model_len": 2000, "async_depth": async_depth}
    sites = [Site(name, engine(num_blocks, skipping=skipping, **limits), clock) for name in called]
    run = Fleet(requests, sites, RouterAsk(kind).make(called), arrival=arrival)
    return run, list(run)


def outcomes(served: list[Served]) -> list[RequestOutcome]:
    return [one.outcome for one in served if one.outcome is not None]


def alone(requests: list[Request], arrival: Arrival, num_blocks: int = 60) -> list[RequestOutcome]:
    return list(Replay(requests, engine(num_blocks, max_model_len=2000), arrival=arrival))


def assert_same(found: list[RequestOutcome], expected: list[RequestOutcome]) -> None:
    """Equal, in order; a fleet refuses at the arrival, a replay when its next step is planned."""
    for refused in (False, True):
        assert [o for o in found if bool(o.refused) is refused] == [
            o for o in expected if bool(o.refused) is refused
        ]


@pytest.mark.parametrize("arrival", ARRIVALS, ids=str)
@pytest.mark.parametrize("kind", ROUTERS)
def test_one_replica_is_the_plain_replay(kind: str, arrival: Arrival) -> None:
    for seed in range(6):
        requests = trace(seed, 60, sessions=not isinstance(arrival, Timed))
        requests.insert(5, Request("empty", Prompt(0), 1, requests[5].arrival_s))
        assert_same(outcomes(fleet(requests, 1, kind, arrival)[1]), alone(requests, arrival))


@pytest.mark.parametrize("arrival", [Closed(3), STAND_IN], ids=str)
def test_one_replica_with_steps_in_flight_is_the_plain_replay(arrival: Arrival) -> None:
    for seed in range(10):
        requests = trace(seed, 60, sessions=not isinstance(arrival, Timed))
        requests.insert(5, Request("empty", Prompt(0), 1, requests[5].arrival_s))
        _, served = fleet(requests, 1, "round-robin", arrival, async_depth=2, sees_queue=True)
        replay = Replay(
            requests,
            engine(60, max_model_len=2000, async_depth=2),
            arrival=arrival,
            clock=QueueClock(STAND_IN.stand_in),
        )
        assert_same(outcomes(served), list(replay))


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(ARRIVALS), st.sampled_from(list(ROUTERS)))
def test_every_request_is_served_once(seed: int, arrival: Arrival, kind: str) -> None:
    requests = trace(seed, 50)
    run, served = fleet(requests, 3, kind, arrival)
    assert Counter(one.request.request_id for one in served) == Counter(
        one.request_id for one in requests
    )
    assert [outcome.request_id for outcome in outcomes(served)] == [
        one.request.request_id for one in served
    ]
    assert all(site.outstanding.requests == site.outstanding.tokens == 0 for site in run.sites)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 4))
def test_independent_replicas_are_replays_apart(seed: int, count: int) -> None:
    requests = trace(seed, 50, sessions=False)
    _, served = fleet(requests, count, "round-robin", STAND_IN)
    for replica in range(count):
        mine = [one.outcome for one in served if one.replica == replica]
        assert mine == alone(requests[replica::count], STAND_IN)


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_one_at_a_time_replicas_are_independent_too(seed: int) -> None:
    requests = trace(seed, 40)
    _, served = fleet(requests, 3, "prefix-aware", Closed(1))
    assert [one.request.request_id for one in served] == [one.request_id for one in requests]
    for replica in range(3):
        mine = [one for one in served if one.replica == replica]
        expected = alone([one.request for one in mine], Closed(1))
        assert [o.hit_tokens for o in outcomes(mine)] == [o.hit_tokens for o in expected]


@pytest.mark.parametrize("arrival", ARRIVALS, ids=str)
@pytest.mark.parametrize("kind", ROUTERS)
@settings(max_examples=4)
@given(st.integers(0, 10_000), st.permutations(["a", "b", "c"]))
def test_permuted_names_permute_results(
    kind: str, arrival: Arrival, seed: int, order: list[str]
) -> None:
    requests = [replace(one, session=one.session or "s") for one in trace(seed, 30)]
    _, usual = fleet(requests, 3, kind, arrival, names=["a", "b", "c"])
    _, other = fleet(requests, 3, kind, arrival, names=order)
    follows_names = kind == "session"
    expected = [
        (order.index("abc"[one.replica]) if follows_names else one.replica, one.outcome)
        for one in usual
    ]
    found = [(one.replica, one.outcome) for one in other]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


@settings(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.sampled_from(ARRIVALS),
    st.sampled_from(["least-loaded", "prefix-aware", "round-robin"]),
    st.sampled_from([(1, False), (2, False), (2, True)]),
)
def test_stretches_of_decode_change_nothing(
    seed: int, arrival: Arrival, kind: str, queue: tuple[int, bool]
) -> None:
    """The naive twin takes every decode step on its own."""
    requests = trace(seed, 25, gap_s=0.1)
    (_, quick), (_, naive) = (
        fleet(
            requests, 3, kind, arrival,
            async_depth=queue[0], sees_queue=queue[1], skipping=skipping,
        )
        for skipping in (True, False)
    )  # fmt: skip

    def where(served: list[Served]) -> list[tuple[str, int, RequestOutcome | None]]:
        return [(one.request.request_id, one.replica, one.outcome) for one in served]

    assert where(quick) == where(naive)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(list(ROUTERS)))
def test_ends_and_choices_follow_the_clock(seed: int, kind: str) -> None:
    requests = trace(seed, 50)
    _, served = fleet(requests, 3, kind, STAND_IN)
    ends = [o.finish_s for o in outcomes(served) if o.finish_s is not None]
    assert ends == sorted(ends)
    last_of: dict[str, float] = {}
    for one in sorted(served, key=lambda one: one.sent):
        outcome = one.outcome
        assert outcome is not None
        if outcome.finish_s is None or outcome.sent_s is None:
            continue
        assert outcome.arrival_s is not None
        assert outcome.arrival_s <= outcome.sent_s <= outcome.finish_s
        if outcome.session is not None:
            assert outcome.sent_s >= last_of.get(outcome.session, 0.0)
            last_of[outcome.session] = outcome.finish_s


def test_least_loaded_sees_what_has_ended() -> None:
    """A long request keeps its replica; short ones alternate on the others as they end."""
    from tests.sim.fleet.cases import request

    requests = [request("long", (1,), 500, arrival_s=0.0)]
    requests += [request(f"s{i}", (2,), 1, arrival_s=1.0 + i) for i in range(6)]
    _, served = fleet(requests, 3, "least-loaded", Timed(20_000, 0.05))
    where = {one.request.request_id: one.replica for one in served}
    assert where["long"] == 0
    assert [where[f"s{i}"] for i in range(6)] == [1, 2, 1, 2, 1, 2]
