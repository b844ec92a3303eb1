"""Tests with ``config_path`` run once per config, of --configs DIR or the shipped ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridplan.config import catalogue


def config_folder(config: pytest.Config) -> Path:
    return config.getoption("--configs") or catalogue.folder()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "config_path" in metafunc.fixturenames:
        paths = sorted(config_folder(metafunc.config).glob("*.json"))
        metafunc.parametrize("config_path", paths, ids=[path.stem for path in paths])


@pytest.fixture(scope="session")
def configs(request: pytest.FixtureRequest) -> Path:
    return config_folder(request.config)
