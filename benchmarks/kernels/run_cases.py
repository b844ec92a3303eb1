"""Check and time the declared cases on one card, and write rows with card, versions and command.

    python -m benchmarks.kernels.run_cases --out results.json [--only scalar_decay] [--warm 0/8]

``--warm RANK/OF`` only compiles (checks without timing) every OF-th case, to fill Triton's cache
from several processes first. Rows that fail their check carry no time; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import torch
import triton

from benchmarks.kernels.case import Case, Row, measure

MODULES = (
    "scalar_decay", "gated_linear", "short_conv", "paged_attention", "state_copy", "replay"
)  # fmt: skip


def cases(only: list[str]) -> list[Case]:
    """All declared cases, or those of some operators."""
    return [
        case
        for name in only or MODULES
        for case in importlib.import_module(f"benchmarks.kernels.cases_{name}").CASES
    ]


def summary(row: Row) -> str:
    """One line of a result."""
    errors = ", ".join(f"{name} {error:.2g}" for name, error in row.errors.items())
    head = f"{row.operator:22s} {row.shape:46s} "
    if row.us is None:
        return f"{head}FAILED its check: {errors}"
    verdict = "" if row.met is None else f"  {'met' if row.met else 'MISSED'}: {row.target}"
    return (
        f"{head}{row.us:9.2f} us {row.ratio:5.2f}x floor {row.terabytes_per_s:5.2f} TB/s "
        f"host {row.eager_host_us:5.1f} us  ({errors}){verdict}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", choices=MODULES, default=[])
    parser.add_argument("--warm", metavar="RANK/OF")
    options = parser.parse_args(arguments)
    device = torch.device("cuda", torch.cuda.current_device())
    chosen = cases(options.only)
    if options.warm:
        rank, of = (int(part) for part in options.warm.split("/"))
        for case in chosen[rank::of]:
            case.prepare(device).check()
        return 0
    rows = []
    for case in chosen:
        rows.append(measure(case, device))
        sys.stdout.write(summary(rows[-1]) + "\n")
        sys.stdout.flush()
        torch.cuda.empty_cache()
    if options.out:
        record = {
            "card": torch.cuda.get_device_name(device),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "command": "python -m benchmarks.kernels.run_cases",
            "rows": [row.to_dict() for row in rows],
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
