"""Writes the schema files of versions that have none: tests/data/schemas/COMMAND.vN.json.

    python tests/release/schemas.py

A file that exists is never overwritten; a released version says what it said. Before a release,
delete the file of a version that nobody has seen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hybridplan.cli.schema import RESULTS, schema_of, version_of

_NAMED = ("properties", "$defs")  # whose keys are names, not words of JSON Schema
FOLDER = Path(__file__).parents[1] / "data" / "schemas"


def file_of(command: str) -> Path:
    return FOLDER / f"{command}.v{version_of(command)}.json"


def shape_of(command: str) -> Any:
    """The schema without titles and descriptions, which change nothing for a reader."""
    return _bare(schema_of(command))


def _bare(node: Any, names: bool = False) -> Any:
    if isinstance(node, list):
        return [_bare(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _bare(value, names=not names and key in _NAMED)
        for key, value in node.items()
        if names or key not in ("title", "description")
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for command in RESULTS:
        if not file_of(command).exists():
            text = json.dumps(shape_of(command), indent=1, ensure_ascii=False)
            file_of(command).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
