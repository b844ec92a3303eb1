"""What every command shares: the --json flag, and how an answer reaches stdout."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

PIPE_WIDTH = 110
INTERRUPTED = 130


class Said(int):
    """An exit code whose sentence is already on stderr."""


def print_json(document: Any) -> None:
    """Write one JSON document to stdout; keys keep the order of the document.

    Letters that stdout cannot encode are escaped, as JSON allows.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


def print_report(*renderables: RenderableType) -> None:
    """Write rich renderables to stdout.

    Without a terminal the width is fixed, colour is off and no line ends in blanks. Tables are
    drawn in ASCII where stdout does not encode UTF.
    """
    from rich.console import Console

    if sys.stdout.isatty():
        console = Console(file=sys.stdout, highlight=False)
        for renderable in renderables:
            console.print(renderable)
        return
    console = Console(file=sys.stdout, width=PIPE_WIDTH, highlight=False)
    with console.capture() as captured:
        for renderable in renderables:
            console.print(renderable)
    sys.stdout.write("\n".join(line.rstrip() for line in captured.get().split("\n")))


def warn(sentence: str) -> None:
    """One warning on stderr."""
    sys.stderr.write(f"hybridplan: warning: {sentence}\n")


def interrupted(sentence: str) -> Said:
    """The exit code of a run that was stopped but showed what it had, after saying so."""
    warn(sentence)
    return Said(INTERRUPTED)
