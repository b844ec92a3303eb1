"""Wheel and sdist: what they hold, and that the wheel alone answers."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import hybridplan
from hybridplan.cli import run

ROOT = Path(__file__).parents[2]
DATA = {"_model_configs": "model_configs", "_docs": "docs"}


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hatchling.builders.wheel import WheelBuilder

    target = str(tmp_path_factory.mktemp("wheel"))
    (built,) = WheelBuilder(str(ROOT)).build(directory=target, versions=["standard"])
    return Path(built)


@pytest.fixture(scope="module")
def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def test_the_wheel_is_the_package_and_its_data(members: set[str]) -> None:
    expected = {f"hybridplan/{name}" for name in files_below(ROOT / "hybridplan")}
    for inside, folder in DATA.items():
        expected |= {f"hybridplan/{inside}/{name}" for name in files_below(ROOT / folder)}
    info = f"hybridplan-{hybridplan.__version__}.dist-info"
    expected |= {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    expected |= {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"}
    assert members == expected


def test_nothing_stray_is_in_the_wheel(members: set[str]) -> None:
    kinds = {PurePosixPath(name).suffix for name in members if ".dist-info" not in name}
    code = {".py", ".typed", ".json", ".css", ".html", ".js"}
    assert kinds <= code | {".csv", ".md", ".jsonl", ".log", ".yaml"}


def test_one_version(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith("METADATA")]
        metadata = email.message_from_bytes(opened.read(name))
    assert metadata["Version"] == hybridplan.__version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    latest = re.search(r"^## (\S+)", changes, re.MULTILINE)
    assert latest is not None
    assert latest[1] == hybridplan.__version__


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"hybridplan {hybridplan.__version__}\n"


@pytest.mark.parametrize(
    "command, words",
    [
        ("ledger qwen3.5-0.8b", "12,288 B"),
        ("models", "qwen3.5-0.8b"),
        ("help", "exit-codes"),
        ("help vllm", "From a state to a block"),
    ],
)
def test_the_wheel_alone_answers(wheel: Path, tmp_path: Path, command: str, words: str) -> None:
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "site")
    where = "import hybridplan, sys; sys.stderr.write(hybridplan.__file__)"
    start = "from hybridplan.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", f"{where}; {start}", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert words in done.stdout
    assert done.stderr == str(tmp_path / "site" / "hybridplan" / "__init__.py")


def test_the_sdist_can_be_tested(tmp_path: Path) -> None:
    from hatchling.builders.sdist import SdistBuilder

    (built,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(built) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for folder in ("hybridplan", "model_configs", "docs"):
        assert {f"{folder}/{name}" for name in files_below(ROOT / folder)} <= names
    for name in ("LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "constraints.txt",
                 "conftest.py", "scripts/check", "tests/golden/cases.json",
                 "tests/data/schemas/ledger.v1.json"):  # fmt: skip
        assert name in names
    assert not [name for name in names if "__pycache__" in name or name.startswith(".ci")]
