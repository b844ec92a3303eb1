"""Run the cells of a grid that a store does not hold yet; any kill can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    as_completed,
)
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from time import perf_counter, process_time
from typing import Any, TypeAlias

from hybridplan import __version__
from hybridplan.errors import HybridplanError, InputError
from hybridplan.sim.cell import Row, run_cell
from hybridplan.sim.settings import Value
from hybridplan.sim.sweep.grid import Cell, Grid, file_sha256, model_of
from hybridplan.sim.sweep.store import Record, Store

SCHEMA_VERSION = 1
Connect: TypeAlias = Callable[[], AbstractContextManager[Executor]]
WORKER_DEATHS = ("KilledWorker", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError")
"""What Dask and Ray raise for a cell whose workers died more often than they try again."""
DEATHS_TO_ISOLATE = 2
"""Times a pool may die without a result before its cells run one by one, to find the one."""


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """``done`` of ``total`` cells; ``stored`` of them were there before, ``errors`` have none."""

    done: int
    total: int
    stored: int
    errors: int


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell's row, or why it has none."""

    key: str
    settings: Mapping[str, Value]
    trace_sha256: str
    row: Row | None
    error: str | None


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Every finished cell, by key. ``varied`` are the settings that differ between cells;
    ``missing`` counts cells that Ctrl-C left undone."""

    schema_version: int
    version: str
    cells: tuple[CellResult, ...]
    varied: tuple[str, ...]
    notes: tuple[str, ...]
    missing: int


def sweep(
    grid: Grid,
    store: Store,
    connect: Connect,
    *,
    retry_failed: bool = False,
    watch: Callable[[SweepProgress], None] | None = None,
) -> SweepResult:
    """Answer every cell, from the store where it is there.

    A cell whose engine refuses or whose worker dies records that and the others go on. Ctrl-C
    returns what is done.
    """
    run = _Run(grid.cells, store, retry_failed, watch)
    with suppress(KeyboardInterrupt):
        run.all(connect)
    return result_of(grid, store)


def result_of(grid: Grid, store: Store) -> SweepResult:
    """What a store knows of a grid; the same whatever order its records came in."""
    found = []
    for cell in sorted(grid.cells, key=lambda cell: cell.key):
        record = store.records.get(cell.key)
        if record is None:
            continue
        row = Row.of_document(record.row) if record.row is not None else None
        found.append(CellResult(cell.key, cell.settings, cell.trace_sha256, row, record.error))
    return SweepResult(
        schema_version=SCHEMA_VERSION,
        version=__version__,
        cells=tuple(found),
        varied=grid.varied,
        notes=grid.notes,
        missing=len(grid.cells) - len(found),
    )


def work(
    settings: Mapping[str, Value], trace_sha: str, bounds: bool, losses: bool
) -> dict[str, Any]:
    """One cell, on whatever machine: a row or an error, never an exception."""
    cpu, wall = process_time(), perf_counter()
    row: Any = None
    error, failed = None, False
    try:
        if file_sha256(str(settings["trace"])) != trace_sha:
            raise InputError(f"the worker's {settings['trace']} is another file")
        spec = model_of(str(settings["model"]))
        row = asdict(run_cell(settings, spec=spec, bounds=bounds, losses=losses))
    except HybridplanError as refused:
        error = refused.sentence
    except Exception as broken:
        error, failed = f"{type(broken).__name__}: {' '.join(str(broken).split())}", True
    return {
        "version": __version__,
        "row": row,
        "error": error,
        "failed": failed,
        "cpu_s": round(process_time() - cpu, 6),
        "wall_s": round(perf_counter() - wall, 6),
    }


class _Run:
    def __init__(
        self,
        cells: Sequence[Cell],
        store: Store,
        retry_failed: bool,
        watch: Callable[[SweepProgress], None] | None,
    ) -> None:
        self._store = store
        self._watch = watch
        self._total = len(cells)
        self._pending: dict[str, Cell] = {}
        for cell in cells:
            known = store.records.get(cell.key)
            if known is None or (retry_failed and known.failed):
                self._pending[cell.key] = cell
        self._stored = self._total - len(self._pending)
        done = [store.records[cell.key] for cell in cells if cell.key not in self._pending]
        self._errors = sum(record.error is not None for record in done)

    def all(self, connect: Connect) -> None:
        """Run what is pending; a pool that dies is made again."""
        deaths = 0
        self._tell()
        while self._pending:
            before = len(self._pending)
            isolated = deaths >= DEATHS_TO_ISOLATE
            cells = list(self._pending.values())
            if self._batch(connect, cells[:1] if isolated else cells):
                deaths = 0 if not isolated else deaths
                continue
            if isolated:
                self._fail(cells[0], "the worker died while it ran this cell")
                deaths = 0
            else:
                deaths = deaths + 1 if len(self._pending) == before else 0

    def _batch(self, connect: Connect, cells: Sequence[Cell]) -> bool:
        """False where the pool died under it."""
        alive = True
        with connect() as executor:
            futures: dict[Future[Any], Cell] = {}
            try:
                for cell in cells:
                    asked = (dict(cell.settings), cell.trace_sha256, cell.bounds, cell.losses)
                    futures[executor.submit(work, *asked)] = cell
                for future in as_completed(futures):
                    alive = self._take(futures[future], future) and alive
            except BrokenExecutor:
                return False
        return alive

    def _take(self, cell: Cell, future: Future[Any]) -> bool:
        try:
            answer = future.result()
        except BrokenExecutor:
            return False
        except CancelledError:
            raise InputError(
                "the cluster ended before all cells were done; start it and run the same command,"
                " which goes on from here"
            ) from None
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if type(error).__name__ not in WORKER_DEATHS:
                raise InputError(f"the cluster could not run a cell ({said})") from error
            self._fail(cell, said)
            return True
        if answer["version"] != __version__:
            raise InputError(
                f"a worker runs hybridplan {answer['version']} and this is {__version__}; install"
                " the same on both"
            )
        self._put(cell, answer)
        return True

    def _fail(self, cell: Cell, why: str) -> None:
        self._put(
            cell,
            {"version": __version__, "row": None, "error": why, "failed": True,
             "cpu_s": 0.0, "wall_s": 0.0},
        )  # fmt: skip

    def _put(self, cell: Cell, answer: dict[str, Any]) -> None:
        self._store.append(Record(cell.key, cell.settings, cell.trace_sha256, **answer))
        self._pending.pop(cell.key, None)
        self._errors += answer["error"] is not None
        self._tell()

    def _tell(self) -> None:
        if self._watch is not None:
            done = self._total - len(self._pending)
            self._watch(SweepProgress(done, self._total, self._stored, self._errors))
