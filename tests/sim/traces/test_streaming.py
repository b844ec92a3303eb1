"""Reading holds one row, whatever the length of the file; and it is quick."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from hybridplan.sim.traces import open_trace

DATA = Path(__file__).parents[2] / "data" / "traces"


def lines(count: int) -> list[str]:
    return [
        json.dumps(
            {"timestamp": i * 7, "input_length": 1024 + i % 9, "output_length": 5,
             "hash_ids": [0, 1] + [i] * (i % 9 > 0)}
        )
        for i in range(count)
    ]  # fmt: skip


def peak_bytes(path: Path, **options: object) -> int:
    trace = open_trace(path, **options)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        for _ in trace.requests():
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape, counts", [("jsonl", (2_000, 8_000)), ("array", (9_000, 18_000))])
def test_memory_does_not_grow_with_the_trace(
    tmp_path: Path, shape: str, counts: tuple[int, int]
) -> None:
    peaks = []
    for count in counts:
        path = tmp_path / f"{count}"
        rows = lines(count)
        path.write_text("\n".join(rows) if shape == "jsonl" else "[" + ",\n".join(rows) + "]")
        peaks.append(peak_bytes(path, block_tokens=512, order="time", window=100))
    assert peaks[1] < peaks[0] * 1.2 + 100_000


def test_importing_the_readers_imports_nothing_heavy() -> None:
    heavy = ["torch", "transformers", "numpy", "pandas", "pyarrow", "zstandard", "pydantic", "rich"]
    code = (
        "import sys, hybridplan.sim.traces as t;"
        f"t.open_trace({str(DATA / 'arxiv_summarization_lengths_head.csv')!r});"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
