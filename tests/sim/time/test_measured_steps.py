"""Steps that ``measure --gpu`` timed on an H200, predicted by the simulator's own clock.

The calibration is the one that the same run saved; half of the steps are not in its fit. Bound:
10 % a step (issue "Latency, fleets, and pages"), on steps of the whole stack.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hybridplan
from hybridplan.ledger.calibration import load
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.work import StepWork, work_model
from hybridplan.sim.time.clock import STEP_TICKS_PER_S, StepClock

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
RUN = json.loads((RESULTS / "measure-h200-qwen3.5-0.8b.json").read_text(encoding="utf-8"))
STEPS = {
    point["name"]: point["measured"]
    for series in RUN["series"]
    if series["name"] == "steps"
    for point in series["points"]
    if "layers" not in point["name"]
}


@pytest.fixture(scope="module")
def clock() -> StepClock:
    calibration = load(RESULTS / "calibration-h200-qwen3.5-0.8b.json")
    return StepClock(work_model(hybridplan.load(RUN["model"]), Deployment("vllm")), calibration)


def _work(name: str) -> StepWork:
    kind, rest = name.split(" ", 1)
    requests, tokens = (int(n.replace(",", "")) for n in rest.split(" x "))
    if kind == "decode":
        return StepWork([tokens] * requests, head_rows=requests)
    return StepWork(chunks=[(0, tokens)] * requests, head_rows=requests)


def test_the_run_timed_decodes_and_prefills() -> None:
    assert sum(name.startswith("decode") for name in STEPS) >= 10
    assert sum(name.startswith("prefill") for name in STEPS) >= 10


@pytest.mark.parametrize("name", STEPS)
def test_a_measured_step_is_predicted_within_a_tenth(clock: StepClock, name: str) -> None:
    predicted_us = 1e6 * clock.charge(_work(name)).ticks / STEP_TICKS_PER_S
    assert predicted_us == pytest.approx(STEPS[name], rel=0.10)
