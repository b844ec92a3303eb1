"""A replay as a picture: hit rate over time, pool use by group, loss by cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hybridplan.report.canvas import drawing
from hybridplan.report.simulate import KINDS
from hybridplan.sim.result import SimulateResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(result: SimulateResult, path: Path) -> None:
    """Three panels. Errors are those of ``canvas.drawing``."""
    with drawing(path, size_inches=(8, 10)) as axes:
        figure = axes.get_figure()
        assert figure is not None
        axes.remove()
        hits, pool, causes = figure.subplots(3)
        partial = ", partial" if result.partial else ""
        figure.suptitle(f"{result.setup.model}, {result.setup.rules}, {result.arrival}{partial}")
        _hits(hits, result)
        _pool(pool, result)
        _causes(causes, result)


def _hits(axes: Axes, result: SimulateResult) -> None:
    points = result.timeline
    ends = [point.finished for point in points]
    rates = [
        100 * point.hit_tokens / point.prompt_tokens if point.prompt_tokens else 0.0
        for point in points
    ]
    axes.step([0, *ends], [rates[0] if rates else 0.0, *rates], where="pre", label="usable hit")
    axes.axhline(100 * result.hits.usable_rate, color="C0", linestyle=":", label="over the trace")
    if result.hits.ceiling_rate is not None:
        ceiling = 100 * result.hits.ceiling_rate
        axes.axhline(ceiling, color="#444444", linestyle="--", label="ceiling over the trace")
    axes.set_ylim(0, 100)
    axes.set_xlabel("requests finished")
    axes.set_ylabel("hit rate, % of prompt tokens")
    axes.legend(fontsize="small")


def _pool(axes: Axes, result: SimulateResult) -> None:
    points = result.timeline
    ends = [point.finished for point in points]
    lines: dict[str, list[float]] = {}
    for index, use in enumerate(result.use):
        values = [point.mean_blocks[index] for point in points]
        known = lines.get(use.kind)
        lines[use.kind] = (
            values if known is None else [a + b for a, b in zip(known, values, strict=True)]
        )
    for kind, values in lines.items():
        axes.plot(ends, values, label=f"{KINDS.get(kind, kind)}, held by requests")
    cached = [point.cached_blocks for point in points]
    axes.plot(ends, cached, color="#888888", linestyle="--", label="free, cached")
    if result.num_blocks is not None:
        axes.axhline(result.num_blocks, color="#444444", linestyle=":", label="pool")
    axes.set_yscale("symlog")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("requests finished")
    axes.set_ylabel("blocks")
    axes.legend(fontsize="small")


def _causes(axes: Axes, result: SimulateResult) -> None:
    losses = list(reversed(result.losses))
    names = [loss.cause.value.replace("_", " ") for loss in losses]
    axes.barh(names, [loss.tokens / 1e6 for loss in losses])
    axes.set_xlabel("lost tokens, millions")
