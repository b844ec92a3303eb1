"""The stored H200 run: what it found, and that the pages which show it show it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import hybridplan
from benchmarks.measure.table import PAGES, page_with_table, stored
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.measure.result import Check, compared

ROOT = Path(__file__).parents[2]
CHECKS = stored()
FAMILIES = (
    "bytes", "cache of a real model", "one model, three ways", "checkpoints", "decode",
    "crossovers", "prefill", "state precision", "transfer", "break-even", "drafts", "time model",
)  # fmt: skip


def test_every_family_of_checks_was_run_and_is_within() -> None:
    assert set(FAMILIES) <= {c.check for c in CHECKS}
    assert [c.name for c in CHECKS if c.verdict not in ("within", "noted")] == []


@pytest.mark.parametrize(
    "check", [pytest.param(c, id=f"{c.check}: {c.name}") for c in CHECKS if c.verdict != "noted"]
)
def test_the_stored_verdict_is_what_the_code_says_today(check: Check) -> None:
    assert check.predicted is not None
    assert check.measured is not None
    assert check.tolerance is not None
    again = compared(
        check.check, check.name, check.what, check.predicted, check.measured, check.unit,
        check.tolerance, check.how, sense=check.sense, spread=check.spread,
    )  # fmt: skip
    assert again.verdict == check.verdict
    assert again.error == pytest.approx(check.error)


def test_the_real_cache_held_what_the_ledger_counts_today() -> None:
    caches = model_caches(hybridplan.load("qwen3.5-0.8b"), Deployment("transformers"))
    measured = {c.name: c.measured for c in CHECKS if c.check == "cache of a real model"}
    for tokens in (100, 1000, 3000):
        kv = sum(layer.token_bytes(tokens) for layer in caches)
        assert measured[f"KV at {tokens:,} tokens"] == kv
        for part in ("state", "conv"):
            held = sum(s.bytes for layer in caches for s in layer.states if s.name == part)
            assert measured[f"{part} at {tokens:,} tokens"] == held


@pytest.mark.parametrize("page", PAGES)
def test_the_page_shows_the_stored_run(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == page_with_table(text, PAGES[page])
