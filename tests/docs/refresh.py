"""Writes what commands print now into the pages, where no line of a block is left out.

    python tests/docs/refresh.py [PAGE ...]

Blocks with ``...`` are left as they are; the test says which of them are no longer true.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from shown import ELISION, collect, pages
from test_commands import ROOT, furnish

from hybridplan.cli import run


def printed(words: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        run(words)
    return out.getvalue()


def refresh(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [one for one in collect(path, path.name) if one.output and one.not_run is None]
    for one in reversed(found):
        assert one.output is not None
        if ELISION in one.output:
            continue
        start = one.line
        while lines[start - 1].endswith("\\"):
            start += 1
        end = start
        while lines[end] != "```" and not lines[end].startswith("$ "):
            end += 1
        answer = [line.rstrip() for line in printed(one.words).strip("\n").splitlines()]
        lines[start:end] = answer
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    asked = [Path(name).resolve() for name in names] or pages(ROOT)
    with tempfile.TemporaryDirectory() as place:
        furnish(Path(place))
        os.chdir(place)
        for path in asked:
            refresh(path)


if __name__ == "__main__":
    main(sys.argv[1:])
