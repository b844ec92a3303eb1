"""Curves of a measurement: measured points, predictions as dashed lines."""

from __future__ import annotations

from pathlib import Path

from hybridplan.errors import InputError
from hybridplan.measure.result import MeasureResult, Series
from hybridplan.report.canvas import drawing

_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf")


def has_curves(result: MeasureResult) -> bool:
    """Whether the run measured what :func:`decode_against_context` draws."""
    return bool(_curves(result))


def _curves(result: MeasureResult) -> list[Series]:
    return [
        s for s in result.series if s.check == "decode" and s.x == "context tokens" and s.points
    ]


def decode_against_context(result: MeasureResult, path: Path) -> None:
    """Step time of a linear and of an attention layer by context, both axes logarithmic.

    Raises InputError where the run has no such curve (a CPU run, or one interrupted before it).
    """
    curves = _curves(result)
    if not curves:
        raise InputError("this run has no decode times by context to draw; run with --gpu")
    with drawing(path) as axes:
        for colour, series in zip(_COLOURS, curves, strict=False):
            xs = [p.x for p in series.points]
            measured = [p.measured for p in series.points]
            axes.plot(xs, measured, "o-", color=colour, label=series.name)
            predicted = [(p.x, p.predicted) for p in series.points if p.predicted is not None]
            if predicted:
                axes.plot(*zip(*predicted, strict=True), "--", color=colour)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("context tokens")
        axes.set_ylabel("us a step and layer (dashed: predicted)")
        axes.set_title(f"{result.model} on {result.device.name}")
        axes.grid(alpha=0.3)
        axes.legend()
