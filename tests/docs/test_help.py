"""``hybridplan help``: the pages of docs/ on a terminal, by topic."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridplan.cli import COMMANDS, run
from hybridplan.cli.common import PIPE_WIDTH
from hybridplan.topics import find, page, topics

ROOT = Path(__file__).parents[2]
TOPICS = topics().topics
Capture = pytest.CaptureFixture[str]


def test_every_page_is_a_topic() -> None:
    files = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert {topic.file for topic in TOPICS} == files - {"README.md"}


def test_names_lead_to_one_page() -> None:
    names = [name for topic in TOPICS for name in (topic.name, *topic.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "help"])
def test_every_command_has_a_page_that_speaks_of_it(command: str) -> None:
    assert f"hybridplan {command}" in page(command).text


@pytest.mark.parametrize("topic", TOPICS, ids=[topic.name for topic in TOPICS])
def test_a_page_is_printed_whole(topic: object, capsys: Capture) -> None:
    name = topic.name  # type: ignore[attr-defined]
    assert run(["help", name]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert len(lines) > 15
    assert all(len(line) <= PIPE_WIDTH for line in lines)
    assert "<!--" not in out
    assert "](" not in re.sub(r"`[^`]*`", "", out)
    printed = re.sub(r"\s", "", out)
    for title in re.findall(r"^## (.+)$", page(name).text, re.MULTILINE):
        assert re.sub(r"[\s`]", "", title) in printed


def test_without_a_topic_they_are_listed(capsys: Capture) -> None:
    assert run(["help"]) == 0
    out = capsys.readouterr().out
    assert all(topic.name in out for topic in TOPICS)


@pytest.mark.parametrize(
    "wanted, file",
    [
        ("fit", "plan.md"),
        ("explain-log", "plan.md"),
        ("explain_log", "plan.md"),
        ("FORMATS", "traces.md"),
        ("schema", "json.md"),
        ("calibration", "calibrate.md"),
        ("pd", "fleet.md"),
        ("exit-codes", "exit-codes.md"),
        ("vllm", "engines/vllm.md"),
    ],
)
def test_other_names(wanted: str, file: str) -> None:
    assert find(wanted).file == file


def test_a_near_miss_names_the_nearest(capsys: Capture) -> None:
    assert run(["help", "simulat"]) == 2
    error = capsys.readouterr().err
    assert "the nearest are simulate" in error
    assert "hybridplan help lists all topics" in error
    assert error.count("\n") == 1


def test_links_to_pages_become_topics(capsys: Capture) -> None:
    assert run(["help", "tutorial"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "hybridplan help limits" in out
    assert "limits.md" not in out


def test_json(capsys: Capture) -> None:
    assert run(["help", "exit-codes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["topic"]["name"] == "exit-codes"
    assert found["text"].startswith("# Exit codes")
    assert "<!--" not in found["text"]


def test_links_between_pages_hold() -> None:
    broken = []
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.name}: {target}")
    assert broken == []


def test_listing_loads_nothing_heavy() -> None:
    heavy = "pydantic", "torch", "numpy", "pandas"
    code = (
        "import sys; from hybridplan.topics import topics; topics();"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
