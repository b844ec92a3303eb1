"""Loads from the host: taken when faster than computing, counted apart, waited for."""

from __future__ import annotations

import pytest

from hybridplan.sim.arrival import Timed
from hybridplan.sim.fleet.cosim import Fleet, Site, StepCount
from hybridplan.sim.fleet.host import HostTier
from hybridplan.sim.fleet.host_link import HostLink
from hybridplan.sim.fleet.link import LinkSpeed
from hybridplan.sim.fleet.routers import RouterAsk
from hybridplan.sim.fleet.served import Served
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Request
from hybridplan.sim.time.clock import Clock
from tests.sim.fleet.cases import BLOCK, engine, request

STAND_IN = Timed(1000, 0.0)  # a token a millisecond


def requests() -> list[Request]:
    """A prompt, others that drive it out of a small pool, and the prompt again."""
    others = [(f"x{i}", (10 + i, 20 + i, 30 + i)) for i in range(6)]
    asked = [("a", (1, 2, 3)), *others, ("again", (1, 2, 3))]
    return [request(name, ids, 3, arrival_s=float(i)) for i, (name, ids) in enumerate(asked)]


def served(speed: LinkSpeed | None, clock: Clock, arrival: Timed) -> tuple[HostLink, list[Served]]:
    one = engine(20)
    host = HostLink(HostTier(one, 10**6, 1000), speed)
    site = Site("only", one, clock, host)
    return host, list(Fleet(requests(), [site], RouterAsk().make(["only"]), arrival=arrival))


def test_a_fast_load_is_taken_and_its_tokens_are_the_hosts() -> None:
    host, found = served(LinkSpeed(50_000), STAND_IN.stand_in, STAND_IN)  # 5,000 B: 0.1 s
    last = found[-1]
    assert last.outcome is not None
    assert last.outcome.hit_tokens == last.host_tokens == 3 * BLOCK
    assert (host.taken, host.declined, host.link.moved_bytes) == (1, 0, 5000)
    # 0.1 s of loading, then the one token of the prompt that is no hit.
    assert last.outcome.ttft_s is not None
    assert 0.1 < last.outcome.ttft_s < 0.11
    assert last.outcome.queued_s is not None
    assert last.outcome.queued_s == pytest.approx(0.1)
    assert last.outcome.sent_s == 7.0


def test_a_load_slower_than_computing_is_declined() -> None:
    host, found = served(LinkSpeed(20_000), STAND_IN.stand_in, STAND_IN)  # 0.25 s against 0.192 s
    last = found[-1]
    assert last.outcome is not None
    assert last.outcome.hit_tokens == last.host_tokens == 0
    assert (host.taken, host.declined, host.link.moved_bytes) == (0, 1, 0)


def test_a_load_behind_another_is_declined_when_waiting_takes_too_long() -> None:
    one = engine(20)
    host = HostLink(HostTier(one, 10**6, 1000), LinkSpeed(50_000))
    list(Replay(requests()[:-1], one))
    again, clock = requests()[-1], STAND_IN.stand_in
    now = 9 * 10**9
    host.link.free_at = now + 10**8  # 0.1 s of waiting and 0.1 s of loading against 0.192 s
    assert host.ask(again, now, clock) is None
    host.link.free_at = now + 9 * 10**7
    loading = host.ask(again, now, clock)
    assert loading is not None
    assert loading.end == now + 19 * 10**7
    assert (host.taken, host.declined) == (1, 1)


def test_without_a_speed_loads_take_no_time() -> None:
    host, found = served(None, STAND_IN.stand_in, STAND_IN)
    last = found[-1]
    assert last.outcome is not None
    assert last.outcome.hit_tokens == 3 * BLOCK
    assert last.outcome.ttft_s is not None
    assert last.outcome.ttft_s < 0.01
    assert host.link.busy_ticks == 0


def test_without_a_clock_loads_are_always_taken() -> None:
    one = engine(20)
    host = HostLink(HostTier(one, 10**6, 1000), LinkSpeed(1))
    site = Site("only", one, StepCount(), host)
    found = list(Fleet(requests(), [site], RouterAsk().make(["only"])))
    assert found[-1].host_tokens == 3 * BLOCK
