"""The independent layer table of model_configs/SOURCES.md, row by row.

The table counts K convolution columns everywhere, as it says transformers does. For RG-LRU
transformers keeps K - 1 (test_transformers_cache), so that column is put back here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridplan import Deployment, ledger, load
from hybridplan.config.spec import (
    Attention,
    CompressedAttention,
    GatedMemoryUnit,
    LatentAttention,
    ModelSpec,
)

SOURCES = Path(__file__).parent.parent.parent / "model_configs" / "SOURCES.md"
HEADING = "## Layer and memory table"
COLUMNS = (
    "layers",
    "full",
    "windowed",
    "recurrent",
    "parallel",
    "other",
    "kv",
    "window_kv",
    "state",
    "conv",
)

# Cells where the table is wrong, with what is right and why.
CORRECTED = {
    # v_head_dim is 128 (SOURCES.md, note of the file): only so does the parameter count come out,
    # so an owning layer stores 5 x (64 + 128) elements a token and not 5 x 128.
    "hymba-1.5b-base": {"kv": 3 * 5 * 192, "window_kv": 14 * 5 * 192},
    # 54 layers with a state and 9 with attention are 54 layers only if the 9 have both, as the row
    # of the same model in its Hugging Face form says.
    "zamba2-2.7b-original-format": {"parallel": 9},
}


def _rows() -> list[Any]:
    section = SOURCES.read_text().split(HEADING)[1].split("\n## ")[0]
    rows = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 11 or not cells[1].replace(",", "").isdigit():
            continue
        said = {
            name: int(cell.replace(",", ""))
            for name, cell in zip(COLUMNS, cells[1:11], strict=True)
            if cell != "-"
        }
        rows.append(pytest.param(cells[0], said, id=cells[0]))
    return rows


def _layer_counts(spec: ModelSpec) -> dict[str, int]:
    counts = dict.fromkeys(COLUMNS[:6], 0)
    counts["layers"] = len(spec.layers)
    for layer in spec.layers:
        windowed = full = recurrent = False
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                windowed |= mixer.window is not None
                full |= mixer.window is None and mixer.kv_source_layer is None
            elif isinstance(mixer, LatentAttention):
                full = True
            elif isinstance(mixer, CompressedAttention):
                windowed |= mixer.compress_ratio == 0
                full |= mixer.compress_ratio > 0
            elif not isinstance(mixer, GatedMemoryUnit):
                recurrent = True
        counts["full"] += full
        counts["windowed"] += windowed
        counts["recurrent"] += recurrent
        counts["parallel"] += recurrent and (full or windowed)
        counts["other"] += not (full or windowed or recurrent)
    return counts


def _elements(name: str) -> dict[str, int]:
    """Elements as transformers stores them: K columns; index caches are left out."""
    account = ledger(load(name), Deployment(engine="transformers"))
    found = dict.fromkeys(COLUMNS[6:], 0)
    for layer in account.layers:
        for cache in layer.tokens:
            if cache.name != "index":
                found["window_kv" if cache.window else "kv"] += cache.elements_per_entry
        for state in layer.states:
            if state.name == "state":
                found["state"] += state.elements
            elif state.name in ("conv", "token_shift"):
                found["conv"] += state.elements
                if state.name == "conv" and layer.sign == "R":
                    found["conv"] += state.shape[1]
    return found


@pytest.mark.parametrize("name, said", _rows())
def test_row(name: str, said: dict[str, int]) -> None:
    found = {**_layer_counts(load(name)), **_elements(name)}
    expected = {**said, **CORRECTED.get(name, {})}
    assert {column: found[column] for column in expected} == expected
