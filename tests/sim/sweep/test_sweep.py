"""The store, errors of cells, and pools that die."""

from __future__ import annotations

import csv
import errno
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hybridplan.errors import InputError, MissingExtraError
from hybridplan.sim.sweep import export
from hybridplan.sim.sweep.grid import Grid, expand
from hybridplan.sim.sweep.runner import RayExecutor, _silenced, connect
from hybridplan.sim.sweep.store import Record, opened
from hybridplan.sim.sweep.sweep import SweepProgress, SweepResult, sweep

TRACE = Path(__file__).parents[2] / "data" / "traces" / "vllm_request_log_qwen3-30b-a3b.jsonl"


@pytest.fixture
def grid() -> Grid:
    return expand(
        {
            "trace": str(TRACE),
            "model": "qwen3.5-0.8b",
            "engine": ["vllm@0.33", "vllm@0.32"],
            "kv_memory": ["8MiB", "6GiB", "8GiB"],
            "limit": 2,
        }
    )


@contextmanager
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_a_refused_cell_says_why_and_the_rest_go_on(grid: Grid, tmp_path: Path) -> None:
    seen: list[SweepProgress] = []
    with opened(tmp_path / "store.jsonl") as store:
        result = sweep(grid, store, threads, watch=seen.append)
    refused = [cell for cell in result.cells if cell.row is None]
    assert len(result.cells) == 6
    assert len(refused) == 2
    assert all("no length fits: find" in (cell.error or "") for cell in refused)
    assert [cell.key for cell in result.cells] == sorted(cell.key for cell in grid.cells)
    assert seen[-1] == SweepProgress(done=6, total=6, stored=0, errors=2)


def test_torn_last_line_is_cut_and_run_again(grid: Grid, tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    with opened(path) as store:
        whole = sweep(grid, store, threads)
    rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(rest[:3]) + rest[3][:40])
    seen: list[SweepProgress] = []
    with opened(path) as store:
        assert store.torn
        assert sweep(grid, store, threads, watch=seen.append) == whole
    assert seen[0].stored == 3
    assert path.read_bytes().count(b"\n") == 6


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(InputError, match="line 1 is no result"), opened(path):
        pass


def test_a_full_disk_is_told_and_resumed(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced, sync = tmp_path / "s.jsonl", [], os.fsync

    def full(file: int) -> None:
        if synced:
            raise OSError(errno.ENOSPC, "No space left on device")
        synced.append(sync(file))

    monkeypatch.setattr(os, "fsync", full)
    said = r"s\.jsonl: cannot be written \(No space left on device\); it keeps 1 results"
    with opened(path) as store, pytest.raises(InputError, match=said):
        sweep(grid, store, threads)
    monkeypatch.undo()
    with opened(path) as store, opened(tmp_path / "other.jsonl") as other:
        assert sweep(grid, store, threads) == sweep(grid, other, threads)


def test_a_store_must_be_a_file_that_ends() -> None:
    with pytest.raises(InputError, match="no plain file"), opened(Path("/dev/full")):
        pass


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    with opened(path), pytest.raises(InputError, match="another sweep"), opened(path):
        pass


def test_failures_are_tried_again_when_asked(grid: Grid, tmp_path: Path) -> None:
    cell = grid.cells[-1]
    failed = Record(
        cell.key, cell.settings, cell.trace_sha256, "0", None, "MemoryError: ", True, 0.0, 0.0
    )
    with opened(tmp_path / "store.jsonl") as store:
        store.append(failed)
        kept = sweep(grid, store, threads)
        again = sweep(grid, store, threads, retry_failed=True)
    assert {c.key for c in kept.cells if c.row is None} - {
        c.key for c in again.cells if c.row is None
    } == {cell.key}


class Dying(Executor):
    """Runs cells in place; breaks for good at one of them, as a killed worker breaks a pool."""

    def __init__(self, deadly: str) -> None:
        self._deadly = deadly
        self._broken = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._broken |= args[0]["engine"] == self._deadly and args[0]["kv_memory"] == 6 << 30
        if self._broken:
            future.set_exception(BrokenProcessPool("died"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_the_cell_that_kills_its_worker_is_found_and_recorded(grid: Grid, tmp_path: Path) -> None:
    @contextmanager
    def dying() -> Iterator[Executor]:
        yield Dying("vllm@0.33")

    with opened(tmp_path / "store.jsonl") as store:
        result = sweep(grid, store, dying)
    assert result.missing == 0
    died = [cell for cell in result.cells if "died" in (cell.error or "")]
    assert [(cell.settings["engine"], cell.settings["kv_memory"]) for cell in died] == [
        ("vllm@0.33", 6 << 30)
    ]


def test_another_file_under_the_traces_name_is_refused(grid: Grid, tmp_path: Path) -> None:
    copy = tmp_path / "trace.jsonl"
    copy.write_bytes(TRACE.read_bytes())
    moved = expand({"trace": str(copy), "model": "qwen3.5-0.8b", "limit": 2})
    copy.write_bytes(TRACE.read_bytes() + b"\n")
    with opened(tmp_path / "store.jsonl") as store:
        result = sweep(moved, store, threads)
    assert "is another file" in (result.cells[0].error or "")


@pytest.fixture
def result(grid: Grid, tmp_path: Path) -> SweepResult:
    with opened(tmp_path / "store.jsonl") as store:
        return sweep(grid, store, threads)


@pytest.mark.parametrize("suffix", export.FORMATS)
def test_exports(result: SweepResult, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cells{suffix}"
    if suffix == ".parquet":
        read = pytest.importorskip("pyarrow.parquet").read_table
        export.write(result, path)
        assert read(path).num_rows == 6
        return
    export.write(result, path)
    if suffix == ".csv":
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert [row["key"] for row in rows] == [cell.key for cell in result.cells]
    before = path.read_bytes()
    export.write(result, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "scheduler, jobs, words",
    [
        ("http://x", 1, "neither tcp"),
        (None, 0, "--jobs is 0"),
    ],
)
def test_where_no_sweep_can_run(scheduler: str | None, jobs: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        connect(scheduler, jobs)


@pytest.mark.parametrize(
    "scheduler, module, extra",
    [("tcp://127.0.0.1:1", "distributed", "dask"), ("ray://127.0.0.1:1", "ray", "ray")],
)
def test_a_client_that_is_not_installed_is_named(
    scheduler: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"hybridplan\[{extra}\]"), connect(scheduler, 1):
        pass


def test_ray_tasks_are_futures() -> None:
    class Reference:
        def __init__(self, value: int) -> None:
            self.value = value

        def future(self) -> Future[int]:
            future: Future[int] = Future()
            future.set_result(self.value)
            return future

    class Task:
        def __init__(self, fn: Any) -> None:
            self.remote = lambda *args, **kwargs: Reference(fn(*args, **kwargs))

    made: list[Any] = []
    pool = RayExecutor(lambda fn: made.append(fn) or Task(fn))
    assert [pool.submit(pow, 2, n).result() for n in range(3)] == [1, 2, 4]
    assert made == [pow]


def test_a_cluster_that_cannot_run_cells_ends_the_sweep(grid: Grid, tmp_path: Path) -> None:
    class Unable(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(RuntimeError("Error during deserialization"))
            return future

    @contextmanager
    def unable() -> Iterator[Executor]:
        yield Unable()

    with opened(tmp_path / "s.jsonl") as store, pytest.raises(InputError, match="deserializ"):
        sweep(grid, store, unable)


def test_a_clients_log_is_silent_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("gone", "gone.client"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with _silenced("gone"):
        logging.getLogger("gone.client").error("a traceback")
        logging.getLogger("other").error("seen")
    logging.getLogger("gone.client").error("back")
    assert [record.message for record in caplog.records] == ["seen", "back"]


def test_local_processes_do_not_outlive_a_call() -> None:
    with connect(None, 1) as pool:
        pid = pool.submit(os.getpid).result()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


_ENDLESS_S = 10**6


def test_ctrl_c_stops_cells_that_run() -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with connect(None, 1) as pool:
            pids.append(pool.submit(os.getpid).result())
            pool.submit(time.sleep, _ENDLESS_S)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_whoever_cancels_does_not_wait_for_cells_that_run() -> None:
    """compare keeps its finished rows on Ctrl-C, so the pool sees no exception."""
    with connect(None, 1) as pool:
        pid = pool.submit(os.getpid).result()
        pool.submit(time.sleep, _ENDLESS_S)
        pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_cluster_that_goes_away_says_how_to_go_on(grid: Grid, tmp_path: Path) -> None:
    class Gone(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    @contextmanager
    def gone() -> Iterator[Executor]:
        yield Gone()

    with (
        opened(tmp_path / "s.jsonl") as store,
        pytest.raises(InputError, match="goes on from here"),
    ):
        sweep(grid, store, gone)


def test_a_local_worker_that_is_killed_costs_nothing(grid: Grid, tmp_path: Path) -> None:
    killed: list[int] = []

    @contextmanager
    def fragile() -> Iterator[Executor]:
        with connect(None, 1) as pool:
            if not killed:
                killed.append(pool.submit(os.getpid).result())
                os.kill(killed[0], signal.SIGKILL)
            yield pool

    with opened(tmp_path / "a.jsonl") as store, opened(tmp_path / "b.jsonl") as other:
        assert sweep(grid, store, fragile) == sweep(grid, other, threads)
    assert killed
