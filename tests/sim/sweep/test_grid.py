"""Grids: which cells they hold, and what a cell's key depends on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hybridplan.errors import InputError
from hybridplan.sim.sweep.grid import expand, laid_over, parse_assignment, read_grid

TRACE = Path(__file__).parents[2] / "data" / "traces" / "sample_lmcache_agent_miniswe.jsonl"
BASE: dict[str, object] = {"trace": str(TRACE), "model": "qwen3.5-0.8b"}


def test_product_of_lists_without_doubles() -> None:
    grid = expand({**BASE, "memory": ["1GiB", "2GiB", "2048MiB"], "engine": ["vllm", "vllm@0.33"]})
    assert [cell.settings["kv_memory"] for cell in grid.cells] == [1 << 30, 2 << 30]
    assert grid.varied == ("kv_memory",)


def test_a_setting_an_engine_lacks_is_not_varied_there() -> None:
    grid = expand({**BASE, "engine": ["vllm", "sglang"], "block": [64, 128], "page": [1, 64]})
    assert [cell.settings["engine"] for cell in grid.cells] == ["vllm@0.33"] * 2 + [
        "sglang:auto"
    ] * 2
    assert len(grid.notes) == 2
    assert "block_size is no setting of sglang:auto" in grid.notes[0] + grid.notes[1]


def test_cells_lay_further_grids_over_the_rest() -> None:
    grid = expand(
        {
            **BASE,
            "kv_memory": ["1GiB", "2GiB"],
            "cells": [{"engine": "vllm", "retention": [0, "none"]}, {"engine": "marconi:paper"}],
        }
    )
    assert len(grid.cells) == 6


def test_flags_replace_what_a_grid_says_in_its_cells_too() -> None:
    grid = {**BASE, "memory": ["1GiB", "2GiB"], "cells": [{"engine": "vllm", "unit": [16, 64]}]}
    over = laid_over(grid, {"kv_memory": ["4GiB"], "prefix_match_unit": [32]})
    cell = {"engine": "vllm@0.33", "kv_memory": 4 << 30, "prefix_match_unit": 32}
    (found,) = expand(over).cells
    assert {name: found.settings[name] for name in cell} == cell
    (other,) = expand(laid_over(over, {"engine": ["sglang"]})).cells
    assert other.settings["engine"] == "sglang:auto"


def test_key_follows_content_and_not_paths(tmp_path: Path) -> None:
    moved = tmp_path / "other.jsonl"
    shutil.copy(TRACE, moved)
    first, second = expand(BASE).cells[0], expand({**BASE, "trace": str(moved)}).cells[0]
    assert first.key == second.key
    moved.write_text(moved.read_text() + "\n")
    assert expand({**BASE, "trace": str(moved)}).cells[0].key != first.key


def test_a_calibration_counts_by_content_and_a_preset_by_name(tmp_path: Path) -> None:
    def key(calibration: str) -> str:
        return expand({**BASE, "calibration": calibration}).cells[0].key

    here, there = tmp_path / "a.json", tmp_path / "b.json"
    for path in (here, there):
        path.write_text("{}")
    first = key(str(here))
    assert first == key(str(there)) != key("preset:h100")
    assert key("preset:H100") == key("preset:h100") != key("preset:l4")
    here.write_text("{ }")
    assert key(str(here)) != first
    with pytest.raises(InputError, match="calibration /nowhere cannot be read"):
        key("/nowhere")


@pytest.mark.parametrize(
    "change",
    [
        {"model": "kimi-linear-48b-a3b"},
        {"kv_memory": "1GiB"},
        {"engine": "vllm@0.32"},
        {"limit": 3},
        {"arrival": "closed:2"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_key_changes_with_every_setting(change: dict[str, object]) -> None:
    assert expand({**BASE, **change}).cells[0].key != expand(BASE).cells[0].key


def test_key_changes_with_what_is_asked() -> None:
    keys = {expand(BASE, bounds=b, losses=a).cells[0].key for b in (0, 1) for a in (0, 1)}
    assert len(keys) == 4


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"grid{suffix}"
    if suffix == ".yaml":
        pytest.importorskip("yaml")
        path.write_text("engine: [vllm, sglang]\nkv_memory: 4GiB\nretention: none\n")
    else:
        path.write_text(json.dumps({"engine": ["vllm", "sglang"], "kv_memory": "4GiB"}))
    found = read_grid(path)
    assert found["engine"] == ["vllm", "sglang"]
    assert len(expand({**BASE, **found}).cells) == 2


@pytest.mark.parametrize(
    "grid, words",
    [
        ({"modle": "x"}, "closest are model"),
        ({"engine": []}, "engine has no value"),
        ({"cells": "vllm"}, "cells must be a list"),
        ({"cells": [3]}, "maps no setting"),
        ({"trace": "/nowhere"}, "/nowhere cannot be read"),
        ({"kv_memory": "42"}, "has no unit"),
        ({"kv_memory": 0}, "kv_memory 0 is no size in bytes from 1"),
        ({"kv_memory": -5}, "kv_memory -5 is no size"),
        ({"kv_memory": 1 << 61}, "to 1 EiB"),
        ({"kv_memory": "4GiB", "memory": "4GiB"}, "kv_memory and memory are one setting"),
        ({"cells": [{"unit": 16, "prefix-match-unit": 32}]}, "unit and prefix-match-unit are one"),
        ({"subagents": "perhaps"}, "neither true nor false"),
        ({"ratio": "0/1"}, "must be above 0"),
        ({"trace": None}, "needs a trace"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_no_grid(grid: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        expand({**BASE, **grid})


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("grid.toml", "", "must end in .yaml"),
        ("grid.json", "{", "is not JSON"),
        ("grid.json", "[1]", "must map settings"),
        ("absent.json", None, "cannot be read"),
    ],
)
def test_what_is_no_grid_file(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        read_grid(tmp_path / name)


def test_assignments() -> None:
    assert parse_assignment("ratio=0.5,2") == ("mamba_full_memory_ratio", ["0.5", "2"])
    with pytest.raises(InputError, match="NAME=VALUE"):
        parse_assignment("ratio")
