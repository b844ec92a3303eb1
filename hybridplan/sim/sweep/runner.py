"""Where cells run: local processes, a Dask cluster or Ray, all behind ``concurrent.futures``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import active_children, connection, get_context, parent_process
from threading import Thread
from typing import Any
from warnings import catch_warnings, simplefilter

from hybridplan.errors import InputError, MissingExtraError

_CONNECT_S = 30


def connect(scheduler: str | None, jobs: int) -> AbstractContextManager[Executor]:
    """An executor: ``jobs`` local processes, or the cluster at ``tcp://...`` or ``ray://...``.

    Raises InputError for another address or one that does not answer, MissingExtraError where
    the client is not installed.
    """
    if scheduler is None:
        if jobs < 1:
            raise InputError(f"--jobs is {jobs}; it must be 1 or more")
        return processes(jobs)
    if scheduler.startswith(("tcp://", "tls://", "ucx://")):
        return _dask(scheduler)
    if scheduler.startswith("ray://"):
        return _ray(scheduler)
    raise InputError(f"--scheduler {scheduler!r} is neither tcp://HOST:PORT nor ray://HOST:PORT")


@contextmanager
def processes(jobs: int) -> Iterator[Executor]:
    """Local worker processes that end with this one, however it ends; Ctrl-C stops their cells."""
    pool = LocalPool(jobs)
    try:
        yield pool
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


class LocalPool(ProcessPoolExecutor):
    """Worker processes; cancelling its futures stops what runs, too."""

    def __init__(self, jobs: int) -> None:
        self._others = set(active_children())
        super().__init__(jobs, mp_context=get_context("spawn"), initializer=_follow_parent)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As in any executor; with ``cancel_futures`` workers are stopped, not waited for."""
        stopped = set(active_children()) - self._others if cancel_futures else set()
        for worker in stopped:
            worker.terminate()
        super().shutdown(wait, cancel_futures=cancel_futures)
        for worker in stopped:
            worker.join()


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, and do not outlive it: a killed parent closes no queue."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        connection.wait([sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtraError(
            f'--scheduler {address} needs Dask; install it with: pip install "hybridplan[dask]"'
        ) from None
    try:
        client = Client(address, timeout=_CONNECT_S)
        client.wait_for_workers(1, timeout=_CONNECT_S)
    except (OSError, asyncio.TimeoutError) as error:
        raise InputError(
            f"--scheduler {address}: no Dask scheduler with a worker answered in {_CONNECT_S} s"
            f" ({type(error).__name__})"
        ) from None
    with _silenced("distributed"), client:
        yield client.get_executor(pure=False)


@contextmanager
def _silenced(package: str) -> Iterator[None]:
    """Without the package's log: a scheduler that goes away is told in one sentence, not by its
    client's tracebacks."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == package]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _ray(address: str) -> Iterator[Executor]:
    try:
        from ray import init, remote, shutdown
    except ImportError:
        raise MissingExtraError(
            f'--scheduler {address} needs Ray; install it with: pip install "hybridplan[ray]"'
        ) from None
    try:
        with catch_warnings():
            simplefilter("ignore")
            init(address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"--scheduler {address}: Ray did not answer ({reason})") from None
    try:
        yield RayExecutor(remote)
    finally:
        shutdown()


class RayExecutor(Executor):
    """Ray tasks as futures, made with ``ray.remote``; Ray tries a task again whose worker dies."""

    def __init__(self, remote: Callable[[Callable[..., Any]], Any]) -> None:
        self._remote = remote
        self._tasks: dict[Callable[..., Any], Any] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future of one task."""
        task = self._tasks.get(fn)
        if task is None:
            task = self._tasks[fn] = self._remote(fn)
        future: Future[Any] = task.remote(*args, **kwargs).future()
        return future
