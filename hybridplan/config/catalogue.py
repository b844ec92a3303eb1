"""The shipped configs: where they lie, what they are called, and how sure their source is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hybridplan.config.jsonfile import MOST_BYTES
from hybridplan.errors import InputError

_ROW = re.compile(r"^\| *([^|]+?) *\| *([^|]+?) *\| *([^|]+?) *\| *([^|]+?) *\| *([^|]*?) *\|$")


@dataclass(frozen=True, slots=True)
class Entry:
    """One shipped config. ``confidence`` and ``source`` are SOURCES.md's own words."""

    name: str
    model_id: str
    source: str
    confidence: str
    note: str
    path: Path
    hf_quant: Path | None


def folder() -> Path:
    """The folder of shipped configs: inside the wheel, or top-level in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_model_configs", package.parent / "model_configs"):
        if (candidate / "SOURCES.md").is_file():
            return candidate
    raise InputError(f"the shipped model configs are missing from {package}; reinstall hybridplan")


@lru_cache(maxsize=1)
def entries() -> dict[str, Entry]:
    """Every shipped config by name, in the order of SOURCES.md."""
    return read_entries(folder())


def read_entries(base: Path) -> dict[str, Entry]:
    """The configs that the tables "file | model id | source | confidence | note" list."""
    found: dict[str, Entry] = {}
    in_table = False
    with (base / "SOURCES.md").open(encoding="utf-8") as handle:
        text = handle.read(MOST_BYTES)
    for line in text.splitlines():
        row = _ROW.match(line)
        if row is None:
            in_table = False
            continue
        name, model_id, source, confidence, note = row.groups()
        if (name, model_id, confidence) == ("file", "model id", "confidence"):
            in_table = True
            continue
        path = base / f"{name}.json"
        if in_table and path.is_file():
            beside = base / "hf_quant" / f"{name}.hf_quant_config.json"
            companion = beside if beside.is_file() else None
            found[name] = Entry(name, model_id, source, confidence, note, path, companion)
    return found
