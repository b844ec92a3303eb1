"""Configs damaged in every way we can think of: a spec, or one clean sentence, and quickly."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridplan.config import catalogue
from hybridplan.config.read import read_config
from hybridplan.config.spec import ModelSpec
from hybridplan.errors import ConfigError, InputError
from hybridplan.ledger.weights import weights

EXAMPLES_PER_CONFIG = 40
MOST_PATHS = 250

ODD_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    7,
    10**18,
    -(10**18),
    10**400,
    0.5,
    float("inf"),
    float("nan"),
    "",
    "32",
    "auto",
    "attention",
    [],
    {},
    [0],
    [1, 1, 1],
    ["linear_attention"],
    [[]],
    {"a": 1},
    [10**18] * 3,
]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += _paths(item, (*path, key))
    elif isinstance(value, list) and len(value) <= 200:
        for index in {0, len(value) // 2, len(value) - 1} - {-1}:
            if value:
                found += _paths(value[index], (*path, index))
    return found


def _parent(data: Any, path: tuple[Any, ...]) -> Any:
    for step in path[:-1]:
        data = data[step]
    return data


def _scaled(value: Any, factor: int) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value * factor
    if isinstance(value, list | str):
        return value * min(factor, 50)
    return value


@st.composite
def damages(draw: st.DrawFn, paths: list[tuple[Any, ...]]) -> list[tuple[str, Any, Any]]:
    """One to three steps: drop a key, put an odd value there, or scale what stands there."""
    steps = []
    for _ in range(draw(st.integers(1, 3))):
        action = draw(st.sampled_from(("drop", "retype", "scale", "stringify")))
        value = draw(st.sampled_from(ODD_VALUES)) if action == "retype" else None
        if action == "scale":
            value = draw(st.sampled_from((-1, 2, 3, 10, 1000, 10**12)))
        steps.append((action, draw(st.sampled_from(paths)), value))
    return steps


def _apply(data: Any, steps: list[tuple[str, Any, Any]]) -> Any:
    damaged = copy.deepcopy(data)
    for action, path, value in steps:
        try:
            parent = _parent(damaged, path)
            old = parent[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue
        if not isinstance(parent, dict | list):
            continue
        if action == "drop":
            del parent[path[-1]]
        elif action == "retype":
            parent[path[-1]] = copy.deepcopy(value)
        elif action == "scale":
            parent[path[-1]] = _scaled(old, value)
        else:
            parent[path[-1]] = str(old)
    return damaged


def _load(path: Path) -> tuple[Any, list[tuple[Any, ...]]]:
    data = json.loads(path.read_text(encoding="utf-8"))
    paths = _paths(data)
    return data, paths[:: len(paths) // MOST_PATHS + 1]


def _check(data: Any, name: str, *, weigh: bool = True) -> None:
    try:
        spec = read_config(data, file="mutant.json", name=name)
    except (ConfigError, InputError) as error:
        sentence = error.sentence
        assert "mutant.json" in sentence
        assert len(sentence) < 2000
    else:
        assert isinstance(spec, ModelSpec)
        assert 1 <= len(spec.layers) <= 4096
        assert spec.hidden_size >= 0
        assert not weigh or weights(spec).total_params >= 0


_SHIPPED = sorted(catalogue.folder().glob("*.json"))
_DATA = {path.stem: _load(path) for path in _SHIPPED}


@pytest.mark.parametrize("name", _DATA)
def test_every_key_dropped_and_retyped(name: str) -> None:
    """Each key of the text config dropped, and set to odd values of every type in turn."""
    data, paths = _DATA[name]
    for turn, path in enumerate(paths):
        _check(_apply(data, [("drop", path, None)]), name, weigh=False)
        for offset in range(3):
            odd = ODD_VALUES[(turn * 3 + offset) % len(ODD_VALUES)]
            _check(_apply(data, [("retype", path, odd)]), name, weigh=False)


@pytest.mark.parametrize("name", _DATA)
def test_random_damage(name: str) -> None:
    data, paths = _DATA[name]

    @settings(
        max_examples=EXAMPLES_PER_CONFIG,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(damages(paths))
    def damaged(steps: list[tuple[str, Any, Any]]) -> None:
        _check(_apply(data, steps), name)

    damaged()
