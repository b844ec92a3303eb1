"""The plan beside what vLLM 0.32.0 and 0.33.0 answered, field by field and log line by log line."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "golden"


def load_cases() -> ModuleType:
    """The adapter beside this file."""
    spec = importlib.util.spec_from_file_location("engine_cases", HERE / "engine_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


engine_cases = load_cases()


def answers(folder: Path) -> dict[str, dict[str, Any]]:
    """Every stored answer about groups below a folder, by version and name."""
    found = {}
    for path in sorted(folder.rglob("*.json")):
        data = json.loads(path.read_text())
        if isinstance(data, dict) and data.get("kind") == "groups":
            found[f"{data['result']['vllm_version']}-{data['name']}"] = data
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = metafunc.config.getoption("--golden") or GOLDEN
    cases = answers(folder)
    metafunc.parametrize("answer", cases.values(), ids=cases.keys())


def test_the_plan_is_the_engines(answer: dict[str, Any]) -> None:
    version = answer["result"]["vllm_version"]
    assert engine_cases.differences(answer["case"], answer["result"], version) == []
