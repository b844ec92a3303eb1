"""Writes the schema files of versions that have none: tests/data/schemas/COMMAND.vN.json.

    python tests/release/schemas.py

A file that exists is never overwritten; a released version says what it said. Before a release,
delete the file of a version that nobody has seen.
"""

from __future__ import annotations

import json
from pathlib import Path

from hybridplan.cli.schema import RESULTS, schema_of, version_of

FOLDER = Path(__file__).parents[1] / "data" / "schemas"


def file_of(command: str) -> Path:
    return FOLDER / f"{command}.v{version_of(command)}.json"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for command in RESULTS:
        if not file_of(command).exists():
            text = json.dumps(schema_of(command), indent=1, ensure_ascii=False)
            file_of(command).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
