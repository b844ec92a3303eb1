"""The manual: pages of docs/, shipped inside the wheel, found by topic.

The table of docs/README.md is the list: a page's link text is its topic, the next column holds
other names for it, the last one what it says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from hybridplan.errors import InputError

SCHEMA_VERSION = 1

_ROW = re.compile(r"^\| \[([\w-]+)\]\(([\w./-]+\.md)\) \| ([^|]*?) ?\| (.+?) \|$")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Topic:
    """One page: its name, other names that lead to it, and what it says in a line."""

    name: str
    aliases: tuple[str, ...]
    summary: str
    file: str


@dataclass(frozen=True, slots=True)
class TopicList:
    """All pages, in the order of the index."""

    schema_version: int
    topics: tuple[Topic, ...]


@dataclass(frozen=True, slots=True)
class TopicPage:
    """One page and its text as Markdown, without the comments that only the tests read."""

    schema_version: int
    topic: Topic
    text: str


def folder() -> Path:
    """The folder of pages: inside the wheel, or top-level in a checkout."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "_docs", package.parent / "docs"):
        if (candidate / "README.md").is_file():
            return candidate
    raise InputError(f"the manual is missing from {package}; reinstall hybridplan")


def topics() -> TopicList:
    """Every topic. Raises InputError where the installation lacks the pages."""
    found = []
    for line in (folder() / "README.md").read_text(encoding="utf-8").splitlines():
        if row := _ROW.match(line):
            name, file, others, summary = row.groups()
            aliases = tuple(word.strip() for word in others.split(",") if word.strip())
            found.append(Topic(name, aliases, summary, file))
    return TopicList(SCHEMA_VERSION, tuple(found))


def find(wanted: str) -> Topic:
    """The topic of a name or another name. Raises InputError with the nearest names."""
    known = {name: topic for topic in topics().topics for name in (*topic.aliases, topic.name)}
    word = wanted.lower().replace("_", "-")
    if word in known:
        return known[word]
    near = get_close_matches(word, known, n=3, cutoff=0.5)
    hint = f"the nearest are {', '.join(near)}; " if near else ""
    raise InputError(f"there is no help on {wanted!r}; {hint}hybridplan help lists all topics")


def page(wanted: str) -> TopicPage:
    """The page of a topic. Raises InputError as ``find`` does."""
    topic = find(wanted)
    text = (folder() / topic.file).read_text(encoding="utf-8")
    return TopicPage(SCHEMA_VERSION, topic, _COMMENT.sub("", text))
