"""Every stored run of the artifact's simulator, reproduced in artifact mode."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.replayed import MarconiConfig, ReplayedMarconi
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Prompt, Request

COMMITTED = Path(__file__).parents[2] / "golden" / "marconi"


def stored_runs(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Runs in files below a folder that hold answers of the artifact and its trace generator."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        if '"artifact"' not in path.read_text()[:2000]:
            continue
        if not path.with_name("make_traces.py").is_file():
            continue
        found += [(path, run) for run in json.loads(path.read_text())["results"]]
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stored" in metafunc.fixturenames:
        stored = stored_runs(metafunc.config.getoption("--golden") or COMMITTED)
        names = [f"{run['trace']}-{run['capacity_bytes']}-{run['policy']}" for _, run in stored]
        metafunc.parametrize("stored", stored, ids=names)


@pytest.fixture(scope="module")
def traces() -> dict[tuple[Path, str], list[Request]]:
    return {}


def generated(path: Path, name: str) -> tuple[str, list[Request]]:
    """(SHA-256 of the trace file, its requests) as the generator beside the answers makes it."""
    spec = importlib.util.spec_from_file_location("make_traces", path.with_name("make_traces.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = module.TRACES[name]()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    requests = []
    for index, row in enumerate(rows):
        tokens = row["input_tokens"] + row["output_tokens"]
        prompt = Prompt(row["num_input_tokens"], 1, row["input_tokens"])
        whole = Prompt(len(tokens), 1, tokens)
        requests.append(Request(str(index), prompt, row["num_output_tokens"], sequence=whole))
    return hashlib.sha256(text.encode()).hexdigest(), requests


def config_of(run: dict[str, Any], costs: ModelCosts) -> MarconiConfig:
    policy, _, alpha = run["policy"].partition("=")
    return MarconiConfig(
        costs, run["capacity_bytes"], policy, mode="artifact", alpha=float(alpha or 0)
    )


def test_run_is_reproduced(
    stored: tuple[Path, dict[str, Any]], traces: dict[tuple[Path, str], list[Request]]
) -> None:
    path, run = stored
    if (path, run["trace"]) not in traces:
        sha256, requests = generated(path, run["trace"])
        about = json.loads(path.read_text())["traces"][run["trace"]]
        assert sha256 == about["jsonl_sha256"]
        traces[path, run["trace"]] = requests
    config = config_of(run, ModelCosts.from_paper())
    engine = ReplayedMarconi(config, attribute_losses=False)
    hits = [outcome.hit_tokens for outcome in Replay(traces[path, run["trace"]], engine)]
    totals = engine.totals()
    assert hits[: len(run["first_hits"])] == run["first_hits"]
    assert hashlib.sha1(",".join(map(str, hits)).encode()).hexdigest() == run["hits_sha1"]
    assert {
        "matched_tokens": totals.hit_tokens,
        "token_hit_rate": round(totals.hit_rate, 6),
        "request_hit_rate": round(totals.requests_hit / totals.requests, 6),
        "flops_saved": totals.flops_saved,
        "states_at_end": totals.states,
        "kv_tokens_at_end": totals.kv_tokens,
        "tree_bytes_at_end": totals.bytes,
        "peak_tree_bytes": totals.peak_bytes,
        "alpha": totals.alpha,
        "bootstrap_window": totals.bootstrap_window,
        "requests_before_first_eviction": totals.requests_before_first_eviction,
    }.items() >= {
        key: run[key]
        for key in run.keys()
        - {"trace", "capacity_bytes", "policy", "hits_sha1", "first_hits", "peak_over_capacity"}
    }.items()
