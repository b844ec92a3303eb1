"""Commands as the documentation shows them: fenced shell blocks, inline commands, Python blocks.

A block's lines are commands (```sh), or commands after ``$`` with what they print (```console).
Inline, ``hybridplan plan`` is a name, and a word in capitals stands for a value: neither is run.
An HTML comment in front of a block, or behind an inline command on its line, changes what is done:

    <!-- exit: 1 -->             the commands below end with this code
    <!-- not run: REASON -->     never run by the tests, for this reason
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)$")
_MARK = re.compile(r"<!-- (exit|not run):(.*?)-->")
_INLINE = re.compile(r"`(hybridplan [^`]+)`")
_PLACEHOLDER = re.compile(r"(?<![\w.-])[A-Z]+(?![\w.-])|\.\.\.")
ELISION = "..."


@dataclass(frozen=True)
class Shown:
    """One command or Python block: where it stands, its text, and what is said about it.

    ``output`` is None where the page shows none; ``not_run`` is the reason, None where it is run.
    """

    page: str
    line: int
    kind: str
    text: str
    output: tuple[str, ...] | None = None
    exit_code: int | None = 0
    not_run: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def words(self) -> list[str]:
        """The arguments behind ``hybridplan``; [] where it is another program."""
        words = shlex.split(self.text, comments=True)
        return words[1:] if words and words[0] == "hybridplan" else []


def pages(root: Path) -> list[Path]:
    """README.md, CHANGELOG.md and everything below docs/."""
    return [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]


def collect(path: Path, page: str) -> Iterator[Shown]:
    """Every command and Python block of a page, in its order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    marks: dict[str, str] = {}
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            if lines[at].strip():
                marks = {name: said.strip() for name, said in _MARK.findall(lines[at])}
            yield from _inline(lines[at], page, at + 1, marks)
            at += 1
            continue
        end = next(n for n in range(at + 1, len(lines)) if lines[n] == "```")
        yield from _block(fence[1], lines[at + 1 : end], page, at + 2, marks)
        marks = {}
        at = end + 1


def _inline(line: str, page: str, number: int, marks: dict[str, str]) -> Iterator[Shown]:
    for text in _INLINE.findall(line):
        if re.fullmatch(r"hybridplan [\w-]*\w,?", text) and not text.startswith("hybridplan -"):
            yield Shown(page, number, "name", text)
        elif not _PLACEHOLDER.search(text):
            yield Shown(page, number, "inline", text, None, None, marks.get("not run"))


def _block(
    language: str, body: list[str], page: str, number: int, marks: dict[str, str]
) -> Iterator[Shown]:
    if language == "python":
        yield Shown(page, number, "python", "\n".join(body), not_run=marks.get("not run"))
    if language not in ("sh", "console"):
        return
    exit_code = int(marks.get("exit", "0"))
    at = 0
    while at < len(body):
        start = at
        if language == "sh" or body[at].startswith("$ "):
            text = body[at].removeprefix("$ ")
            while text.endswith("\\"):
                at += 1
                text = text[:-1] + body[at]
            at += 1
            output: list[str] | None = None
            if language == "console":
                output = []
                while at < len(body) and not body[at].startswith("$ "):
                    output.append(body[at].rstrip())
                    at += 1
                output = _trimmed(output)
            if shlex.split(text, comments=True):
                told = tuple(output) if output else None
                where = number + start
                yield Shown(page, where, language, text, told, exit_code, marks.get("not run"))
        else:
            raise AssertionError(f"{page}:{number + at}: output before any command: {body[at]!r}")


def _trimmed(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return lines


def difference(shown: tuple[str, ...], printed: str) -> str | None:
    """None where ``printed`` is what the page shows, else what is not.

    The lines must be the whole output, but for stretches that a line ``...`` stands for.
    """
    actual = _trimmed([line.rstrip() for line in printed.splitlines()])
    parts: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == ELISION:
            parts.append([])
        else:
            parts[-1].append(line)
    at = 0
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if number == 0:
            candidates = [0]
        elif last:
            candidates = [len(actual) - len(part)]
        else:
            candidates = list(range(at, len(actual) - len(part) + 1))
        found = next((n for n in candidates if n >= at and actual[n : n + len(part)] == part), None)
        if found is None or (last and number == 0 and len(actual) != len(part)):
            return "\n".join(unified_diff(part, actual[at:], "shown", "printed", lineterm=""))
        at = found + len(part)
    return None
