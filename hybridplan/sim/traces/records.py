"""Lines as records: JSON objects one per line, JSON values across lines, CSV rows, log lines.

Each record comes with the number of its (first) line. A row that cannot be parsed comes as a
BadRow in its place, so that whoever counts bad rows can go on. Only one record is in memory.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from hybridplan.errors import InputError
from hybridplan.sim.traces.facts import BadRow
from hybridplan.sim.traces.source import Source

Container = Literal["json-lines", "json-values", "csv", "log"]
Record = tuple[int, Any]

SAMPLE_RECORDS = 16
SAMPLE_CHARS = 1 << 20
VALUE_LIMIT_CHARS = 1 << 28

_LOG_LINE = re.compile(
    rb'Received request \S+:|Request \S+ details: prompt|"event":\s*"request\.|'
    rb"(?:Receive|Finish): obj=\w*ReqInput"
)
_DECODER = json.JSONDecoder()
_OPENING = re.compile(r"\s*\[?")
_SEPARATORS = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class Sample:
    """The first records of a file, as detection sees them.

    ``rows`` hold up to 16 records that parsed, ``keys`` are all of theirs.
    """

    container: Container
    rows: tuple[Any, ...]
    keys: frozenset[str]
    head: bytes

    @property
    def first(self) -> dict[str, Any]:
        """The first record as a mapping, empty for a log."""
        return self.rows[0] if self.rows and isinstance(self.rows[0], dict) else {}


def sample(source: Source, container: Container | None = None) -> Sample:
    """Container and first records of a file; InputError if nothing in it parses."""
    container = container or container_of(source)
    rows: list[Any] = []
    size = 0
    first_bad: str | None = None
    for line, row in records(source, container):
        if isinstance(row, BadRow):
            first_bad = first_bad or f"line {line}: {row}"
        else:
            rows.append(row)
            size += len(str(row))
        full = len(rows) == SAMPLE_RECORDS or size > SAMPLE_CHARS
        if full or (not rows and line > 10_000):
            break
    if not rows:
        raise InputError(f"{source.path} holds no row that parses; {first_bad or 'only a header'}")
    keys = frozenset[str]().union(*(row for row in rows if isinstance(row, dict)))
    return Sample(container, tuple(rows), keys, source.head)


def container_of(source: Source) -> Container:
    """Which of the four containers a file is, by its first MiB."""
    head = source.head.lstrip()
    if head.startswith(b"{"):
        first = head.split(b"\n", 1)[0]
        if _is_object(first) and b'"event"' in first and _LOG_LINE.search(first):
            return "log"
    elif re.match(rb"\[\s*(?:[\[{\]]|$)", head):
        return "json-values"
    elif _LOG_LINE.search(head):
        return "log"
    elif head.startswith(b"["):
        return "json-values"
    else:
        return "csv"
    lines = head.split(b"\n", 8)
    return "json-lines" if any(_is_object(line) for line in lines[:8]) else "json-values"


def _is_object(line: bytes) -> bool:
    line = line.strip()
    if not line.startswith(b"{"):
        return False
    if len(line) >= len(b"{}") and not line.endswith(b"}"):
        # A first line longer than the head that was read cannot be checked; it is JSONL unless
        # it is short, as the first line of a pretty-printed object is.
        return len(line) > 1 << 16
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def records(source: Source, container: Container) -> Iterator[Record]:
    """Every record of the file: (line, dict), (line, text) for a log, or (line, BadRow)."""
    if container == "json-lines":
        return _json_lines(source)
    if container == "json-values":
        return _json_values(source)
    return _csv_rows(source) if container == "csv" else _log_lines(source)


def _json_lines(source: Source) -> Iterator[Record]:
    loads = json.loads
    for line, raw in source.lines():
        try:
            row = loads(raw.decode())
        except (ValueError, RecursionError) as error:
            yield line, BadRow(f"it is no JSON ({_json_reason(error)})")
            continue
        if type(row) is dict:
            yield line, row
        else:
            yield line, BadRow(f"it is a JSON {type(row).__name__}, not an object")


def _json_reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} is not UTF-8"
    return "a number is too long" if isinstance(error, ValueError) else "it is nested too deeply"


def _json_values(source: Source) -> Iterator[Record]:
    """Elements of one array, or values one after another, parsed as the bytes arrive."""
    pieces = _texts(source)
    text = next(pieces, "")
    opening = _OPENING.match(text)
    at = opening.end() if opening else 0
    line = 1 + text.count("\n", 0, at)
    at_end = False
    while True:
        between = _SEPARATORS.match(text, at)
        end = between.end() if between else at
        line += text.count("\n", at, end)
        at = end
        if at == len(text):
            text, at = next(pieces, ""), 0
            if not text:
                return
            continue
        if text[at] == "]":
            return
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            if not at_end and _incomplete(error, text):
                rest = text[at:]
                text, at = _grow(rest, pieces), 0
                at_end = len(text) == len(rest)
                continue
            reason = _json_reason(error)
            raise InputError(
                f"{source.path}, line {line}: the JSON breaks off ({reason})"
            ) from error
        if isinstance(value, dict):
            yield line, value
        else:
            yield line, BadRow(f"the element is a JSON {type(value).__name__}, not an object")
        line += text.count("\n", at, end)
        at = end


def _texts(source: Source) -> Iterator[str]:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")()
    for chunk in source.chunks():
        try:
            yield decoder.decode(chunk)
        except UnicodeDecodeError as error:
            raise InputError(f"{source.path} is not UTF-8 text: {error.reason}") from error


def _incomplete(error: Exception, buffer: str) -> bool:
    """Whether more text may mend the error: it lies at the buffer's end, or in an open string."""
    if len(buffer) > VALUE_LIMIT_CHARS or not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(buffer) - 16


def _grow(buffer: str, pieces: Iterator[str]) -> str:
    """The buffer with as much again behind it, so that retries cost no more than the text."""
    parts = [buffer]
    wanted = len(buffer)
    for piece in pieces:
        parts.append(piece)
        wanted -= len(piece)
        if wanted <= 0:
            break
    return "".join(parts)


def _csv_rows(source: Source) -> Iterator[Record]:
    names: list[str] | None = None
    delimiter = ","
    for line, raw in source.lines():
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            yield line, BadRow(_json_reason(error))
            continue
        if names is None:
            delimiter = max(",\t;|", key=text.count)
            names = _header(source, text, delimiter)
            continue
        if '"' in text:
            try:
                cells = next(csv.reader([text], delimiter=delimiter, strict=True))
            except csv.Error as error:
                yield line, BadRow(f"it is no CSV row ({error})")
                continue
        else:
            cells = text.split(delimiter)
        if len(cells) != len(names):
            yield line, BadRow(f"it has {len(cells)} cells where the header has {len(names)}")
            continue
        yield line, dict(zip(names, cells, strict=True))


def _header(source: Source, text: str, delimiter: str) -> list[str]:
    try:
        cells = next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise InputError(f"{source.path}: the first line is no CSV header ({error})") from error
    names = [" ".join(cell.lower().split()) for cell in cells]
    if {"gamma", "weibull"} & set(names):
        raise InputError(
            f"{source.path} is a ServeGen parameter file (rate windows, not requests); generate "
            "requests with ServeGen first"
        )
    if any(re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", name) for name in names):
        raise InputError(
            f"{source.path} starts with a number where column names are needed; add a header line "
            "such as input_length,output_length"
        )
    if len(set(names)) != len(names):
        raise InputError(f"{source.path}: two columns of the header have the same name")
    if len(names) < 2:
        raise InputError(
            f"{source.path} is no trace: its first line is neither JSON, nor a CSV header, "
            "nor an engine's request log"
        )
    return names


def _log_lines(source: Source) -> Iterator[Record]:
    for line, raw in source.lines():
        yield line, raw.decode(errors="replace")
