"""Tests with ``config_path`` run once per config, of --configs DIR or the shipped ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridplan.config import catalogue
from hybridplan.config.read import read_config
from hybridplan.config.spec import ModelSpec


def config_folder(config: pytest.Config) -> Path:
    return config.getoption("--configs") or catalogue.folder()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "config_path" in metafunc.fixturenames:
        paths = sorted(config_folder(metafunc.config).glob("*.json"))
        metafunc.parametrize("config_path", paths, ids=[path.stem for path in paths])


@pytest.fixture(scope="session")
def configs(request: pytest.FixtureRequest) -> Path:
    return config_folder(request.config)


Config = dict[str, Any]


@pytest.fixture(scope="session")
def published() -> Callable[[str], Config]:
    """A shipped config, parsed."""

    def parsed(name: str) -> Config:
        path = catalogue.entries()[name].path
        data: Config = json.loads(path.read_text(encoding="utf-8"))
        return data

    return parsed


@pytest.fixture(scope="session")
def changed(published: Callable[[str], Config]) -> Callable[..., Config]:
    """A shipped config with keys of its text part replaced; the value "<drop>" removes a key."""

    def with_changes(name: str, **changes: Any) -> Config:
        data = published(name)
        text = data.get("text_config", data)
        text.update({key: value for key, value in changes.items() if value != "<drop>"})
        for key in [key for key, value in changes.items() if value == "<drop>"]:
            text.pop(key, None)
        return data

    return with_changes


@pytest.fixture(scope="session")
def read() -> Callable[[Config], ModelSpec]:
    """The spec of a parsed config, called config.json in errors."""
    return lambda data: read_config(data, file="config.json", name="x")
