"""How long the command line takes, beside what it cannot be faster than and beside hf-mem.

    python benchmarks/cli/startup.py [--pairs 20] [--hf-mem PATH] [--out FILE]

On a machine that others load, start it as ``chrt -f 10 python ...`` (root); the record says so.

Each of our commands is run in alternating pairs with each baseline, so that a slow moment of the
machine hits both; the record keeps its load. The baselines: the imports every run must make
(typer, rich, pydantic), and
``hf-mem --help`` where it is installed. Wall-clock seconds of whole processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OURS = {
    "ledger qwen3.5-0.8b": ["-m", "hybridplan", "ledger", "qwen3.5-0.8b"],
    "--help": ["-m", "hybridplan", "--help"],
}
LIMITS_S = {"ledger qwen3.5-0.8b": 0.3, "--help": 0.25}


def seconds(command: list[str]) -> float:
    """Wall-clock seconds of one process; its output is dropped, a failure is raised."""
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    return time.perf_counter() - begin


def pairs(ours: list[str], baseline: list[str], count: int) -> list[tuple[float, float]]:
    """(ours, baseline) ``count`` times, the one that goes first alternating; one warm-up each."""
    seconds(ours), seconds(baseline)
    timed = []
    for turn in range(count):
        if turn % 2:
            theirs = seconds(baseline)
            timed.append((seconds(ours), theirs))
        else:
            mine = seconds(ours)
            timed.append((mine, seconds(baseline)))
    return timed


def summary(timed: list[tuple[float, float]]) -> dict[str, Any]:
    """Medians, extremes, and the median of the pairwise ratios."""
    ours, theirs = ([pair[side] for pair in timed] for side in (0, 1))
    return {
        "pairs": len(timed),
        "ours_median_s": round(statistics.median(ours), 4),
        "ours_min_s": round(min(ours), 4),
        "ours_max_s": round(max(ours), 4),
        "baseline_median_s": round(statistics.median(theirs), 4),
        "ratio_median": round(statistics.median(mine / other for mine, other in timed), 3),
    }


def main() -> int:
    """Run all pairs, write the record, and return 1 if a median is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--hf-mem", default=shutil.which("hf-mem"))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/cli_startup.json")
    arguments = parser.parse_args()
    baselines = {
        "import typer, rich, pydantic": [sys.executable, "-c", "import typer, rich, pydantic"]
    }
    if arguments.hf_mem:
        baselines["hf-mem --help"] = [arguments.hf_mem, "--help"]
    results = []
    for name, tail in OURS.items():
        for baseline, command in baselines.items():
            timed = pairs([sys.executable, *tail], command, arguments.pairs)
            results.append({"ours": name, "baseline": baseline, **summary(timed)})
            sys.stdout.write(json.dumps(results[-1]) + "\n")
    record = {
        "benchmark": "cli_startup",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": "python benchmarks/cli/startup.py",
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "system": platform.system(),
        },
        "load_average_1min": round(os.getloadavg()[0], 2),
        "real_time_priority": os.sched_getscheduler(0) != os.SCHED_OTHER,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("hybridplan", "typer", "rich", "pydantic")},
        "limits_s": LIMITS_S,
        "results": results,
    }
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")
    late = [r for r in results if r["ours_median_s"] > LIMITS_S[str(r["ours"])]]
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
