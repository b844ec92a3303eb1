"""One JSON object from a file a stranger wrote: bounded in size and depth, every fault a sentence.

Nothing here imports or runs what lies beside the file.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from hybridplan.errors import ConfigError

MOST_BYTES = 16 << 20
MOST_DEPTH = 64
MOST_DIGITS = 1000


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ConfigError with one sentence for anything else.

    Bare ``Infinity`` and ``NaN`` are read as floats, as four published configs need; a key that
    must be a whole number refuses them later.
    """
    return parse_object(_read_bytes(path), str(path))


def _read_bytes(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ConfigError(f"{path} is a folder, not a config.json")
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{path} is not a regular file")
        with path.open("rb") as handle:
            raw = handle.read(MOST_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    except ValueError as error:
        raise ConfigError(f"the path {str(path)!r} cannot be read: {error}") from error
    if len(raw) > MOST_BYTES:
        raise ConfigError(
            f"{path} is larger than {MOST_BYTES >> 20} MiB, too large for a config.json"
        )
    return raw


def parse_object(raw: bytes, file: str) -> dict[str, Any]:
    """The JSON object in these bytes; ``file`` names their origin in errors."""
    if not raw.strip():
        raise ConfigError(f"{file} is empty")
    if raw.startswith(b"GGUF"):
        raise ConfigError(f"{file} is a GGUF file, not JSON; give the model's config.json")
    text = _decode(raw, file)
    head = text.lstrip()[:64].lower()
    if head.startswith("<"):
        raise ConfigError(f"{file} holds HTML or XML, not JSON; was an error page saved?")
    if head.startswith("version https://git-lfs"):
        raise ConfigError(f"{file} is a Git LFS pointer, not the file itself; run git lfs pull")
    _check_depth(text, file)
    try:
        value = json.loads(
            text,
            object_pairs_hook=lambda pairs: _unique(pairs, file),
            parse_int=lambda digits: _whole(digits, file),
        )
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{file} is not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    if not isinstance(value, dict):
        found = "null" if value is None else f"a {type(value).__name__}"
        raise ConfigError(f"{file} must hold one JSON object, not {found}")
    return value


def _decode(raw: bytes, file: str) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in raw[:4]:
        raise ConfigError(f"{file} is not UTF-8 text (UTF-16, UTF-32 or binary); save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: bad byte at offset {error.start}") from error


def _check_depth(text: str, file: str) -> None:
    """Refuse deep nesting before the parser recurses into it."""
    if text.count("[") + text.count("{") <= MOST_DEPTH:
        return
    depth = 0
    inside = escaped = False
    for char in text:
        if inside:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                inside = False
        elif char == '"':
            inside = True
        elif char in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                raise ConfigError(f"{file} nests deeper than {MOST_DEPTH} levels")
        elif char in "]}":
            depth -= 1


def _whole(digits: str, file: str) -> int:
    """An int; beyond a length no size has, the conversion itself would take long."""
    if len(digits) > MOST_DIGITS:
        raise ConfigError(f"{file} holds a number of {len(digits):,} digits, which is no size")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]], file: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise ConfigError(f'{file} has the key "{twice[:60]}" twice in one object')
    return found
