"""Verdicts, errors and the calibration file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.ledger.calibration import KIND, SCHEMA_VERSION, Calibration, Constant, load, save
from hybridplan.measure.result import Sense, compared, noted

CALIBRATION = Calibration(
    SCHEMA_VERSION, KIND, "m", "card", "580", {"torch": "2"}, "2026-11-29", {"sm": 1980},
    {"step.step": Constant(2e-5, "s", 1e-6, "fit"), "step.bytes": Constant(2.5e-13, "s", None, "")},
    4, 4, 0.05, 0.2,
)  # fmt: skip


@pytest.mark.parametrize(
    "sense,predicted,measured,tolerance,verdict",
    [
        pytest.param("near", 100, 100, 0.0, "within", id="exact"),
        pytest.param("near", 100, 101, 0.0, "outside", id="one byte more"),
        pytest.param("near", 100, 86, 0.15, "within", id="inside the tolerance"),
        pytest.param("near", 100, 84, 0.15, "outside", id="beyond the tolerance"),
        pytest.param("near", 0, 0, 0.0, "within", id="none expected"),
        pytest.param("near", 0, 2, 0.0, "outside", id="some where none was expected"),
        pytest.param("at most", 1e-5, 1e-7, 0.0, "within", id="under a bound"),
        pytest.param("at most", 1e-5, 2e-5, 0.0, "outside", id="over a bound"),
        pytest.param("at least", 0.01, 0.8, 0.0, "within", id="over a least"),
        pytest.param("at least", 0.01, 0.001, 0.0, "outside", id="under a least"),
        pytest.param("at most", 1.0, math.nan, 0.5, "outside", id="not a number"),
        pytest.param("near", 1.0, math.inf, 0.5, "outside", id="infinite"),
    ],
)
def test_verdict(
    sense: Sense, predicted: float, measured: float, tolerance: float, verdict: str
) -> None:
    check = compared("c", "n", "w", predicted, measured, "u", tolerance, "h", sense=sense)
    assert check.verdict == verdict
    assert check.measured is None or math.isfinite(check.measured)


@pytest.mark.parametrize(
    "predicted,measured,spread,said",
    [
        pytest.param(math.nan, 1.0, 0.1, "the prediction is not a finite number", id="prediction"),
        pytest.param(
            1.0, math.nan, 0.1, "the measurement is not a finite number", id="measurement"
        ),
        pytest.param(1.0, 1.0, math.inf, "the spread is not a finite number", id="spread"),
    ],
)
def test_no_number_is_outside_and_fits_into_json(
    predicted: float, measured: float, spread: float, said: str
) -> None:
    check = compared("c", "n", "w", predicted, measured, "u", 0.5, "h", spread=spread)
    assert check.verdict == "outside"
    assert check.notes == (said,)
    json.dumps(asdict(check), allow_nan=False)


def test_a_figure_without_prediction_that_is_no_number_failed() -> None:
    assert noted("c", "n", "w", 2.0, "u", "h").verdict == "noted"
    assert noted("c", "n", "w", math.inf, "u", "h").verdict == "failed"


@given(st.floats(0.1, 1e9), st.floats(0.1, 1e9), st.floats(0, 2))
def test_near_is_the_definition(predicted: float, measured: float, tolerance: float) -> None:
    check = compared("c", "n", "w", predicted, measured, "u", tolerance, "h")
    away = abs(measured / predicted - 1)
    assert check.error == measured / predicted - 1
    assert (check.verdict == "within") == (away <= tolerance)


def test_a_calibration_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    save(CALIBRATION, path)
    assert load(path) == CALIBRATION


def test_a_calibration_predicts_and_refuses_what_it_has_no_constant_for() -> None:
    assert CALIBRATION.seconds({"step": 1.0, "bytes": 4e8}) == pytest.approx(1.2e-4)
    with pytest.raises(InputError, match="no constant for 'launches'"):
        CALIBRATION.seconds({"launches": 3.0})


@pytest.mark.parametrize(
    "text,said",
    [
        ("{", "is not valid JSON"),
        ("[]", "must hold one JSON object"),
        (json.dumps({"kind": KIND, "schema_version": 9}), "schema_version 9"),
        (json.dumps({"kind": KIND, "schema_version": 1}), "lacks the key 'model'"),
    ],
    ids=["half a file", "another file", "a later version", "keys missing"],
)
def test_a_bad_calibration_is_refused_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load(path)


def test_a_missing_calibration_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "none.json")
    with pytest.raises(InputError, match="--save"):
        save(replace(CALIBRATION), tmp_path / "none" / "c.json")
