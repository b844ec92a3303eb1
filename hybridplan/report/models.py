"""The catalogue on a terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hybridplan.ledger.catalogue import Catalogue, CatalogueLine
from hybridplan.ledger.pattern import LEGEND
from hybridplan.report.units import size

PATTERN_WIDTH = 15


def screen(catalogue: Catalogue) -> list[RenderableType]:
    """One row per model; configs without a ledger stand below with the reason."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("model", overflow="fold")
    table.add_column("layers", overflow="fold")
    for title in ("KV B/token", "state", "params"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("config", max_width=16, overflow="fold")
    for line in catalogue.models:
        if line.error is None:
            table.add_row(*_cells(line))
    legend = ", ".join(f"{sign} {meaning}" for sign, meaning in LEGEND.items())
    parts: list[RenderableType] = [table, "", Text(legend, style="dim")]
    parts.append(
        Text(
            f"Bytes as {catalogue.engine} stores them, whole model; w: only until the window is "
            "full. --json has the whole pattern, the source and the notes.",
            style="dim",
        )
    )
    parts += [
        Text(f"{line.name} has no ledger: {line.error}")
        for line in catalogue.models
        if line.error is not None
    ]
    return parts


def _cells(line: CatalogueLine) -> tuple[str, ...]:
    return (
        line.name,
        _shortened(line.pattern or ""),
        _kv(line),
        size(line.state_bytes) if line.state_bytes else "",
        _params(line.params),
        line.confidence.replace("verbatim (package copy, trimmed)", "verbatim (trimmed)"),
    )


def _kv(line: CatalogueLine) -> str:
    parts = [f"{line.bytes_per_token or 0:,.0f}"] if line.bytes_per_token else []
    if line.windowed_bytes_per_token:
        parts.append(f"{line.windowed_bytes_per_token:,.0f}w")
    return " + ".join(parts)


def _shortened(pattern: str) -> str:
    return pattern if len(pattern) <= PATTERN_WIDTH else pattern[: PATTERN_WIDTH - 1] + "…"


def _params(count: int | None) -> str:
    if count is None:
        return ""
    billions = count / 1e9
    return f"{billions:,.0f}B" if billions >= 100 else f"{billions:.1f}B"
