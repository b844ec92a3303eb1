"""How a sweep scales: 64 cells over the Mooncake trace on one and on two local workers.

    python benchmarks/sim/sweep_scaling.py [TRACE] [--requests N] [--out FILE]

Wall times are only worth something on a machine that is otherwise idle, so the scaling is also
worked out from CPU seconds: each cell's, as its worker counted them, and the driver's own. What
1,000 workers would do is simulated from the recorded cell times and the driver's measured cost a
cell. Both sweeps must give the same bytes, or the run ends with an error. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from hybridplan import __version__
from hybridplan.report.document import document
from hybridplan.sim.sweep.grid import Grid, expand
from hybridplan.sim.sweep.runner import processes
from hybridplan.sim.sweep.store import Record, opened
from hybridplan.sim.sweep.sweep import SweepResult, sweep

TRACE = Path(__file__).parents[2] / "tests/data/traces/mooncake_conversation.jsonl.gz"
WORKERS = (1, 2, 10, 100, 1000)
SCALED_CELLS = 100_000
DASK_S = 0.001  # a task's cost in Dask's scheduler, the upper end its documentation gives


def grid_of(trace: str, requests: int | None) -> Grid:
    """64 cells: four policies, two models, eight memories."""
    return expand(
        {
            "trace": trace,
            "limit": requests,
            "model": ["qwen3.5-0.8b", "qwen3.5-4b"],
            "engine": ["vllm@0.33", "vllm@0.32", "sglang:extra_buffer", "marconi:alpha=0"],
            "kv_memory": [f"{size}GiB" for size in (24, 32, 48, 64, 96, 128, 192, 256)],
        },
        losses=False,
    )


def run(grid: Grid, folder: Path, jobs: int) -> tuple[dict[str, float], list[Record], SweepResult]:
    """One sweep from nothing: seconds, the records in the order they came, the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    with opened(folder / f"{jobs}.jsonl") as store:
        result = sweep(grid, store, lambda: processes(jobs))
        records = list(store.records.values())
    return (
        {
            "wall_s": round(time.perf_counter() - wall, 3),
            "driver_cpu_s": round(time.process_time() - cpu, 3),
            "cells_cpu_s": round(sum(record.cpu_s for record in records), 3),
            "cells_wall_s": round(sum(record.wall_s for record in records), 3),
        },
        records,
        result,
    )


class Echo(Executor):
    """Answers at once with a stored row, so that what is left is the driver's own work."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._answer)
        return future


def driver_s(grid: Grid, record: Record, folder: Path) -> float:
    """Seconds of the driver for one cell: submit, take, append and sync."""
    answer = {
        name: getattr(record, name)
        for name in ("version", "row", "error", "failed", "cpu_s", "wall_s")
    }

    @contextmanager
    def echo() -> Iterator[Executor]:
        yield Echo(answer)

    begin = time.perf_counter()
    with opened(folder / "echo.jsonl") as store:
        sweep(grid, store, echo)
    return (time.perf_counter() - begin) / len(grid.cells)


def makespan_s(times: Sequence[float], workers: int, serial_s: float) -> float:
    """When the driver has the last cell, if each starts on the first free worker and the driver
    needs ``serial_s`` for each, one after another, in the order they end."""
    free = [0.0] * min(workers, len(times))
    ends = []
    for seconds in times:
        end = heapq.heappop(free) + seconds
        ends.append(end)
        heapq.heappush(free, end)
    driver = 0.0
    for end in sorted(ends):
        driver = max(driver, end) + serial_s
    return driver


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", default=str(TRACE))
    parser.add_argument("--requests", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    grid = grid_of(args.trace, args.requests)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = os.getloadavg()[0]
        one, _, first = run(grid, folder, 1)
        two, records, second = run(grid, folder, 2)
        if document(first) != document(second):
            sys.exit("the two sweeps differ")
        answered = next(record for record in records if record.row is not None)
        serial_s = driver_s(grid, answered, folder)
    cell_s = [record.cpu_s for record in records]
    work_s = sum(cell_s)
    repeated = [cell_s[i % len(cell_s)] for i in range(SCALED_CELLS)]
    total_s = sum(repeated)
    scaled = []
    for workers in WORKERS:
        for how, cost in (("local driver", serial_s), ("with Dask", serial_s + DASK_S)):
            span = makespan_s(repeated, workers, cost)
            scaled.append(
                {
                    "workers": workers,
                    "how": how,
                    "makespan_s": round(span, 1),
                    "efficiency": round(total_s / (workers * span), 4),
                }
            )
    result = {
        "what": "64 cells over the Mooncake trace on one and two workers, and scaled on paper",
        "command": "python benchmarks/sim/sweep_scaling.py"
        + (f" --requests {args.requests}" if args.requests else ""),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "version": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_before": round(load, 1),
        "cells": len(grid.cells),
        "errors": sum(record.error is not None for record in records),
        "one_worker": one,
        "two_workers": two,
        "efficiency_wall": round(one["wall_s"] / (2 * two["wall_s"]), 4),
        "efficiency_cpu": round(one["cells_cpu_s"] / (2 * makespan_s(cell_s, 2, serial_s)), 4),
        "cpu_of_two_over_one": round(two["cells_cpu_s"] / one["cells_cpu_s"], 4),
        "driver_s_per_cell": round(serial_s, 6),
        "cell_cpu_s": {
            "mean": round(work_s / len(cell_s), 3),
            "least": round(min(cell_s), 3),
            "most": round(max(cell_s), 3),
        },
        "scaled_cells": SCALED_CELLS,
        "scaled": scaled,
        "cells_per_s_of_driver": {
            "local": round(1 / serial_s, 1),
            "with Dask": round(1 / (serial_s + DASK_S), 1),
        },
    }
    text = json.dumps(result, indent=2) + "\n"
    sys.stdout.write(text)
    if args.out is not None:
        args.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
