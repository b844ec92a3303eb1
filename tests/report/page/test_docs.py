"""Every command of docs/pages.md runs as it stands there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hybridplan.cli import run

ROOT = Path(__file__).parents[3]
COMMANDS = [
    line.removeprefix("$ hybridplan ")
    for line in (ROOT / "docs" / "pages.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("$ hybridplan ")
]


@pytest.mark.parametrize("command", COMMANDS, ids=[text.split(" -")[0] for text in COMMANDS])
def test_command_writes_a_page(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    assert run(shlex.split(command)) == 0
    (page,) = tmp_path.glob("*.html")
    assert command in page.read_text(encoding="utf-8").replace("&#x27;", "'")


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 5
