"""Times of requests, worked out by hand on a clock that gives every pass one second."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.arrival import Arrival, Closed, Timed
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.replay import Engine, Replay
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.sglang.config import SglangCacheConfig
from hybridplan.sim.sglang.replayed import ReplayedSglang
from hybridplan.sim.time import Charge, FlatClock, Pass
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup


class Seconds:
    """A second a pass and a repeat, nothing where nothing runs."""

    ticks_per_s = 10**9
    sees_queue = True

    def passes(self, passes: Sequence[Pass]) -> list[Charge]:
        return [Charge(0 if p.work.empty else 10**9 * p.work.repeats) for p in passes]

    def stretch(self, work: StepWork, steps: int) -> Charge:
        return Charge(10**9 * steps)


def _vllm(depth: int = 1, tokens: int = 100) -> ReplayedVllm:
    config = VllmCacheConfig(
        groups=(VllmGroup(GroupKind.FULL, 16),), num_blocks=1000, max_batched_tokens=tokens,
        async_depth=depth,
    )  # fmt: skip
    return ReplayedVllm(config)


def _sglang() -> ReplayedSglang:
    return ReplayedSglang(
        SglangCacheConfig(
            kv_tokens=10_000, state_slots=100, strategy="extra_buffer", page_tokens=1,
            chunk_tokens=64, track_interval_tokens=64, chunked_prefill_tokens=100,
        )
    )  # fmt: skip


def _request(name: str, at: float, prompt: int = 50, outputs: int = 4, **more: str) -> Request:
    return Request(name, Prompt(prompt), outputs, arrival_s=at, **more)  # type: ignore[arg-type]


def _times(
    engine: Engine, requests: list[Request], arrival: Arrival = Timed()  # noqa: B008
) -> dict[str, tuple[float | None, ...]]:  # fmt: skip
    def row(o: RequestOutcome) -> tuple[float | None, ...]:
        return o.sent_s, o.queued_s, o.ttft_s, o.tpot_s, o.e2e_s

    run = Replay(requests, engine, arrival=arrival, clock=Seconds())
    return {outcome.request_id: row(outcome) for outcome in run}


@pytest.mark.parametrize("engine", [_vllm(), _vllm(2), _sglang()], ids=["vllm", "async", "sglang"])
def test_alone_a_request_takes_a_second_a_token(engine: Engine) -> None:
    assert _times(engine, [_request("a", 7.0)]) == {"a": (7.0, 0.0, 1.0, 1.0, 4.0)}


@pytest.mark.parametrize("depth, seen_after", [(1, 0.5), (2, 1.5)])
def test_an_arrival_waits_for_the_step_it_falls_into_and_for_the_one_already_planned(
    depth: int, seen_after: float
) -> None:
    times = _times(_vllm(depth), [_request("a", 0.0, outputs=9), _request("b", 2.5)])
    assert times["a"] == (0.0, 0.0, 1.0, 1.0, 9.0)
    assert times["b"] == (2.5, seen_after, seen_after + 1.0, 1.0, seen_after + 4.0)


def test_chunks_of_a_long_prompt_all_come_before_its_first_token() -> None:
    assert _times(_vllm(tokens=20), [_request("a", 0.0, prompt=50)])["a"][2] == 3.0


def test_sglang_prefills_in_passes_of_their_own() -> None:
    """Two passes of 100 and 50 tokens, then a pass in which the first request decodes."""
    requests = [_request("a", 0.0, outputs=9), _request("b", 0.5, prompt=150)]
    times = _times(_sglang(), requests)
    assert times["b"] == (0.5, 0.5, 2.5, 4 / 3, 6.5)
    assert times["a"] == (0.0, 0.0, 1.0, 10 / 8, 11.0)


def test_a_turn_is_sent_when_the_turn_before_it_is_done() -> None:
    requests = [_request("a", 0.0, session="s"), _request("b", 1.0, session="s")]
    times = _times(_vllm(), requests)
    assert times["b"] == (4.0, 0.0, 1.0, 1.0, 4.0)


def test_a_closed_loop_sends_when_one_ends() -> None:
    times = _times(_vllm(), [_request(n, 0.0) for n in "abc"], Closed(2))
    assert times["c"] == (4.0, 0.0, 1.0, 1.0, 4.0)


def test_one_output_token_has_no_time_between_tokens() -> None:
    assert _times(_vllm(2), [_request("a", 0.0, outputs=1)]) == {"a": (0.0, 0.0, 1.0, None, 1.0)}


def test_the_stand_in_charges_the_step_once_however_many_passes_it_has() -> None:
    clock = FlatClock(step_ns=100, token_ns=3)
    passes = [Pass(StepWork(chunks=[(0, 10)])), Pass(StepWork([5, 6]))]
    assert [charge.ticks for charge in clock.passes(passes)] == [130, 6]
    assert clock.stretch(StepWork([5, 6]), 4).ticks == 4 * 106


def test_a_refused_request_arrives_on_the_scaled_clock() -> None:
    requests = [_request("a", 0.0), _request("none", 8.0, prompt=0)]
    run = Replay(requests, _vllm(), arrival=Timed(speed=4.0), clock=Seconds())
    assert {o.request_id: o.arrival_s for o in run if o.refused} == {"none": 2.0}
