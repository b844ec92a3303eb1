"""On a clock, skipped decode steps end at the same tick as steps taken one by one."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hybridplan
from hybridplan.errors import RefusalError
from hybridplan.ledger.calibration import preset
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.sim.arrival import Arrival, Closed, Timed
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.replay import Engine, Replay
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.sglang.config import SglangCacheConfig
from hybridplan.sim.sglang.replayed import ReplayedSglang
from hybridplan.sim.time import StepClock, step_clock
from hybridplan.sim.vllm.replayed import ReplayedVllm

sys.path.insert(0, str(Path(__file__).parents[1] / "vllm"))

import random_cases
import traced_cases

RELAXED = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ECHO = {"resolved": {"groups": []}}
MODELS = ("qwen3.5-0.8b", "gemma-3-27b-it", "gpt-oss-20b", "kimi-linear", "llama-3.1-8b")


@cache
def clock_of(model: str) -> StepClock:
    return step_clock(preset(find_gpu("h200")), hybridplan.load(model), Deployment("vllm"))


def arrival_of(rng: Random) -> Arrival:
    return rng.choice([Closed(1), Closed(3), Closed(8), Timed(), Timed(speed=7.3)])


def arriving(requests: list[Request], rng: Random) -> list[Request]:
    """With arrivals a few decode steps apart, some of them turns of sessions."""
    timed = [
        replace(
            request,
            arrival_s=rng.randint(0, 400) / 1000,
            output_tokens=rng.choice([0, 1, 2, 5, 90]),
            session=rng.choice([None, None, "a", "b"]),
        )
        for request in requests
    ]
    return sorted(timed, key=lambda r: r.arrival_s or 0.0)


def replayed(
    requests: list[Request], engine: Engine, arrival: Arrival, clock: StepClock
) -> tuple[list[RequestOutcome], tuple[object, ...], str]:
    """Everything a replay says of time, and why it stopped; pools are compared elsewhere."""
    run = Replay(requests, engine, arrival=arrival, clock=clock)
    outcomes: list[RequestOutcome] = []
    refusal = ""
    try:
        outcomes.extend(run)
    except RefusalError as error:
        refusal = error.sentence
    server = run.server
    assert server is not None
    summary = run.summary()
    shown = summary.elapsed_s, summary.waited_s, summary.steps, summary.peak_running
    return outcomes, (*shown, server.now, server.busy, server.spent), refusal


def _vllm(seed: int, *, skipping: bool, drafts: bool, depths: tuple[int, ...] = (1, 2)) -> object:
    rng = Random(seed)
    case = random_cases.random_case(seed, drafts=drafts)
    config = traced_cases.config_of(case, ECHO, rng.choice(["0.32", "0.33"]))
    config = replace(config, async_depth=rng.choice(depths))
    requests = arriving(list(traced_cases.requests_of(case)), rng)
    arrival, clock = arrival_of(rng), clock_of(rng.choice(MODELS))
    accepted = traced_cases.accepted_drafts(case)
    engine = ReplayedVllm(config, accepted_drafts=accepted, skipping=skipping)
    return replayed(requests, engine, arrival, clock)


@RELAXED
@given(st.integers(0, 1_000_000))
def test_vllm_ends_at_the_same_ticks_with_and_without_skipping(seed: int) -> None:
    assert _vllm(seed, skipping=True, drafts=False) == _vllm(seed, skipping=False, drafts=False)


def _same_with_and_without(seed: int, depth: int) -> bool:
    skipped, stepped = (
        _vllm(seed, skipping=skipping, drafts=False, depths=(depth,)) for skipping in (True, False)
    )
    return skipped == stepped


@settings(RELAXED, max_examples=60)
@given(st.integers(0, 1_000_000), st.sampled_from([3, 4]))
def test_pipeline_stages_keep_more_steps_in_flight(seed: int, depth: int) -> None:
    assert _same_with_and_without(seed, depth)


@pytest.mark.parametrize("seed, depth", [(65, 3), (80, 3), (305, 4)])
def test_one_step_that_repeats_is_not_enough_behind_a_longer_queue(seed: int, depth: int) -> None:
    assert _same_with_and_without(seed, depth)


@settings(RELAXED, max_examples=40)
@given(st.integers(0, 1_000_000))
def test_vllm_with_drafts_ends_at_the_same_ticks(seed: int) -> None:
    assert _vllm(seed, skipping=True, drafts=True) == _vllm(seed, skipping=False, drafts=True)


def _sglang(seed: int, *, skipping: bool) -> object:
    rng = Random(seed)
    page = rng.choice([1, 4])
    config = SglangCacheConfig(
        kv_tokens=rng.choice([400, 4000]),
        state_slots=rng.choice([6, 40]),
        strategy="extra_buffer" if page > 1 else rng.choice(["no_buffer", "extra_buffer"]),
        page_tokens=page,
        chunk_tokens=rng.choice([4, 8]) * page,
        track_interval_tokens=8 * page,
        chunked_prefill_tokens=rng.choice([32, 64]) * page,
        state_bytes=1000,
    )
    requests = arriving(
        [
            Request(f"r{n}", Prompt(length, 1, tuple(rng.randint(0, 1) for _ in range(length))), 1)
            for n, length in enumerate(rng.choices(range(1, 120), k=rng.randint(1, 14)))
        ],
        rng,
    )
    arrival, clock = arrival_of(rng), clock_of(rng.choice(MODELS))
    return replayed(requests, ReplayedSglang(config, skipping=skipping), arrival, clock)


@RELAXED
@given(st.integers(0, 1_000_000))
def test_sglang_ends_at_the_same_ticks_with_and_without_skipping(seed: int) -> None:
    assert _sglang(seed, skipping=True) == _sglang(seed, skipping=False)


@pytest.mark.parametrize("model", MODELS)
def test_a_stretch_takes_what_its_steps_take(model: str) -> None:
    clock, contexts = clock_of(model), [1, 900, 1023, 1024, 5000]
    from hybridplan.sim.time import StepWork

    alone = [
        clock.charge(StepWork([c + n for c in contexts], head_rows=len(contexts)))
        for n in range(400)
    ]
    charge = clock.stretch(StepWork(contexts, head_rows=len(contexts)), 400)
    assert charge.ticks == sum(one.ticks for one in alone)
    assert charge.counts == tuple(map(sum, zip(*(one.counts for one in alone), strict=True)))
