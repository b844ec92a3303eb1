"""``hybridplan help [TOPIC]``: the manual."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hybridplan.cli.common import JsonFlag, print_json, print_report

if TYPE_CHECKING:
    from rich.console import RenderableType

_TOPIC = typer.Argument(help="A topic or a command; without one the topics are listed.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("help", help="The manual: a page for each command, engine and term.")(_help)


def _help(topic: Annotated[str | None, _TOPIC] = None, json: JsonFlag = False) -> None:
    from hybridplan.topics import page, topics

    if topic is None:
        known = topics()
        if json:
            from hybridplan.report.document import document

            print_json(document(known))
        else:
            from hybridplan.report.topics import index

            print_report(*index(known))
        return
    found = page(topic)
    if json:
        from hybridplan.report.document import document

        print_json(document(found))
        return
    from hybridplan.report.topics import screen

    _read(screen(found, topics()))


def _read(parts: list[RenderableType]) -> None:
    """Through the reader's pager on a terminal, as man does; else to stdout."""
    if not sys.stdout.isatty():
        print_report(*parts)
        return
    from rich.console import Console

    os.environ.setdefault("LESS", "FRX")  # colours, and no pager for what fits the screen
    console = Console(highlight=False)
    with console.pager(styles=True):
        for part in parts:
            console.print(part)
