"""Event by event against what SGLang's own classes answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridplan.sim.sglang.events import ScriptedReplay
from hybridplan.sim.sglang.integrity import check_integrity

COMMITTED = Path(__file__).parents[2] / "golden" / "sglang"


def answers(folder: Path) -> list[Path]:
    """Files below a folder that hold an SGLang answer and whose trace stands beside them."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        head = path.read_text()[:200]
        trace = path.parent.parent / "traces" / path.name
        if head.startswith('{"trace"') and '"backend"' in head and trace.is_file():
            found.append(path)
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "answer" in metafunc.fixturenames:
        paths = answers(metafunc.config.getoption("--golden") or COMMITTED)
        metafunc.parametrize("answer", paths, ids=[path.stem for path in paths])


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    trace = path.parent.parent / "traces" / path.name
    return json.loads(trace.read_text()), json.loads(path.read_text())


def test_every_event_agrees(answer: Path) -> None:
    trace, golden = load(answer)
    replay = ScriptedReplay(trace)
    count = 0
    for step, (got, want) in enumerate(zip(replay, golden["events"], strict=True)):
        got["nodes"], got["mamba_lru"] = replay.nodes(), replay.state_order()
        differ = {
            key: (value, want[key]) for key, value in got.items() if want.get(key, value) != value
        }
        assert not differ, f"event {step} {want['op']} {want['rid']}: (ours, SGLang's) {differ}"
        check_integrity(replay.cache)
        count += 1
    assert count == len(golden["events"])
    if golden["final_nodes"] is not None:
        assert replay.nodes() == golden["final_nodes"]
        assert replay.state_order() == golden["final_mamba_lru"]


def test_totals_of_the_run_agree(answer: Path) -> None:
    trace, golden = load(answer)
    replay = ScriptedReplay(trace)
    hits = sum(event["hit"] for event in replay if event["op"] == "start")
    summary = golden["summary"]
    assert hits == summary["matched_tokens"]
    assert replay.cache.tree.evicted_states == summary["evicted_states"]
    assert replay.cache.tree.evicted_kv_tokens == summary["evicted_kv_tokens"]
