"""Latencies at several rates: each point is the replay that ``run`` gives at that speed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from hybridplan.config.find import load
from hybridplan.ledger.calibration import preset
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.sim import rates
from hybridplan.sim.arrival import Closed, Rate, Timed
from hybridplan.sim.rates import MOST_REPLAYS, RateCurve, rate_curve
from hybridplan.sim.run import SimulateAsk, run
from hybridplan.sim.setup import EngineAsk, SglangFlags, VllmFlags
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.slo import Slo
from hybridplan.sim.traces import open_trace

TRACES = Path(__file__).parents[1] / "data" / "traces"
LENGTHS = str(TRACES / "azure_llm_2023_conv.csv.gz")
IDS = str(TRACES / "lmcache_agent_derived.jsonl.gz")
TIMING = TimeAsk(preset(find_gpu("l4")), slo=Slo(ttft_s=2.0, share=0.5))


def ask(trace: str, limit: int = 40, engine: str = "vllm") -> SimulateAsk:
    flags = VllmFlags(num_blocks=2000) if engine == "vllm" else SglangFlags()
    asked = EngineAsk(load("qwen3.5-0.8b"), Deployment(engine), flags)
    opened = open_trace(trace, limit=limit)
    gap = 1.0 if trace == IDS else None
    return SimulateAsk(
        asked, opened, Timed(), session_gap_s=gap, bounds=False, advice="off", timing=TIMING
    )


@cache
def curve(trace: str) -> RateCurve:
    found = rate_curve(ask(trace))
    assert found is not None
    return found


def test_every_point_is_the_replay_at_that_speed() -> None:
    found = curve(IDS)
    assert found.baseline == "--no-prefix-caching"
    for point in found.points:
        result = run(replace(ask(IDS), timing=replace(TIMING, rate=Rate(speed=point.speed))))
        assert result.time is not None
        assert result.time.worth is not None
        assert result.time.attained is not None
        assert result.time.latencies == point.hits.latencies
        assert result.time.offered_per_s == point.rate_per_s
        assert result.time.attained.share_met == point.hits.share_met
        assert point.without is not None
        assert result.time.worth.latencies == point.without.latencies


def test_rates_rise_and_hold_the_trace_s_own() -> None:
    found = curve(IDS)
    assert found.whole
    assert found.requests == 40
    assert found.own.speed == 1.0
    assert [p.rate_per_s for p in found.points] == sorted(p.rate_per_s for p in found.points)
    assert 4 <= len(found.points) <= (MOST_REPLAYS - 1) // 2
    assert found.at_once_per_s is not None
    assert found.points[0].rate_per_s < found.at_once_per_s


def test_the_rate_asked_for_is_the_own_one() -> None:
    faster = replace(ask(LENGTHS), timing=replace(TIMING, rate=Rate(speed=3.0)))
    found = rate_curve(faster)
    assert found is not None
    assert found.own.speed == 3.0


def test_without_hits_there_is_nothing_to_compare() -> None:
    found = curve(LENGTHS)
    assert found.baseline == ""
    assert all(point.without is None for point in found.points)


def test_no_baseline_is_asked_for() -> None:
    found = rate_curve(replace(ask(IDS), timing=replace(TIMING, baseline=False)))
    assert found is not None
    assert found.baseline == ""
    assert [point.hits for point in found.points] == [point.hits for point in curve(IDS).points]


def test_sglang_is_compared_with_prompts_that_are_not_alike() -> None:
    found = rate_curve(ask(IDS, 30, "sglang"))
    assert found is not None
    assert found.baseline == "no two prompts alike"


def test_long_traces_give_their_first_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_REQUESTS", 20)
    found = rate_curve(ask(LENGTHS))
    assert found is not None
    assert (found.requests, found.whole) == (20, False)
    first = rate_curve(ask(LENGTHS, 20))
    assert first is not None
    assert found.points == first.points


def test_long_prompts_leave_fewer_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_PROMPT_TOKENS", 1)
    monkeypatch.setattr(rates, "LEAST_REQUESTS", 10)
    found = rate_curve(ask(LENGTHS))
    assert found is not None
    assert (found.requests, found.whole) == (10, False)


@pytest.mark.parametrize(
    "asked",
    [
        replace(ask(LENGTHS), timing=TimeAsk()),
        replace(ask(LENGTHS), arrival=Closed(4)),
        replace(ask(IDS), session_gap_s=0.0, trace=open_trace(IDS, limit=1)),
    ],
    ids=["no calibration", "closed", "one moment"],
)
def test_no_rate_to_vary(asked: SimulateAsk) -> None:
    assert rate_curve(asked) is None


def test_ctrl_c_before_the_first_point_is_passed_on() -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rate_curve(ask(LENGTHS), watch=stop)


def test_ctrl_c_keeps_the_points_until_then() -> None:
    seen: set[str] = set()

    def stop(stage: str, *_: object) -> None:
        seen.add(stage)
        if len(seen) > 3:
            raise KeyboardInterrupt

    found = rate_curve(ask(LENGTHS), watch=stop)
    assert found is not None
    assert found.interrupted
    assert 1 <= len(found.points) < len(curve(LENGTHS).points)
    assert set(found.points) < set(curve(LENGTHS).points)
