"""The manual on a terminal."""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.topics import TopicList, TopicPage

_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_INDENT = 4


class _PlainHeading(Heading):
    """Left and bold, at every level and in every version of rich."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = self.text.plain
        yield Text(plain.upper() if self.tag == "h1" else plain, style="bold")


class _PlainCode(CodeBlock):
    """As it stands, indented where the lines leave room for it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        room = options.max_width - max(map(len, code.split("\n")))
        text = Text(code, overflow="fold")
        yield Padding(text, (0, 0, 0, _INDENT if room >= _INDENT else 0))


class _Page(Markdown):
    elements = {  # noqa: RUF012
        **Markdown.elements,
        "heading_open": _PlainHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }


def screen(found: TopicPage, known: TopicList) -> list[RenderableType]:
    """One page; a link to another page becomes the topic it is found under."""
    names = {topic.file: topic.name for topic in known.topics}
    here = dirname(found.topic.file)

    def target(link: re.Match[str]) -> str:
        text, url = link.groups()
        path, _, _ = url.partition("#")
        name = names.get(normpath(join(here, path)))
        if name is None:
            return f"{text} ({url})" if "/" in url and text != url else text
        command = f"`hybridplan help {name}`"
        says_the_page = text.strip("`").endswith((".md", name))
        return command if says_the_page else f"{text} ({command})"

    parts = _FENCED.split(found.text)
    text = "".join(part if part.startswith("```") else _LINK.sub(target, part) for part in parts)
    return [_Page(text)]


def index(known: TopicList) -> list[RenderableType]:
    """All topics, each with other names and a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for topic in known.topics:
        more = f" (also: {', '.join(topic.aliases)})" if topic.aliases else ""
        table.add_row(topic.name, Text(topic.summary + more))
    return [
        table,
        "",
        "hybridplan help TOPIC shows a page; hybridplan COMMAND --help lists a command's options",
    ]
