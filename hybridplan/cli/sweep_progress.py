"""Cells done and time left, on stderr and on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridplan.sim.sweep.sweep import SweepProgress


@contextmanager
def stepping(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A watcher told (done, total), or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bar("") as (bar, task):
        bar.update(task, description=title)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def counting() -> Iterator[Callable[[SweepProgress], None] | None]:
    """A watcher of a sweep, or None where stderr is no terminal.

    Stored cells are not counted in the bar, so that the time left is that of the rest.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with _bar("errors {task.fields[errors]}") as (bar, task):

        def watch(progress: SweepProgress) -> None:
            bar.update(
                task,
                description=f"cells, {progress.stored:,} stored" if progress.stored else "cells",
                completed=progress.done - progress.stored,
                total=progress.total - progress.stored,
                errors=progress.errors,
            )

        yield watch


@contextmanager
def _bar(more: str) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *([TextColumn(more)] if more else []),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar, bar.add_task("", total=None, errors=0)
