"""Hit rate against memory as a picture: the cells of a sweep, or one whole curve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hybridplan.errors import InputError
from hybridplan.report.canvas import drawing
from hybridplan.report.sweep import shown
from hybridplan.sim.sweep.curve import Curve
from hybridplan.sim.sweep.sweep import SweepResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GIB = 1 << 30


def draw(result: SweepResult, path: Path) -> None:
    """One line for each setting of everything but the memory.

    Raises InputError where no cell has a memory, and as ``canvas.drawing``.
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    for cell in result.cells:
        if cell.row is None or cell.row.memory_bytes is None:
            continue
        named = [
            f"{shown(name, cell.settings.get(name))}"
            for name in result.varied
            if name not in ("kv_memory", "gpu") and name in cell.settings
        ]
        point = (cell.row.memory_bytes / _GIB, 100 * cell.row.hit_rate)
        lines.setdefault(", ".join(named) or cell.row.policy, []).append(point)
    if not lines:
        raise InputError(f"--plot {path}: no cell has a memory to draw the hit rate against")
    with drawing(path) as axes:
        for name, points in sorted(lines.items()):
            points.sort()
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
        _frame(axes, "hit rate over memory")


def draw_curve(curve: Curve, path: Path) -> None:
    """The curve with its intervals and checks. Errors are those of ``canvas.drawing``."""
    points = [point for point in curve.points if point.hit_rate is not None]
    with drawing(path) as axes:
        memory = [point.memory_bytes / _GIB for point in points]
        rates = [100 * (point.hit_rate or 0) for point in points]
        below = [100 * ((p.hit_rate or 0) - (p.low or 0)) for p in points]
        above = [100 * ((p.high or 0) - (p.hit_rate or 0)) for p in points]
        label = "estimate, 95 %" if any(p.how == "sampled" for p in points) else "hit rate"
        axes.errorbar(memory, rates, [below, above], marker="o", capsize=3, label=label)
        checked = [(p.memory_bytes / _GIB, p.full_hit_rate) for p in points if p.full_hit_rate]
        if checked:
            full = [100 * rate for _, rate in checked]
            axes.plot([x for x, _ in checked], full, "x", color="C3", ms=9, label="full run")
        axes.axhline(100 * curve.ceiling, color="#444444", linestyle=":", label="unlimited")
        _frame(axes, f"{curve.model}, {curve.policy}")


def _frame(axes: Axes, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0, 100)
    axes.set_xlabel("cache memory of a rank, GiB")
    axes.set_ylabel("usable hit, % of prompt tokens")
    axes.set_title(title)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")
