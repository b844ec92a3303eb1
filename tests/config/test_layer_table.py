"""The independent layer table at the end of SOURCES.md, every row against our reading.

The account of elements here is a second, plain one: it shares no code with hybridplan.ledger.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from pathlib import Path

import pytest

from hybridplan.config import catalogue
from hybridplan.config.read import read_file
from hybridplan.config.spec import Mixer, ModelSpec


@dataclass(frozen=True)
class Row:
    """The columns of the layer table in SOURCES.md."""

    layers: int
    full: int
    windowed: int
    recurrent: int
    parallel: int
    other: int
    kv: int
    windowed_kv: int
    state: int
    conv: int


def _attends(mixer: Mixer) -> bool:
    return mixer.kind in ("attention", "mla", "compressed")


def _is_windowed(mixer: Mixer) -> bool:
    if mixer.kind == "compressed":
        return mixer.compress_ratio == 0
    return getattr(mixer, "window", None) is not None


def _kv_elements(mixer: Mixer) -> int:
    if mixer.kind == "attention" and mixer.kv_source_layer is None:
        return mixer.kv_heads * (mixer.key_dim + mixer.value_dim)
    if mixer.kind == "mla":
        return mixer.kv_lora_rank + mixer.rope_dim
    return 0


def _state_elements(m: Mixer) -> tuple[int, int]:
    """State and convolution (K columns) of a recurrent mixer."""
    match m.kind:
        case "gdn":
            channels = 2 * m.key_heads * m.key_dim + m.value_heads * m.value_dim
            return m.value_heads * m.key_dim * m.value_dim, channels * m.conv_kernel
        case "kda":
            return m.heads * m.head_dim**2, 3 * m.heads * m.head_dim * m.conv_kernel
        case "lightning":
            return m.heads * m.head_dim**2, 0
        case "mamba1":
            return m.inner * m.state_dim, m.inner * m.conv_kernel
        case "mamba2":
            groups = 2 * m.groups * m.state_dim if m.conv_over_groups else 0
            inner = m.heads * m.head_dim
            return inner * m.state_dim, (inner + groups) * m.conv_kernel
        case "rglru":
            return m.lru_width, m.lru_width * m.conv_kernel
        case "short_conv":
            return 0, m.channels * m.conv_kernel
        case "rwkv7":
            return m.heads * m.head_dim**2, 2 * m.heads * m.head_dim
        case "state":
            return m.state_elements, m.conv_channels * m.conv_kernel
        case kind:
            raise AssertionError(kind)


def row(spec: ModelSpec) -> Row:
    """Count a model's layers by kind. A layer that only reads another's KV in full is "other"."""
    full = windowed = recurrent = parallel = other = kv = windowed_kv = state = conv = 0
    for layer in spec.layers:
        attends = recurs = False
        for mixer in layer.mixers:
            if mixer.kind == "gmu":
                continue
            if not _attends(mixer):
                recurs = True
                elements = _state_elements(mixer)
                state, conv = state + elements[0], conv + elements[1]
            elif _is_windowed(mixer):
                attends = True
                windowed += 1
                windowed_kv += _kv_elements(mixer)
            elif getattr(mixer, "kv_source_layer", None) is None:
                attends = True
                full += 1
                kv += _kv_elements(mixer)
        recurrent += recurs
        parallel += attends and recurs
        other += not attends and not recurs
    return Row(
        len(spec.layers),
        full,
        windowed,
        recurrent,
        parallel,
        other,
        kv,
        windowed_kv,
        state,
        conv,
    )


COLUMNS = [field.name for field in fields(Row)]

# Cells of the table that are wrong, with the proof. Everything else must agree.
WRONG: dict[tuple[str, str], tuple[int, str]] = {
    ("zamba2-2.7b-original-format", "parallel"): (
        9,
        "the row itself has 9 full and 54 recurrent layers of 54, so 9 must hold both; the same "
        "checkpoint in its later form has 9 in the table",
    ),
    ("hymba-1.5b-base", "kv"): (
        2880,
        "V heads are 128 wide, not 64: only then is the parameter count the published "
        "1,522,797,824 exactly (17 own-KV layers x 5 heads x 64 x 1,600 = 8,704,000 more)",
    ),
    ("hymba-1.5b-base", "windowed_kv"): (13440, "V heads are 128 wide, see kv"),
}


def table(text: str) -> dict[str, list[str]]:
    lines = text.split("## Layer and memory table")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0]: cells[1:] for cells in rows if len(cells) == 12 and cells[1].isdigit()}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = metafunc.config.getoption("--configs") or catalogue.folder()
    sources = folder / "SOURCES.md"
    rows = table(sources.read_text(encoding="utf-8")) if sources.is_file() else {}
    if "table_row" in metafunc.fixturenames:
        metafunc.parametrize("table_row", list(rows.items()), ids=list(rows))


def test_row_agrees(table_row: tuple[str, list[str]], configs: Path) -> None:
    name, cells = table_row
    found = row(read_file(configs / f"{name}.json"))
    for column, cell, ours in zip(COLUMNS, cells, astuple(found), strict=False):
        expected = int(cell.replace(",", "")) if cell != "-" else None
        corrected = WRONG.get((name, column))
        if corrected is not None and ours == corrected[0]:
            continue
        if expected is not None:
            assert ours == expected, column


def test_the_whole_table_is_read() -> None:
    text = (catalogue.folder() / "SOURCES.md").read_text(encoding="utf-8")
    assert len(table(text)) == 87


def test_both_forms_of_zamba2_hold_the_same(configs: Path) -> None:
    paths = [configs / f"zamba2-2.7b{form}.json" for form in ("", "-original-format")]
    if not all(path.is_file() for path in paths):
        pytest.skip("this folder lacks one of the forms")
    assert row(read_file(paths[0])) == row(read_file(paths[1]))
