"""Results as they land: one JSON line a cell, appended and synced, so that a kill loses none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hybridplan.errors import InputError


@dataclass(frozen=True, slots=True)
class Record:
    """A stored cell: its row or its error, and what it cost. ``failed`` errors are no answer of
    the engine (a dead worker, a bug) and may be tried again."""

    key: str
    settings: Mapping[str, Any]
    trace_sha256: str
    version: str
    row: Mapping[str, Any] | None
    error: str | None
    failed: bool
    cpu_s: float
    wall_s: float

    def line(self) -> bytes:
        """The record as one line of UTF-8 JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class Store:
    """The records of an append-only file, the latest of each key; ``append`` adds one for good."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self.records: dict[str, Record] = {}
        self.torn = self._read()

    def append(self, record: Record) -> None:
        """Write one record and wait until the disk has it.

        Raises InputError where it has no room; what was written before stays.
        """
        try:
            self._file.write(record.line())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(
                f"--store {self.path}: cannot be written ({error.strerror}); it keeps"
                f" {len(self.records):,} results, and the same command goes on from there"
            ) from None
        self.records[record.key] = record

    def _read(self) -> bool:
        """Take in what is there; a last line without its end is cut off. True if one was."""
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                self._file.truncate(whole)
                self._file.seek(0, os.SEEK_END)
                return True
            try:
                record = Record(**json.loads(line))
            except (ValueError, TypeError):
                raise InputError(
                    f"{self.path}, line {number} is no result of a sweep; delete that line, or"
                    " choose another file with --store"
                ) from None
            self.records[record.key] = record
            whole += len(line)
        return False


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    """The store of a file, made if need be, for one sweep at a time.

    Raises InputError where it cannot be written, holds something else, or another sweep has it.
    """
    try:
        file = path.open("a+b")
    except OSError as error:
        raise InputError(f"--store {path}: cannot be written ({error.strerror})") from None
    if not path.is_file():
        file.close()
        raise InputError(f"--store {path} is no plain file; name one that can be read again")
    try:
        _lock(path, file)
        yield Store(path, file)
    finally:
        with suppress(OSError):  # a full disk: what is buffered was never acknowledged
            file.close()


def _lock(path: Path, file: BinaryIO) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows; there a second sweep is not noticed
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(
            f"--store {path}: another sweep is writing it; wait for it or choose another file"
        ) from None
