"""Write requests as hybridplan JSONL; ``own`` reads it, docs/traces.md defines it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from hybridplan.errors import InputError, MissingExtraError
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.facts import TraceInfo
from hybridplan.sim.traces.own import FACTS, MARK, VERSION, pack_ids
from hybridplan.sim.traces.trace import Trace


def header_of(info: TraceInfo, default: Prompt) -> dict[str, Any]:
    """The first line of a written trace."""
    return {
        MARK: VERSION,
        "source_format": info.format,
        "source_dialect": info.dialect,
        "facts": {
            **{name: getattr(info, name).value for name in FACTS},
            "time_unit": "s" if info.has_clock else "none",
        },
        "defaults": {
            "unit_tokens": default.unit_tokens,
            "chained": default.chained,
            "scope": default.scope,
        },
    }


def row_of(request: Request, default: Prompt) -> dict[str, Any]:
    """One request as a line, without absent fields and those equal to the header's defaults."""
    prompt = request.prompt
    row: dict[str, Any] = {"request_id": request.request_id}
    for name in ("arrival_s", "session", "turn"):
        value = getattr(request, name)
        if value is not None:
            row[name] = value
    row["input_tokens"] = prompt.length_tokens
    row["output_tokens"] = request.output_tokens
    row.update(_identity(prompt, default))
    if request.sequence is not None:
        expected = prompt.length_tokens + request.output_tokens
        if request.sequence.length_tokens != expected:
            raise InputError(
                f"request {request.request_id}: its sequence has "
                f"{request.sequence.length_tokens} tokens, prompt and output have {expected}"
            )
        row["sequence"] = _identity(request.sequence, prompt)
    return row


def _identity(prompt: Prompt, default: Prompt) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("unit_tokens", "chained", "scope"):
        value = getattr(prompt, name)
        if value != getattr(default, name):
            found[name] = value
    if prompt.ids:
        found["ids"] = pack_ids(prompt.ids)
    return found


def lines_of(info: TraceInfo, requests: Iterable[Request]) -> Iterator[str]:
    """A trace as lines without endings, header first; the first request sets the defaults."""
    default: Prompt | None = None
    for request in requests:
        if default is None:
            default = request.prompt
            yield json.dumps(header_of(info, default), separators=(",", ":"))
        yield json.dumps(row_of(request, default), separators=(",", ":"), allow_nan=False)


def convert_trace(trace: Trace, target: str | Path, *, overwrite: bool = False) -> int:
    """Write a trace's requests to ``target`` (gzip or zstd by its suffix .gz or .zst).

    Returns the number of requests. The file appears only when it is complete. Raises InputError
    when the target exists and ``overwrite`` is not set, or is the trace itself.
    """
    path = Path(target)
    if path.exists() and path.samefile(trace.info.path):
        raise InputError(f"{path} is the trace itself; choose another name")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; say --overwrite to replace it")
    partial = path.with_name(path.name + ".partial")
    try:
        with _writer(partial, path.suffix) as stream:
            for line in lines_of(trace.info, trace.requests()):
                stream.write(line.encode() + b"\n")
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return trace.counts.requests


@contextmanager
def _writer(path: Path, suffix: str) -> Iterator[BinaryIO]:
    with path.open("wb") as raw:
        if suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                yield cast("BinaryIO", packed)
        elif suffix == ".zst":
            try:
                import zstandard
            except ImportError as error:
                raise MissingExtraError("writing .zst needs hybridplan[trace]") from error
            with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as packed:
                yield packed
        else:
            yield raw
