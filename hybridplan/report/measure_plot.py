"""Curves of a measurement: measured points, predictions as dashed lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hybridplan.errors import InputError
from hybridplan.measure.result import MeasureResult, Series
from hybridplan.report.canvas import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Draw: TypeAlias = "Callable[[Axes, Sequence[Series]], None]"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, told apart with any colour vision; markers differ too."""
_MARKERS = "os^Dvx"
_STEP_ERROR = 0.10
"""Band of the time model's panel: its tolerance for the mean error."""


def has_curves(result: MeasureResult) -> bool:
    """Whether the run measured anything that :func:`curves` draws."""
    return bool(_panels(result))


def curves(result: MeasureResult, path: Path) -> None:
    """Decode by context and by batch, prefill by length, steps against the time model.

    Raises InputError where the run has no such curve (a CPU run, or one interrupted before it).
    """
    panels = _panels(result)
    if not panels:
        raise InputError("this run has no times to draw; run with --gpu")
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    with figure(path, size_inches=(6.5 * columns, 4.4 * rows)) as drawn:
        drawn.suptitle(f"{result.model} on {result.device.name}, {result.date[:10]}")
        for place, (draw, found) in enumerate(panels, 1):
            axes = drawn.add_subplot(rows, columns, place)
            draw(axes, found)
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")


def _panels(result: MeasureResult) -> list[tuple[_Draw, list[Series]]]:
    wanted: tuple[tuple[_Draw, str, str], ...] = (
        (_by_context, "decode", "context tokens"),
        (_by_batch, "decode", "requests"),
        (_prefill, "prefill", "tokens a step"),
        (_steps, "time model", "predicted us"),
    )
    found = []
    for draw, check, x in wanted:
        series = [s for s in result.series if s.check == check and s.x == x and s.points]
        if series:
            found.append((draw, series))
    return found


def _lines(axes: Axes, found: Sequence[Series]) -> None:
    for colour, marker, series in zip(_COLOURS, _MARKERS, found, strict=False):
        xs = [p.x for p in series.points]
        measured = [p.measured for p in series.points]
        axes.plot(xs, measured, f"{marker}-", color=colour, label=series.name)
        predicted = [(p.x, p.predicted) for p in series.points if p.predicted is not None]
        if predicted:
            axes.plot(*zip(*predicted, strict=True), "--", color=colour)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")


def _by_context(axes: Axes, found: Sequence[Series]) -> None:
    _lines(axes, found)
    axes.set_title("decode by context")
    axes.set_xlabel("context tokens")
    axes.set_ylabel("us a step and layer (dashed: predicted)")


def _by_batch(axes: Axes, found: Sequence[Series]) -> None:
    _lines(axes, found)
    axes.set_title("decode by batch")
    axes.set_xlabel("requests")
    axes.set_ylabel("us a step and layer (dashed: predicted)")


def _prefill(axes: Axes, found: Sequence[Series]) -> None:
    for colour, marker, series in zip(_COLOURS, _MARKERS, found, strict=False):
        xs = [p.x for p in series.points]
        axes.plot(
            xs, [p.measured / 1e3 for p in series.points], marker, color=colour, label=series.name
        )
        axes.plot(
            xs,
            [float("nan") if p.predicted is None else p.predicted / 1e3 for p in series.points],
            "_",
            color=colour,
            markersize=14,
        )
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_title("prefill of the stack")
    axes.set_xlabel("tokens a step")
    axes.set_ylabel("thousand tokens/s (bar: predicted)")


def _steps(axes: Axes, found: Sequence[Series]) -> None:
    (series,) = found
    ends = [min(p.x for p in series.points), max(p.x for p in series.points)]
    for factor, style in ((1 - _STEP_ERROR, ":"), (1.0, "-"), (1 + _STEP_ERROR, ":")):
        axes.plot(
            ends, [factor * x for x in ends], style, color="#444444",
            label=f"within {_STEP_ERROR:.0%}" if factor > 1 else None,
        )  # fmt: skip
    for kind, colour, marker in zip(("decode", "prefill"), _COLOURS, _MARKERS, strict=False):
        points = [p for p in series.points if p.name.startswith(kind)]
        if points:
            axes.plot(
                [p.x for p in points], [p.measured for p in points], marker, color=colour,
                label=f"{kind} steps",
            )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title("steps against the time model")
    axes.set_xlabel("predicted us")
    axes.set_ylabel("measured us")
