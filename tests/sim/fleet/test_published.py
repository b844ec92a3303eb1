"""The table of docs/fleet.md is the committed result of the benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "fleet_routers.json").read_text("utf-8"))
NAMES = {
    "mooncake_conversation.jsonl.gz": "Mooncake conversation",
    "lmcache_agent_derived.jsonl.gz": "agent sessions",
}


@pytest.mark.parametrize(
    "case", RESULT["cases"], ids=[f"{one['trace']}-{one['model']}" for one in RESULT["cases"]]
)
def test_the_page_shows_what_was_run(case: dict[str, object]) -> None:
    routers = case["routers"]
    assert isinstance(routers, dict)
    rates = [case["ceiling"], case["one_pool"], *(one["hit_rate"] for one in routers.values())]
    cells = " | ".join(f"{100 * rate:.1f} %" for rate in rates)
    worst, best = routers["round-robin"], routers["prefix-aware"]
    times = " to ".join(f"{1000 * one['ttft_p50_s']:.0f}" for one in (worst, best))
    uneven = f"{worst['busiest']:.2f}, {best['busiest']:.2f}"
    row = f"| {NAMES[str(case['trace'])]}, {case['model']} | {cells} | {times} ms | {uneven} |"
    assert row in (ROOT / "docs" / "fleet.md").read_text("utf-8")
