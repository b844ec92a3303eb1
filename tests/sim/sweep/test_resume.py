"""A sweep that is killed, or loses a worker, ends with the bytes of one that was not."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

DERIVED = Path(__file__).parents[2] / "data" / "traces" / "lmcache_agent_derived.jsonl.gz"
ROWS = 25
MEMORIES = [f"{size}MiB" for size in (200, 400, 800, 1600, 3200, 4000, 4800, 5600, 6400, 8000)]
GRID = {
    "model": "qwen3.5-0.8b",
    "block_tokens": 16,
    "drop_empty": True,
    "kv_memory": MEMORIES,
    "cells": [
        {"engine": ["vllm@0.33", "vllm@0.32"], "retention": ["none", 0, 2304], "tp": [1, 2]},
        {"engine": ["sglang:no_buffer", "sglang:extra_buffer"], "ratio": ["0.9", "2"]},
        {"engine": ["marconi:paper", "marconi:alpha=0", "marconi:alpha=1", "marconi:sglang+"]},
    ],
}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    with gzip.open(DERIVED, "rt") as file:
        rows = [line for line, _ in zip(file, range(ROWS), strict=False)]
    trace = folder / "trace.jsonl"
    trace.write_text("".join(rows))
    path = folder / "grid.json"
    path.write_text(json.dumps({**GRID, "trace": str(trace)}))
    return path


def command(grid: Path, folder: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-c", "from hybridplan.cli import main; main()", "sweep", str(grid),
        "--store", str(folder / "store.jsonl"), "--export", str(folder / "cells.jsonl"),
        "--json", *more,
    ]  # fmt: skip


def finish(grid: Path, folder: Path, *more: str) -> tuple[bytes, bytes]:
    """Standard output and export of a sweep that runs to its end."""
    done = subprocess.run(command(grid, folder, *more), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, (folder / "cells.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(grid: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    return finish(grid, tmp_path_factory.mktemp("whole"), "--jobs", "1")


def lines(store: Path) -> int:
    return store.read_bytes().count(b"\n") if store.exists() else 0


def wait_for(store: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """However long it takes: a sweep that ends has all its cells or is broken."""
    while lines(store) < count and process.poll() is None:
        time.sleep(0.005)
    assert lines(store) >= count


def test_killed_twice_resumed_and_repeated(
    grid: Path, tmp_path: Path, whole: tuple[bytes, bytes]
) -> None:
    store = tmp_path / "store.jsonl"
    for least in (30, 110):
        process = subprocess.Popen(
            command(grid, tmp_path, "--jobs", "2"),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(store, least, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with store.open("ab") as file:  # a kill may also fall into a write
        file.write(b'{"key":"00')
    assert finish(grid, tmp_path, "--jobs", "2") == whole
    assert len(json.loads(whole[0])["cells"]) == lines(store) == 200
    stored = store.read_bytes()
    assert finish(grid, tmp_path, "--jobs", "2") == whole
    assert store.read_bytes() == stored, "a repeated sweep runs nothing"


CLUSTER = textwrap.dedent(
    """
    import sys
    from distributed import LocalCluster
    if __name__ == "__main__":
        with LocalCluster(
            n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None,
            memory_limit=None,
        ) as cluster:
            pids = [worker.process.process.pid for worker in cluster.workers.values()]
            print(cluster.scheduler_address, *pids, flush=True)
            sys.stdin.read()
    """
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    pytest.importorskip("distributed")
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    address, *pids = process.stdout.readline().split()
    yield address, [int(pid) for pid in pids]
    process.communicate("")


def test_dask_cluster_that_loses_a_worker(
    grid: Path, tmp_path: Path, whole: tuple[bytes, bytes], cluster: tuple[str, list[int]]
) -> None:
    address, pids = cluster
    process = subprocess.Popen(
        command(grid, tmp_path, "--scheduler", address),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(tmp_path / "store.jsonl", 20, process)
    os.kill(pids[0], signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert (out, (tmp_path / "cells.jsonl").read_bytes()) == whole
