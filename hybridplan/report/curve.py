"""A miss-ratio curve on a terminal."""

from __future__ import annotations

from pathlib import PurePath

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hybridplan.report.units import size
from hybridplan.sim.sweep.curve import Curve, CurvePoint


def screen(curve: Curve) -> list[RenderableType]:
    """One line a memory, then how sure the curve is."""
    head = Text()
    head.append(curve.model, style="bold")
    head.append(f"  {curve.policy}; {PurePath(curve.trace.path).name}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("memory", justify="right")
    table.add_column("pool")
    for title in ("hit rate", "95 % interval", "full run"):
        table.add_column(title, justify="right")
    table.add_column("how")
    for point in curve.points:
        table.add_row(size(point.memory_bytes), point.pool, *_cells(point), point.how)
    parts: list[RenderableType] = [head, "", table, ""]
    parts.append(Text(f"unlimited: {curve.ceiling:.1%}. {curve.why}"))
    if curve.worst_error is not None:
        parts.append(
            Text(
                f"checked against {curve.checked} full runs: off by at most"
                f" {100 * curve.worst_error:.2f} points"
            )
        )
    if curve.outside:
        parts.append(
            Text(
                f"outside their interval: {curve.outside} of those. It covers how samples differ,"
                " not what shrinking a pool does to all of them; more memory or a longer trace"
                " shrinks less"
            )
        )
    refused = dict.fromkeys(point.refused for point in curve.points if point.refused)
    parts += [Text(f"refused: {reason}") for reason in list(refused)[:1]]
    return parts


def _cells(point: CurvePoint) -> list[str]:
    if point.hit_rate is None or point.low is None or point.high is None:
        return ["-", "", ""]
    interval = f"{point.low:.1%} to {point.high:.1%}" if point.how == "sampled" else ""
    full = "" if point.full_hit_rate is None else f"{point.full_hit_rate:.1%}"
    return [f"{point.hit_rate:.1%}", interval, full]
