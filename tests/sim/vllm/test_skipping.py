"""Skipping decode steps is an optimisation: the naive twin steps each one and must agree."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridplan.errors import RefusalError
from hybridplan.sim.arrival import Arrival, Closed, Timed
from hybridplan.sim.events import Event
from hybridplan.sim.outcome import LossCause, RequestOutcome, Summary
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Request
from hybridplan.sim.vllm import invariants
from hybridplan.sim.vllm.engine import VllmEngine
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import VllmCacheConfig

sys.path.insert(0, str(Path(__file__).parent))

import random_cases
import traced_cases

RELAXED = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ECHO = {"resolved": {"groups": []}}


def _scenario(
    seed: int, *, drafts: bool
) -> tuple[VllmCacheConfig, list[Request], Arrival, tuple[int, ...]]:
    rng = Random(seed)
    case = random_cases.random_case(seed, drafts=drafts)
    config = traced_cases.config_of(case, ECHO, rng.choice(["0.32", "0.33"]))
    requests = [
        replace(request, arrival_s=rng.randint(0, 40) / 10, output_tokens=rng.choice([1, 5, 90]))
        for request in traced_cases.requests_of(case)
    ]
    requests.sort(key=lambda r: r.arrival_s or 0.0)
    arrival: Arrival = rng.choice(
        [Closed(1), Closed(2), Closed(8), Timed(tokens_per_s=2000.0, step_s=0.01)]
    )
    return config, requests, arrival, traced_cases.accepted_drafts(case)


def _run(
    seed: int, *, skipping: bool, drafts: bool
) -> tuple[list[RequestOutcome], list[Event], Summary, str]:
    config, requests, arrival, accepted = _scenario(seed, drafts=drafts)
    events: list[Event] = []
    engine = ReplayedVllm(config, accepted_drafts=accepted, skipping=skipping, events=events.append)
    run = Replay(requests, engine, arrival=arrival)
    outcomes = []
    refusal = ""
    try:
        outcomes.extend(run)
    except RefusalError as error:
        refusal = error.sentence
    return outcomes, events, run.summary(), refusal


@RELAXED
@given(st.integers(0, 1_000_000))
def test_skipping_agrees_with_stepping_when_nothing_is_drafted(seed: int) -> None:
    assert _run(seed, skipping=True, drafts=False) == _run(seed, skipping=False, drafts=False)


@RELAXED
@given(st.integers(0, 1_000_000))
def test_skipping_agrees_with_stepping_when_drafts_are_allowed(seed: int) -> None:
    assert _run(seed, skipping=True, drafts=True) == _run(seed, skipping=False, drafts=True)


@RELAXED
@given(st.integers(0, 1_000_000))
def test_causes_sum_to_the_loss_and_bounds_are_ordered(seed: int) -> None:
    outcomes, _, summary, _ = _run(seed, skipping=True, drafts=True)
    for outcome in outcomes:
        assert outcome.ceiling_tokens is not None
        invariants.check_outcome(outcome)
    assert summary.lost_tokens == (summary.ceiling_tokens or 0) - summary.hit_tokens


@pytest.mark.parametrize(
    "cause, seed",
    [
        (LossCause.PREEMPTED, 3081),
        (LossCause.DECODE_STATE, 3182),
        (LossCause.OVERWRITTEN, 3416),
        (LossCause.OUT_OF_WINDOW, 3812),
    ],
    ids=lambda value: value.value if isinstance(value, LossCause) else "",
)
def test_rare_cause_is_reached_by_a_random_trace(cause: LossCause, seed: int) -> None:
    _, _, summary, _ = _run(seed, skipping=True, drafts=True)
    assert cause in dict(summary.lost)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1_000_000))
def test_invariants_hold_after_every_step_and_at_every_admission(seed: int) -> None:
    case = random_cases.random_case(seed)
    config = traced_cases.config_of(case, ECHO, "0.33")

    def check(engine: VllmEngine) -> None:
        invariants.check(engine)
        if engine.scheduler.on_admit is None:
            engine.scheduler.on_admit = partial(invariants.check_admission, engine)

    traced_cases.replay_case(case, config, check=check)
