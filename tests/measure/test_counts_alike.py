"""What ``measure`` counts of a step that it runs is what the ledger counts of it beforehand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.work import StepWork, work_model
from hybridplan.measure import steps
from hybridplan.measure.context import Context
from hybridplan.measure.stack import Stack

sys.path.insert(0, str(Path(__file__).parent))

import rehearsal

MODELS = ("qwen3.5-0.8b", "llama-3.1-8b", "lfm2-1.2b", "falcon-h1-0.5b-base", "nemotron-h-8b")


@pytest.fixture(scope="module", params=MODELS)
def stacked(request: pytest.FixtureRequest) -> tuple[Context, Stack]:
    context = rehearsal.make_context(Context, request.param, False)
    return context, steps.stack_of(context)


def _features(context: Context, work: StepWork) -> dict[str, float]:
    counts = work_model(context.shapes, Deployment("vllm")).counts(work)
    return {name: float(count) for name, count in counts._asdict().items() if count}


def test_decode_step_counts_alike(stacked: tuple[Context, Stack]) -> None:
    context, stack = stacked
    assert stack.whole
    predicted = _features(context, StepWork([20] * 3, head_rows=3))
    assert stack.decode(3, 20).features == predicted


def test_prefill_step_counts_alike(stacked: tuple[Context, Stack]) -> None:
    context, stack = stacked
    predicted = _features(context, StepWork(chunks=[(0, 20), (0, 30)], head_rows=2))
    assert stack.prefill((20, 30)).features == predicted
