"""A sweep on a terminal: one line a cell, with the settings that differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.report.compare import hit_rate, rate
from hybridplan.report.simulate_time import seconds
from hybridplan.report.units import size
from hybridplan.sim.cell import Row
from hybridplan.sim.settings import Value
from hybridplan.sim.sweep.sweep import CellResult, SweepResult

_SHORT = {
    "prefix_cache_retention_interval": "retention",
    "prefix_match_unit": "unit",
    "mamba_full_memory_ratio": "ratio",
    "kv_memory": "memory",
    "max_num_batched_tokens": "batched tokens",
}
_MOST_ROWS = 200


def screen(result: SweepResult) -> list[RenderableType]:
    """The cells by hit rate, best first, then what was refused."""
    answered = [cell for cell in result.cells if cell.row is not None]
    refused = [cell for cell in result.cells if cell.row is None]
    parts: list[RenderableType] = [_head(result, len(answered), len(refused))]
    if answered:
        parts += ["", _table(result, answered)]
    if len(answered) > _MOST_ROWS:
        more = len(answered) - _MOST_ROWS
        parts.append(Text(f"and {more:,} more; --json or --export gives all", style="dim"))
    if refused:
        parts += ["", Text("Without an answer", style="bold"), *_refused(result, refused)]
    if result.notes:
        parts += ["", *(Padding(Text(note), (0, 2)) for note in result.notes)]
    return parts


def _head(result: SweepResult, answered: int, refused: int) -> Text:
    text = Text()
    text.append(f"{len(result.cells):,} cells", style="bold")
    text.append(f"  {answered:,} answered, {refused:,} without an answer")
    if result.missing:
        text.append(f", {result.missing:,} not run", style="bold yellow")
    shared = next(iter(result.cells), None)
    if shared is not None:
        same = {n: v for n, v in shared.settings.items() if n not in result.varied}
        text.append("\nsame in all: " + ", ".join(f"{_SHORT.get(n, n)} {shown(n, v)}"
                                                  for n, v in same.items()))  # fmt: skip
    return text


def _table(result: SweepResult, cells: list[CellResult]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for name in result.varied:
        table.add_column(_SHORT.get(name, name.replace("_", " ")))
    timed = any(cell.row is not None and cell.row.busy_s is not None for cell in cells)
    titles = ["usable hit", "KV-only", "states", "hit", "evictions", "preempted"]
    for title in [*titles, *(("TTFT p50", "p99", "TPOT p50", "p99") if timed else ())]:
        table.add_column(title, justify="right")
    for cell in sorted(cells, key=lambda cell: _rank(result, cell))[:_MOST_ROWS]:
        row = cell.row
        assert row is not None
        table.add_row(
            *(shown(name, cell.settings.get(name)) for name in result.varied),
            hit_rate(row),
            f"{rate(row.kv_hit_tokens, row):.1%}",
            f"{row.states_kept:,}" if row.has_states else "-",
            f"{row.states_hit:,}" if row.has_states else "-",
            f"{row.evictions:,}",
            f"{row.preemptions:,}",
            *(_times(row) if timed else ()),
        )
    return table


def _times(row: Row) -> list[str]:
    values = (row.ttft_p50_s, row.ttft_p99_s, row.tpot_p50_s, row.tpot_p99_s)
    return ["-" if value is None else seconds(value) for value in values]


def _rank(result: SweepResult, cell: CellResult) -> tuple[object, ...]:
    """Best first; equals by their settings, so that neighbours of a grid stay together."""
    values = [cell.settings.get(name) for name in result.varied]
    plain = [
        (1, float(value), "") if isinstance(value, (int, float)) else (2, 0.0, str(value or ""))
        for value in values
    ]
    return -(cell.row.hit_rate if cell.row else 0.0), plain, cell.key


def shown(name: str, value: Value) -> str:
    """A setting's value as people read it: sizes with units, paths without their folder."""
    if value is None:
        return "-"
    if name in ("kv_memory", "weights_memory") and isinstance(value, int):
        return size(value)
    if name == "trace":
        return PurePath(str(value)).name
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _refused(result: SweepResult, cells: list[CellResult]) -> list[RenderableType]:
    reasons: dict[str, list[Mapping[str, Value]]] = {}
    for cell in cells:
        reasons.setdefault(cell.error or "", []).append(cell.settings)
    lines = []
    for reason, settings in reasons.items():
        first = ", ".join(
            f"{_SHORT.get(name, name)} {shown(name, settings[0][name])}"
            for name in result.varied
            if name in settings[0]
        )
        more = f" and {len(settings) - 1:,} more" if len(settings) > 1 else ""
        lines.append(Padding(Text(f"{first or 'the cell'}{more}: {reason}"), (0, 2)))
    return list(lines)
