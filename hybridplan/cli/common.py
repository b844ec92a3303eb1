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


def print_json(document: Any) -> None:
    """Write one JSON document to stdout; keys keep the order of the document."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_report(*renderables: RenderableType) -> None:
    """Write rich renderables to stdout; without a terminal the width is fixed and colour is off."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)
    for renderable in renderables:
        console.print(renderable)


def warn(sentence: str) -> None:
    """One warning on stderr."""
    sys.stderr.write(f"hybridplan: warning: {sentence}\n")
