"""What pages count is counted."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GOLDEN = ROOT / "tests" / "golden"


def agreement_row(name: str) -> str:
    """The counts that docs/agreement.md states for one kind of answers."""
    page = (DOCS / "agreement.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(name)} \| (.*?) \|", page, re.MULTILINE)
    return str(row)


@pytest.mark.parametrize("version", ["0.33.0", "0.32.0"])
def test_stored_random_traces(version: str) -> None:
    with gzip.open(GOLDEN / "vllm" / version / "random_traces.jsonl.gz") as lines:
        assert agreement_row(f"vLLM {version}, random traces") == str(sum(1 for _ in lines))


def test_stored_runs_of_marconi() -> None:
    stored = json.loads((GOLDEN / "marconi" / "reference.json").read_text(encoding="utf-8"))
    assert agreement_row("Marconi's simulator, four traces") == str(len(stored["results"]))


def test_compared_models_of_transformers() -> None:
    page = (DOCS / "engines" / "transformers.md").read_text(encoding="utf-8")
    equal, more = page.count("| equal |"), page.count("| more by a known amount")
    said = agreement_row("transformers 5.24, cache tensors of a model")
    assert said == f"{equal} equal, {more} more by a known amount"


def test_the_grid_of_the_sweep_page_is_the_example() -> None:
    grid = (DOCS / "examples" / "grid.yaml").read_text(encoding="utf-8")
    assert f"```yaml\n{grid}```" in (DOCS / "sweep.md").read_text(encoding="utf-8")


def test_trace_formats_are_counted() -> None:
    page = (DOCS / "traces.md").read_text(encoding="utf-8")
    rows = page.partition("| `--format` |")[2].partition("\n\n")[0].count("\n| `")
    assert f"{rows} formats" in (DOCS / "tutorial.md").read_text(encoding="utf-8")
