"""Outcomes and events of a replay as files: one row per request, one line per event."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from hybridplan.errors import InputError, MissingExtraError
from hybridplan.sim.events import Event
from hybridplan.sim.outcome import LossCause, RequestOutcome

FORMATS = (".csv", ".jsonl", ".parquet")
_TEXT = ("request_id", "session", "refused", "replica")
_SECONDS = (
    "arrival_s",
    "waited_s",
    "finish_s",
    "sent_s",
    "queued_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
)
_NUMBERS = (
    "turn",
    "prompt_tokens",
    "output_tokens",
    "hit_tokens",
    "kv_hit_tokens",
    "ceiling_tokens",
    "junction_tokens",
    "prefill_chunks",
    "preemptions",
    "recomputed_tokens",
    "arrival_step",
    "first_step",
    "finish_step",
)
_FIELDS = (
    "request_id",
    "session",
    "turn",
    *_SECONDS,
    *_NUMBERS[1:],
)
_LOST = tuple(f"lost_{cause.value}_tokens" for cause in LossCause)
COLUMNS = (*_FIELDS, *_LOST, "refused")
FLEET_COLUMNS = ("replica", *COLUMNS)
_PARQUET_ROWS = 8192


def row(outcome: RequestOutcome) -> tuple[Any, ...]:
    """The values of COLUMNS. The lost columns sum to ceiling_tokens - hit_tokens."""
    lost = dict(outcome.lost)
    return (
        *(getattr(outcome, name) for name in _FIELDS),
        *(lost.get(cause, 0) for cause in LossCause),
        outcome.refused,
    )


@contextmanager
def request_writer(path: Path) -> Iterator[Callable[[RequestOutcome], None]]:
    """Write outcomes to a .csv, .jsonl or .parquet file, as they come.

    Raises InputError for another suffix or a path that cannot be written, MissingExtraError for
    parquet without pyarrow.
    """
    with _rows(path, COLUMNS) as write:
        yield lambda outcome: write(row(outcome))


@contextmanager
def fleet_writer(
    path: Path, names: Sequence[str]
) -> Iterator[Callable[[int, RequestOutcome], None]]:
    """``request_writer`` for replicas of these names, with the name in front of each row."""
    with _rows(path, FLEET_COLUMNS) as write:
        yield lambda replica, outcome: write((names[replica], *row(outcome)))


@contextmanager
def _rows(path: Path, columns: Sequence[str]) -> Iterator[Callable[[tuple[Any, ...]], None]]:
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"--per-request {path}: the name must end in {', '.join(FORMATS)}")
    if suffix == ".parquet":
        with _parquet(path, columns) as write:
            yield write
        return
    with _text(path, "--per-request") as file:
        if suffix == ".csv":
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            yield writer.writerow
        else:
            yield lambda values: _line(file, dict(zip(columns, values, strict=True)))


@contextmanager
def event_writer(path: Path) -> Iterator[Callable[[Event], None]]:
    """Write events to a .jsonl file, as they come. Raises InputError as ``request_writer``."""
    if path.suffix.lower() != ".jsonl":
        raise InputError(f"--events {path}: the name must end in .jsonl")
    with _text(path, "--events") as file:
        yield lambda event: _line(
            file,
            {
                "step": event.step,
                "kind": event.kind,
                "request_id": event.request_id or None,
                "group": event.group if event.group >= 0 else None,
                "blocks": event.blocks,
                "position_tokens": event.position_tokens,
            },
        )


def _line(file: TextIO, value: dict[str, Any]) -> None:
    file.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


@contextmanager
def _text(path: Path, flag: str) -> Iterator[TextIO]:
    try:
        file = path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"{flag} {path}: cannot be written ({error.strerror})") from None
    with file:
        yield file


@contextmanager
def _parquet(path: Path, columns: Sequence[str]) -> Iterator[Callable[[tuple[Any, ...]], None]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(
            f'--per-request {path} needs pyarrow; install it with: pip install "hybridplan[trace]"'
        ) from None
    types = dict.fromkeys(_TEXT, pa.string()) | dict.fromkeys(_SECONDS, pa.float64())
    schema = pa.schema([(name, types.get(name, pa.int64())) for name in columns])
    rows: list[tuple[Any, ...]] = []
    try:
        writer = pq.ParquetWriter(path, schema)
    except OSError as error:
        raise InputError(f"--per-request {path}: cannot be written ({error.strerror})") from None

    def flush() -> None:
        turned = [list(column) for column in zip(*rows, strict=True)]
        writer.write_table(pa.table(dict(zip(columns, turned, strict=True)), schema=schema))
        rows.clear()

    def write(values: tuple[Any, ...]) -> None:
        rows.append(values)
        if len(rows) >= _PARQUET_ROWS:
            flush()

    with writer:
        try:
            yield write
        finally:
            if rows:
                flush()
