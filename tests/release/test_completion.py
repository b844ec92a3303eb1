"""Completion: installed by the program itself, and what the shells are offered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hybridplan.cli.completion import words_being_completed


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder whose bin/ holds the program."""
    program = tmp_path / "bin" / "hybridplan"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hybridplan "$@"\n')
    program.chmod(0o755)
    return tmp_path


def environment(home: Path, **more: str) -> dict[str, str]:
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    root = str(Path(__file__).parents[2])
    return {"HOME": str(home), "PATH": path, "PYTHONPATH": root, "TERM": "dumb", **more}


def offered(home: Path, line: str, shell: str) -> str:
    """What the shell's completion function is given for the last word of a line."""
    words = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_HYBRIDPLAN_COMPLETE": f"complete_{shell}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "hybridplan"],
        env=environment(home, **words),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_installs_and_completes(home: Path) -> None:
    script = """
        hybridplan --install-completion
        source ~/.bashrc
        ask() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _hybridplan_completion hybridplan
            echo "offered: ${COMPREPLY[*]}"
        }
        ask hybridplan led
        ask hybridplan ledger qwen3.8-2
        ask hybridplan plan qwen3.8-27b --prefix-m
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=environment(home),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (home / ".bash_completions" / "hybridplan.sh").is_file()
    assert [line for line in done.stdout.splitlines() if line.startswith("offered")] == [
        "offered: ledger",
        "offered: qwen3.8-27b",
        "offered: --prefix-match-unit",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_offered_models(home: Path, shell: str) -> None:
    assert "qwen3.8-27b" in offered(home, "hybridplan ledger qwen3.8-2", shell)


@pytest.mark.parametrize(
    "line, word",
    [
        ("hybridplan simulate --model kimi-l", "kimi-linear-48b-a3b-instruct"),
        ("hybridplan plan qwen3.8-27b --gpu h20", "h200"),
        ("hybridplan plan qwen3.8-27b --engine vllm@", "vllm@0.33"),
        ("hybridplan help exit-c", "exit-codes"),
        ("hybridplan schema sim", "simulate"),
        ("hybridplan trace conv", "convert"),
        ("hybridplan measure --cp", "--cpu"),
    ],
)
def test_values(home: Path, line: str, word: str) -> None:
    assert word in offered(home, line, "bash").split()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_install(home: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run(
        [shell, "-c", "hybridplan --install-completion; true"],
        env=environment(home),
        capture_output=True,
        check=True,
    )
    place = {"zsh": ".zfunc/_hybridplan", "fish": ".config/fish/completions/hybridplan.fish"}
    assert "_HYBRIDPLAN_COMPLETE" in (home / place[shell]).read_text()


def test_an_ordinary_run_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_HYBRIDPLAN_COMPLETE", raising=False)
    assert words_being_completed() is None
