"""README and docs: every command runs, and prints what the page shows."""

from __future__ import annotations

import html
import sys
from collections import Counter
from pathlib import Path

import pytest

from hybridplan.cli import COMMANDS, run

sys.path.insert(0, str(Path(__file__).parent))
from shown import Shown, collect, difference, pages

ROOT = Path(__file__).parents[2]
# Files that pages name without saying where they are.
FILES = {
    "trace.jsonl": ROOT / "docs" / "examples" / "shared_prompt.jsonl",
    "boot.log": ROOT / "docs" / "examples" / "boot.log",
    "grid.yaml": ROOT / "docs" / "examples" / "grid.yaml",
}
SERVED = ROOT / "tests" / "data" / "traces" / "vllm_request_log_qwen3-30b-a3b.jsonl"


def furnish(place: Path) -> None:
    """Put the repository's folders into ``place``, and the files that pages name without a path."""
    for name in ("tests", "model_configs", "docs", "benchmarks"):
        (place / name).symlink_to(ROOT / name)
    for name, source in FILES.items():
        (place / name).symlink_to(source)
    served = SERVED.read_text(encoding="utf-8").splitlines(keepends=True)
    (place / "log.jsonl").write_text("".join(served[:30]), encoding="utf-8")


def everything() -> list[Shown]:
    return [
        found for path in pages(ROOT) for found in collect(path, path.relative_to(ROOT).as_posix())
    ]


ALL = everything()


def runnable() -> list[Shown]:
    """What is run: each once, and the first that shows its output before one that does not."""
    seen: dict[tuple[str, str], Shown] = {}
    for found in ALL:
        if found.not_run is not None or found.kind == "name":
            continue
        if found.kind != "python" and not found.words:
            continue
        key = (found.kind if found.kind == "python" else "", found.text)
        known = seen.get(key)
        if known is None or (known.output is None and found.output is not None):
            seen[key] = found
    shown_twice = [f for f in ALL if f.output and not f.not_run and f not in seen.values()]
    return [*seen.values(), *shown_twice]


RUN = runnable()


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which the repository's files are seen, and where outputs land."""
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("found", RUN, ids=[f"{found.where}" for found in RUN])
def test_runs_as_the_page_says(
    found: Shown, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if found.kind == "python":
        exec(compile(found.text, found.where, "exec"), {"__name__": "shown"})
        return
    code = run(found.words)
    captured = capsys.readouterr()
    if found.exit_code is None:
        assert code in (0, 1), captured.err
    else:
        assert code == found.exit_code, captured.err
    if found.output is not None:
        assert (message := difference(found.output, captured.out + captured.err)) is None, message
    if found.words[0] in ("report", "explore") and found.kind != "inline":
        (written,) = workplace.glob("*.html")
        page = html.unescape(written.read_text(encoding="utf-8"))
        assert " ".join(found.text.split()) in page, "the page names another command"


def test_what_is_not_run_says_why() -> None:
    reasons = Counter(found.not_run for found in ALL if found.not_run is not None)
    assert all(len(reason or "") > 10 for reason in reasons), reasons
    assert sum(reasons.values()) <= len(RUN) // 4, reasons


def test_other_programs_are_marked() -> None:
    for found in ALL:
        if found.kind != "python" and not found.words:
            assert found.not_run is not None, f"{found.where}: {found.text} needs <!-- not run: -->"


def test_no_command_hides_in_an_indented_block() -> None:
    for path in pages(ROOT):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not line.startswith(("    hybridplan ", "    $ ")), f"{path.name}:{number}"


def test_named_commands_exist() -> None:
    for found in ALL:
        if found.kind == "name":
            assert found.words[0].rstrip(",") in COMMANDS, found.where


def test_every_command_is_documented() -> None:
    shown = {found.words[0] for found in ALL if found.words and found.kind != "name"}
    assert set(COMMANDS) <= shown


def test_there_are_many() -> None:
    assert len(RUN) > 50
    assert sum(1 for found in RUN if found.output is not None) > 25


@pytest.mark.parametrize(
    "shown, printed, same",
    [
        (("a", "b"), "a\nb\n", True),
        (("a", "b"), "a\nb\nc\n", False),
        (("a", "..."), "a\nb\nc\n", True),
        (("...", "c"), "a\nb\nc\n", True),
        (("a", "...", "c"), "a\nb\nc\n", True),
        (("a", "...", "b", "...", "d"), "a\nb\nc\nd\n", True),
        (("a", "...", "c", "...", "b"), "a\nb\nc\nb\n", True),
        (("a", "...", "c", "...", "b"), "a\nb\nc\n", False),
        (("b", "..."), "a\nb\n", False),
        (("a", "...", "b"), "a\nb\nc\n", False),
        (("a",), "", False),
    ],
)
def test_difference(shown: tuple[str, ...], printed: str, same: bool) -> None:
    assert (difference(shown, printed) is None) is same
