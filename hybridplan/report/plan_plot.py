"""Requests at once by setting, as a picture."""

from __future__ import annotations

from pathlib import Path

from hybridplan.errors import InputError
from hybridplan.ledger.planning.result import LengthsResult
from hybridplan.report.canvas import drawing


def concurrency_by_choice(result: LengthsResult | None, path: Path) -> None:
    """Mean requests at once with p5 to p95 bars for each value of the knob, the twin as a line.

    Raises InputError when the plan was made without a length distribution.
    """
    if result is None:
        raise InputError("--plot draws requests at once by setting, which needs --lengths")
    runs = [choice.concurrency for choice in result.choices]
    positions = range(len(runs))
    means = [run.mean for run in runs]
    below = [max(0.0, run.mean - run.p5) for run in runs]
    above = [max(0.0, run.p95 - run.mean) for run in runs]
    with drawing(path) as axes:
        axes.errorbar(positions, means, yerr=[below, above], fmt="o-", capsize=3, label=result.knob)
        if result.twin is not None:
            axes.axhline(
                result.twin.mean, linestyle="--", color="#444444", label="all-attention twin"
            )
        axes.set_xticks(list(positions), [choice.value for choice in result.choices], rotation=45)
        axes.set_xlabel(result.knob)
        axes.set_ylabel("requests at once (mean, p5 to p95)")
        axes.set_title(result.name)
        axes.set_ylim(bottom=0)
        axes.legend()
