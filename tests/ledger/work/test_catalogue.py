"""Every model of the catalogue has a step that can be counted, with drafts and without."""

from __future__ import annotations

import pytest

import hybridplan
from hybridplan.ledger.catalogue import entries
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.work import StepWork, work_model

WORK = StepWork(
    [3000, 10], chunks=[(100, 500)], windows=[(40, 3)], head_rows=6, proposed=2
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(entries()))
def test_a_step_of_the_model_can_be_counted(name: str) -> None:
    spec = hybridplan.load(name)
    for drafts in (0, 2):
        model = work_model(spec, Deployment("vllm", drafts=drafts))
        counts = model.counts(WORK)
        assert min(counts) >= 0
        assert counts.bytes > model.once.bytes
        assert (counts.scan_flop > 0) == (model.state_bytes > 0)
        assert counts.dense_flop > 0 or spec.model_type == "hybridplan"
