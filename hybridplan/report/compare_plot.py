"""A comparison as a picture: usable hits and every cause of loss, one bar a policy."""

from __future__ import annotations

from pathlib import Path

from hybridplan.report.canvas import drawing
from hybridplan.report.compare import CAUSES, rate
from hybridplan.report.units import size
from hybridplan.sim.compare import CompareResult
from hybridplan.sim.outcome import LossCause


def draw(result: CompareResult, path: Path) -> None:
    """Stacked bars in % of the prompt tokens. Errors are those of ``canvas.drawing``."""
    rows = [found.row for found in reversed(result.rows) if found.row is not None]
    names = [row.policy for row in rows]
    with drawing(path, size_inches=(9, 1.5 + 0.45 * max(len(rows), 4))) as axes:
        left = [100 * row.hit_rate for row in rows]
        axes.barh(names, left, color="C0", label="usable hit")
        for number, cause in enumerate(LossCause, 1):
            widths = [100 * rate(row.lost.get(cause.value, 0), row) for row in rows]
            if not any(widths):
                continue
            colour = f"C{number % 10}"
            axes.barh(names, widths, left=left, color=colour, alpha=0.45, label=CAUSES[cause])
            left = [a + b for a, b in zip(left, widths, strict=True)]
        if result.best is not None and result.best.prompt_tokens:
            best = 100 * result.best.hit_tokens / result.best.prompt_tokens
            axes.axvline(best, color="#444444", linestyle="--", label="best possible")
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of prompt tokens")
        memory = "unlimited" if result.memory_bytes is None else size(result.memory_bytes)
        axes.set_title(f"{result.model}, {memory}, {result.arrival}")
        figure = axes.get_figure()
        assert figure is not None
        figure.legend(fontsize="small", loc="outside lower center", ncols=4)
