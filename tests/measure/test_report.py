"""What a result looks like: the table, the sentence at its end, the picture."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hybridplan.errors import InputError
from hybridplan.measure.result import (
    SCHEMA_VERSION,
    Clocks,
    Device,
    MeasureResult,
    Point,
    Series,
    compared,
    failed,
    noted,
    skipped,
)
from hybridplan.report.measure import amount, screen, verdict
from hybridplan.report.measure_plot import curves, has_curves

CLOCKS = Clocks(1980, 3201, 41, 410.0, ("sw_power_cap",))
DEVICE = Device(
    "a card", 0, "9.0", 143 << 30, 140 << 30, 0, 0, 60 << 20, 132, 0, "580", "13.0", "2.11", "3.6",
    "5.17", "3.12", None, CLOCKS,
)  # fmt: skip
RESULT = MeasureResult(
    SCHEMA_VERSION, "m", "gpu", True, "2026-11-29", True, 12.3, DEVICE, "whole stack",
    (
        compared("bytes", "planned pool", "w", 1024, 1024, "B", 0.0, "h"),
        compared("decode", "step", "w", 100.0, 140.0, "us", 0.15, "h", spread=0.01),
        compared("state precision", "fp32 pool", "w", 1e-5, 2e-7, "relative error", 0.0, "h",
                 sense="at most"),
        noted("prefill", "chunk", "w", 108_544, "FLOP/token", "h"),
        skipped("transfer", "GPU to GPU", "w", "one CUDA device is present"),
        failed("drafts", "out of memory", "w", "2 GiB was asked for"),
    ),
    (Series("decode", "linear", "context tokens", "us",
            (Point(1024, 5.0, 4.0), Point(2048, 5.1, None))),),
    None, None, ("other processes hold memory",),
)  # fmt: skip


def shown(result: MeasureResult) -> str:
    """The screen at the width of a pipe."""
    out = io.StringIO()
    console = Console(file=out, width=110, highlight=False)
    for part in screen(result):
        console.print(part)
    return out.getvalue()


def test_the_table_has_predicted_measured_error_tolerance_and_verdict() -> None:
    text = shown(RESULT)
    step = next(line for line in text.splitlines() if line.startswith("decode"))
    assert step.split() == ["decode", "step", "100", "us", "140", "us", "+40.0%", "15%", "outside"]
    pool = next(line for line in text.splitlines() if line.startswith("bytes"))
    assert pool.split()[-3:] == ["0", "exact", "within"]
    assert "<= 1.0e-05" in text
    assert "after: SM 1980 MHz, memory 3201 MHz, 41 C, sw_power_cap" in text
    assert "transfer, GPU to GPU: one CUDA device is present" in text
    assert "other processes hold memory" in text


def test_the_sentence_names_what_is_outside() -> None:
    assert verdict(RESULT) == (
        "2 of 4 checks are within their tolerance, 12 s. Outside: decode: step, drafts: out of "
        "memory."
    )
    good = replace(RESULT, checks=RESULT.checks[:1])
    assert verdict(good) == "1 of 1 checks are within their tolerance, 12 s."
    assert not RESULT.agrees
    assert good.agrees


@pytest.mark.parametrize(
    "value,unit,text",
    [
        (None, "B", "-"),
        (19_537_920, "B", "19,537,920 B"),
        (2.3e-7, "relative error", "2.3e-07"),
        (0.113, "share", "0.113"),
        (37.254, "us", "37.25 us"),
        (12_345.6, "us", "12,346 us"),
    ],
)
def test_amounts(value: float | None, unit: str, text: str) -> None:
    assert amount(value, unit) == text


def test_the_picture_is_drawn_twice_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        curves(RESULT, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_without_curves_there_is_no_picture(tmp_path: Path) -> None:
    bare = replace(RESULT, series=())
    assert not has_curves(bare)
    with pytest.raises(InputError, match="no times to draw"):
        curves(bare, tmp_path / "a.svg")
