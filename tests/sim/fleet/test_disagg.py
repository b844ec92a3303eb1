"""Prefill and decode apart: every request once, every byte once, every wait in the times."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.sim.arrival import Arrival, Closed, Timed
from hybridplan.sim.fleet.cosim import Site, StepCount
from hybridplan.sim.fleet.decode import receiving
from hybridplan.sim.fleet.disagg import Disaggregated
from hybridplan.sim.fleet.link import LinkSpeed
from hybridplan.sim.fleet.routers import ROUTERS, RouterAsk
from hybridplan.sim.fleet.served import Served
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import VllmCacheConfig
from tests.sim.fleet.cases import config, request, trace

STAND_IN = Timed(20_000, 0.005)


def bytes_of(tokens: int) -> int:
    return (tokens - 1) * 100 + 5000


def _decoder(cache: VllmCacheConfig, skipping: bool) -> ReplayedVllm:
    return receiving(ReplayedVllm(cache, attribute_losses=False, skipping=skipping))


def apart(
    requests: list[Request],
    *,
    prefill: int = 2,
    decode: int = 2,
    kind: str = "round-robin",
    arrival: Arrival = STAND_IN,
    speed: LinkSpeed | None = None,
    decode_blocks: int = 400,
    skipping: bool = True,
    depth: int = 1,
) -> tuple[Disaggregated, list[Served]]:
    clock = arrival.stand_in if isinstance(arrival, Timed) else StepCount()
    names = [f"prefill-{index}" for index in range(prefill)]
    others = [f"decode-{index}" for index in range(decode)]
    cache = config(60, max_model_len=2000, async_depth=depth)
    decoding = config(decode_blocks, max_model_len=2000, async_depth=depth)
    fleet = Disaggregated(
        requests,
        [Site(name, ReplayedVllm(cache, skipping=skipping), clock) for name in names],
        RouterAsk(kind).make(names),
        decoders=[Site(name, _decoder(decoding, skipping), clock) for name in others],
        decode_router=RouterAsk("least-loaded", load="tokens").make(others),
        speed=speed,
        bytes_of=bytes_of,
        arrival=arrival,
    )
    return fleet, list(fleet)


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.sampled_from(list(ROUTERS)),
    st.sampled_from([Closed(1), Closed(5), STAND_IN]),
)
def test_every_request_is_served_once_and_every_byte_moved_once(
    seed: int, kind: str, arrival: Arrival
) -> None:
    requests = [one for one in trace(seed, 40) if one.prompt.length_tokens]
    fleet, served = apart(requests, kind=kind, arrival=arrival, speed=LinkSpeed(10**6))
    ids = Counter(one.request.request_id for one in served)
    assert ids == Counter(one.request_id for one in requests)
    assert all(site.outstanding.requests == 0 for site in (*fleet.sites, *fleet.decoders))
    moved = sum(one.moved.moved_bytes for one in served if one.moved is not None)
    expected = sum(bytes_of(one.prompt.length_tokens) for one in requests)
    assert moved == expected
    assert sum(link.moved_bytes for link in fleet.sending) == expected
    assert sum(link.moved_bytes for link in fleet.receiving) == expected
    for one in served:
        outcome = one.outcome
        assert outcome is not None
        assert outcome.prompt_tokens == one.request.prompt.length_tokens
        assert outcome.output_tokens == max(1, one.request.output_tokens)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([Closed(4), STAND_IN]), st.integers(1, 2))
def test_stretches_of_decode_change_nothing(seed: int, arrival: Arrival, depth: int) -> None:
    """The naive twin takes every decode step on its own."""
    requests = trace(seed, 25)
    speed = LinkSpeed(10**6)
    (_, quick), (_, naive) = (
        apart(
            requests,
            kind="least-loaded",
            arrival=arrival,
            speed=speed,
            skipping=skipping,
            depth=depth,
        )
        for skipping in (True, False)
    )
    assert [(one.replica, one.moved, one.outcome) for one in quick] == [
        (one.replica, one.moved, one.outcome) for one in naive
    ]


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 2))
def test_times_include_the_transfer(seed: int, depth: int) -> None:
    """A transfer is ready at the prefill's only token, whatever the engine planned meanwhile."""
    fleet, served = apart(trace(seed, 30), speed=LinkSpeed(10**6), depth=depth)
    ticks = fleet.ticks_per_s
    for one in served:
        outcome, move = one.outcome, one.moved
        assert outcome is not None
        assert move is not None
        assert move.prefill is not None
        assert move.decode is not None
        assert outcome.ttft_s is not None
        assert outcome.queued_s is not None
        assert outcome.finish_s is not None
        assert outcome.e2e_s is not None
        assert one.sent <= move.ready <= move.begin < move.end
        assert move.prefill.ttft_s is not None
        assert move.ready == one.sent + round(move.prefill.ttft_s * ticks)
        first_s = outcome.ttft_s + one.sent / ticks
        assert first_s > move.end / ticks
        assert outcome.e2e_s >= outcome.ttft_s
        assert outcome.finish_s == pytest.approx(one.sent / ticks + outcome.e2e_s)


def test_a_slow_link_delays_the_first_token_by_its_bytes() -> None:
    one = [request("a", (1, 2, 3), 20, arrival_s=0.0)]
    _, fast = apart(one)
    _, slow = apart(one, speed=LinkSpeed(10**6, 0.25))
    quick, late = fast[0].outcome, slow[0].outcome
    assert quick is not None
    assert late is not None
    assert quick.ttft_s is not None
    assert late.ttft_s is not None
    moved = bytes_of(3 * 64 + 1)
    assert late.ttft_s - quick.ttft_s == pytest.approx(moved / 10**6 + 0.25)
    assert late.tpot_s == pytest.approx(quick.tpot_s)


def test_two_prefills_for_one_decoder_wait_for_its_link() -> None:
    both = [request(name, (index, 5, 6), 5, arrival_s=0.0) for index, name in enumerate("ab")]
    _, served = apart(both, decode=1, speed=LinkSpeed(10**5))
    moves = sorted((one.moved for one in served if one.moved), key=lambda move: move.begin)
    assert moves[0].ready == moves[1].ready
    assert moves[1].begin == moves[0].end


def test_a_prompt_of_one_token_goes_straight_to_a_decoder() -> None:
    fleet, served = apart([Request("one", Prompt(1), 5, arrival_s=0.0)], speed=LinkSpeed(10**6))
    assert served[0].outcome is not None
    assert served[0].outcome.output_tokens == 5
    assert served[0].moved is not None
    assert served[0].moved.moved_bytes == 0
    assert fleet.sites[0].engine.step_index == 0


def test_what_a_decoder_cannot_take_is_refused_before_it_is_prefilled() -> None:
    _, served = apart([Request("long", Prompt(2000), 5, arrival_s=0.0)])
    assert served[0].outcome is not None
    assert "max_model_len" in (served[0].outcome.refused or "")


def test_a_small_decoder_preempts_and_still_answers_all() -> None:
    requests = [request(f"r{i}", (i, i, i), 300, arrival_s=0.0) for i in range(6)]
    fleet, served = apart(requests, decode=1, decode_blocks=30)
    assert len(served) == 6
    assert sum(one.outcome.preemptions for one in served if one.outcome) > 0
    assert fleet.decoders[0].engine.use().num_blocks == 30
