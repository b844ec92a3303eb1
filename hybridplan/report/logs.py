"""A log explained, line by line."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.ledger.logs.result import LineVerdict, LogReport

_QUOTE_CHARACTERS = 100


def screen(report: LogReport) -> list[RenderableType]:
    """What the log is, every line with its meaning, and what would move it."""
    head = Text()
    head.append(f"{report.engine} {report.version}".strip(), style="bold")
    head.append(f", model {report.model or 'not known'}")
    parts: list[RenderableType] = [head]
    for title, origin in (("Stated", "stated"), ("Inferred", "inferred"), ("Default", "default")):
        found = [f"{s.name} {s.value}" for s in report.settings if s.origin == origin]
        if found:
            parts.append(Text(f"{title}: {', '.join(found)}"))
    for line in report.lines:
        parts += ["", Text(f"line {line.line_number}: {_quote(line.text)}", style="bold")]
        parts.append(Padding(_line(line), (0, 0, 0, 2)))
    if report.notes:
        parts += ["", Text("Mind", style="bold")]
        parts += [Padding(Text(note), (0, 0, 0, 2)) for note in report.notes]
    return parts


def _quote(text: str) -> str:
    return text if len(text) <= _QUOTE_CHARACTERS else f"{text[:_QUOTE_CHARACTERS]}..."


def _line(line: LineVerdict) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row("means", line.meaning)
    if line.ours is not None:
        verdict = {True: "agrees: ", False: "DISAGREES: ", None: ""}[line.agrees]
        grid.add_row("ours", f"{verdict}{line.ours}")
    if line.formula:
        grid.add_row("rule", line.formula)
    if line.moved_by:
        grid.add_row("moved by", line.moved_by)
    return grid
