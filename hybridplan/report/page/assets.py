"""Package files of the pages, and how text from files becomes safe HTML, SVG and script data."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from hybridplan.errors import InputError

__all__ = ["asset", "attributes", "check_target", "escape", "fill", "script_json", "write"]

_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028"}


def asset(name: str) -> str:
    """The text of a file shipped beside this module."""
    return files("hybridplan.report.page").joinpath(name).read_text(encoding="utf-8")


def fill(name: str, **parts: str) -> str:
    """A shipped template with its $names replaced; a missing one raises KeyError."""
    return Template(asset(name)).substitute(parts)


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element whatever the strings hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, written in _IN_SCRIPT.items():
        text = text.replace(sign, written)
    return text


def attributes(**values: object) -> str:
    """HTML attributes, escaped; underscores become hyphens, a trailing one is dropped."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in values.items()
        if value is not None
    )


def check_target(path: Path, flag: str = "-o") -> None:
    """Raise InputError where ``write`` could not put a page, before the work is done."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{flag} {path}: the name must end in .html")
    if not path.parent.is_dir():
        raise InputError(f"{flag} {path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise InputError(f"{flag} {path}: is a folder; name a file in it")


def write(path: Path, text: str, flag: str = "-o") -> None:
    """Write a page as UTF-8 with plain newlines. Raises InputError where it cannot be written."""
    check_target(path, flag)
    try:
        path.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{flag} {path}: cannot be written ({error.strerror})") from None
