"""A trace's summary on a terminal: how it was read first, then what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hybridplan.report.units import count
from hybridplan.sim.traces.facts import Fact, TraceInfo
from hybridplan.sim.traces.statistics import Distribution, Reuse, TraceStatistics
from hybridplan.sim.traces.summary import TraceSummary

_HOW = {
    "format": "by the format",
    "read": "read from the file",
    "inferred": "inferred",
    "given": "as you said",
}


def screen(summary: TraceSummary) -> list[RenderableType]:
    """The default answer."""
    info, statistics = summary.info, summary.statistics
    parts: list[RenderableType] = [_head(info), _reading(info), "", _lengths(statistics), ""]
    parts.append(_answers(summary))
    parts += _warnings(info)
    return parts


def _head(info: TraceInfo) -> Text:
    text = Text()
    text.append(PurePath(info.path).name, style="bold")
    chosen = "as you said" if info.chosen == "given" else "by its fields"
    dialect = "" if info.dialect == info.format else f" ({info.dialect})"
    text.append(f"  {info.format}{dialect}, {chosen}")
    return text


def _fact(fact: Fact, value: str) -> str:
    why = f": {fact.why}" if fact.why else ""
    return f"{value}, {_HOW[fact.how]}{why}"


class _Grid:
    """Titled lines; values are plain text, whatever brackets a trace's names hold."""

    def __init__(self) -> None:
        self.table = Table.grid(padding=(0, 2))
        self.table.add_column(style="bold", no_wrap=True)
        self.table.add_column()

    def add_row(self, title: str, value: str) -> None:
        self.table.add_row(title, Text(value))


def _reading(info: TraceInfo) -> Table:
    grid = _Grid()
    if info.unit_tokens is None:
        grid.add_row("Prefix ids", "none; nothing tells which prompts start alike")
    else:
        unit = "1 token" if info.unit_tokens == 1 else f"{info.unit_tokens:,} tokens"
        grid.add_row("Prefix ids", _fact(info.unit, f"{unit} each"))
        partial = "has an id" if info.tail.value == "ceil" else "has no id"
        if info.unit_tokens > 1:
            grid.add_row("", _fact(info.tail, f"a prompt's partial last unit {partial}"))
            meaning = "all up to its end" if info.ids.value == "prefix" else "its own unit only"
            grid.add_row("", _fact(info.ids, f"an id names {meaning}"))
        grid.add_row("", _fact(info.id_scope, f"valid in one {info.id_scope.value}"))
    if info.has_clock:
        grid.add_row("Arrivals", _fact(info.time_unit, f"in {info.time_unit.value}"))
        if info.clock_scope.value == "session":
            clock = "every session has its own clock, so there is no common rate"
            grid.add_row("", _fact(info.clock_scope, clock))
    else:
        grid.add_row("Arrivals", "none; concurrency has to be assumed")
    if info.sessions.value != "none":
        grid.add_row("Sessions", _fact(info.sessions, f"from {info.sessions.value}"))
    if info.inputs.why or info.inputs.how == "given":
        grid.add_row("Inputs", _fact(info.inputs, info.inputs.value))
    if info.outputs.why or info.outputs.how == "given":
        grid.add_row("Outputs", _fact(info.outputs, info.outputs.value))
    return grid.table


def _lengths(statistics: TraceStatistics) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column(f"{statistics.requests:,} requests", no_wrap=True)
    for title in ("total", "mean", "p50", "p90", "p99", "max"):
        table.add_column(title, justify="right")
    rows: list[tuple[str, Distribution | None]] = [
        ("input tokens", statistics.input),
        ("output tokens", statistics.output),
        ("turns of a session", statistics.turns),
    ]
    for name, found in rows:
        if found is not None:
            cells = (found.p50, found.p90, found.p99, found.maximum)
            mean = f"{found.mean:,.1f}"
            table.add_row(name, f"{found.total:,}", mean, *(f"{cell:,}" for cell in cells))
    return table


def _answers(summary: TraceSummary) -> Table:
    statistics = summary.statistics
    grid = _Grid()
    if statistics.duration_s is not None:
        rate = f"{statistics.duration_s:,.1f} s"
        if statistics.requests_per_s is not None and statistics.input_tokens_per_s is not None:
            rate += (
                f": {statistics.requests_per_s:,.2f} requests/s, "
                f"{statistics.input_tokens_per_s:,.0f} input tokens/s"
            )
        grid.add_row("Span", rate)
    if statistics.sessions is not None:
        grid.add_row("Sessions", f"{statistics.sessions:,}")
    if statistics.linked_outputs:
        grid.add_row("Linked outputs", f"{statistics.linked_outputs:,}, an assumption")
    if statistics.reuse is not None:
        for title, line in _reuse(statistics.reuse, summary.unit_tokens):
            grid.add_row(title, line)
    return grid.table


def _reuse(reuse: Reuse, unit_tokens: int | None) -> Iterator[tuple[str, str]]:
    yield (
        "Ideal reuse",
        f"{reuse.reusable_fraction:.1%} of the input tokens ({count(reuse.reusable_tokens)}), "
        "unlimited KV cache, at the trace's resolution",
    )
    last = "token" if unit_tokens == 1 else "unit"
    yield (
        "",
        f"{reuse.capped_fraction:.1%} ({count(reuse.capped_tokens)}) when a prompt's last {last} "
        "is always computed; a hybrid model can reuse less",
    )
    yield (
        "Footprint",
        f"{reuse.unique_units:,} distinct units, {reuse.unique_tokens:,} tokens",
    )


def _warnings(info: TraceInfo) -> Iterator[RenderableType]:
    for notice in info.warnings:
        where = "" if notice.first_line is None else f", first at line {notice.first_line:,}"
        times = "once" if notice.count == 1 else f"{notice.count:,} times"
        yield Text(f"warning: {notice.sentence} ({times}{where})", style="yellow")
