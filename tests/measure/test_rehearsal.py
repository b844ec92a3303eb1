"""Every timed branch runs to its end on the CPU; its times mean nothing here and are not read."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.measure.rehearsal import Rehearsal, make_context

ORDER = ("checkpoints", "decode", "crossovers", "prefill", "transfer", "break_even", "drafts",
         "time_model")  # fmt: skip
SMALL = {
    "decode.KV_BYTES": 1,
    "decode.STATE_BYTES": 1,
    "transfer._PROBES": (1 << 16, 1 << 18),
    "break_even.BASE_TOKENS": 16,
    "break_even.MORE_TOKENS": 32,
}


@pytest.mark.slow
def test_every_timed_check_of_a_hybrid_gives_predictions_and_measurements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(f"hybridplan.measure.checks.{name}", value)
    context = make_context(Rehearsal, "qwen3.5-0.8b", timed=True)
    found = []
    for module in ORDER:
        checks = import_module(f"hybridplan.measure.checks.{module}").run(context)
        assert checks
        found += checks
    broken = [c for c in found if c.verdict == "failed"]
    assert not broken
    assert [c.name for c in found if c.verdict == "skipped"] == ["GPU to GPU"]
    timed = [c for c in found if c.spread is not None]
    assert {c.check for c in timed} == {"checkpoints", "decode", "prefill", "transfer", "drafts"}
    assert {c.name for c in found if c.check == "break-even"} == {"device", "host"}
    assert all(c.predicted is not None and c.measured is not None for c in timed)
    assert {"step.bytes", "link.in_bytes_per_s", "checkpoint.copy_s"} <= set(context.constants)
    assert {s.check for s in context.series} >= {"decode", "crossovers", "prefill", "time model"}
