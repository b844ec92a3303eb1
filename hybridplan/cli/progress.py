"""A progress bar on stderr, on a terminal only: requests, requests/s and time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

    from hybridplan.sim.advice import Watch
    from hybridplan.sim.replay import Progress

_REDRAW_S = 0.1


@contextmanager
def watching(total: Callable[[], int]) -> Iterator[Watch | None]:
    """A watcher that draws the running stage, or None where stderr is no terminal.

    ``total`` counts the requests of the trace; it is asked on a terminal only.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} requests/s"),
        TextColumn("hit rate {task.fields[hits]:.1%}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        known: dict[str, tuple[TaskID, float]] = {}
        drawn = 0.0
        expected = total()

        def watch(stage: str, progress: Progress, requests: int | None) -> None:
            nonlocal drawn
            now = monotonic()
            if now - drawn < _REDRAW_S:
                return
            drawn = now
            if stage not in known:
                for task, _ in known.values():
                    bar.remove_task(task)
                known.clear()
                length = expected if requests is None else requests
                name = stage.partition(":")[0]
                known[stage] = (bar.add_task(name, total=length, rate=0.0, hits=0.0), now)
            task, start = known[stage]
            rate = progress.finished / (now - start) if now > start else 0.0
            hits = progress.hit_tokens / progress.prompt_tokens if progress.prompt_tokens else 0.0
            bar.update(task, completed=progress.finished, rate=rate, hits=hits)
            bar.refresh()

        yield watch
