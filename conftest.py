"""Options shared by every test folder.

Here and not in tests/, so that pytest knows them before it takes a folder for one of tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "hybridplan",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hybridplan")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        type=Path,
        default=None,
        metavar="DIR",
        help="replay every engine answer found below DIR instead of the committed ones; each test "
        "module picks up the files whose content it understands",
    )
    parser.addoption(
        "--cases",
        type=Path,
        default=None,
        metavar="FILE",
        help="reproduce this list of logged cases (the form of tests/golden/cases.json) instead of "
        "the committed one",
    )
    parser.addoption(
        "--configs",
        type=Path,
        default=None,
        metavar="DIR",
        help="check the config.json files (and SOURCES.md, PARAMS_REFERENCE.csv) of this folder "
        "instead of the shipped ones",
    )
