"""A calibration file of a stranger: every fault is one sentence that names the file and the key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hybridplan.errors import InputError
from hybridplan.ledger.calibration import Calibration, load, preset, save
from hybridplan.ledger.gpu import find_gpu


def _constant(**changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["constants"]["step.bytes"].update(changed)


def _all_zero(raw: dict[str, Any]) -> None:
    for constant in raw["constants"].values():
        constant["value"] = 0


CONSTANT = {"value": 1e-9, "unit": "s", "spread": None, "how": "h"}
FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a key too few": (lambda raw: raw.pop("card"), "lacks the key 'card'"),
    "a key too many": (lambda raw: raw.update(foo=1), "has an unknown key 'foo'"),
    "another kind": (lambda raw: raw.update(kind="ledger"), "is not a calibration"),
    "a later version": (lambda raw: raw.update(schema_version=9), "has schema_version 9"),
    "no name of a card": (lambda raw: raw.update(card=None), "card is None, not text"),
    "an error in words": (lambda raw: raw.update(mean_error="x"), "mean_error is .x., not"),
    "a list of constants": (lambda raw: raw.update(constants=[1]), r"constants is \[1\]"),
    "a constant that is a number": (
        lambda raw: raw["constants"].update({"step.bytes": 1e-12}), "step.bytes is no object"
    ),
    "not a number": (_constant(value=float("nan")), "step.bytes: value is nan"),
    "infinite": (_constant(value=float("inf")), "step.bytes: value is inf"),
    "beyond floats": (_constant(value=10**400), "step.bytes: value is 1000"),
    "negative": (_constant(value=-1e-12), "step.bytes: value is -1e-12 and cannot be neg"),
    "a negative rate": (
        lambda raw: raw["constants"].update({"link.in_bytes_per_s": CONSTANT | {"value": -5}}),
        "link.in_bytes_per_s: value is -5 and cannot be negative",
    ),
    "a negative error": (lambda raw: raw.update(mean_error=-0.1), "mean_error is -0.1 and cannot"),
    "points fewer than none": (lambda raw: raw.update(fitted_points=-1), "fitted_points is -1"),
    "a version with a fraction": (
        lambda raw: raw.update(schema_version=1.0), "schema_version is 1.0, not a whole number"
    ),
    "a feature that no step has": (
        lambda raw: raw["constants"].update({"step.magic": CONSTANT}), "is of no known feature"
    ),
    "longer than any step": (_constant(value=1e9), "must be from 0 to"),
    "a string": (_constant(value="1e-12"), "value is '1e-12', not a number"),
    "a truth": (_constant(value=True), "value is True, not a number"),
    "nothing": (_constant(value=None), "value is None, not a number"),
    "steps that take no time": (_all_zero, "every constant of a step is 0"),
}  # fmt: skip


def _raw() -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(json.dumps(asdict(preset(find_gpu("h200")))))
    return raw


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_is_refused_by_name(fault: str, tmp_path: Path) -> None:
    raw, path = _raw(), tmp_path / "c.json"
    change, said = FAULTS[fault]
    change(raw)
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(InputError, match=said) as found:
        load(path)
    assert str(path) in found.value.sentence


@pytest.mark.parametrize(
    "content, said",
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"\x80\xff\x00{", "is not UTF-8", id="binary"),
        pytest.param(b"[" * 100_000, "nests deeper", id="deep"),
        pytest.param(b'{"kind": ' + b"9" * 5000 + b"}", "5,000 digits", id="long number"),
        pytest.param(b"[1]", "must hold one JSON object, not a list", id="list"),
        pytest.param(b"null", "must hold one JSON object, not null", id="null"),
        pytest.param(b"{", "not valid JSON", id="cut short"),
    ],
)
def test_what_is_no_json_object_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        load(path)


def test_both_makers_of_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="measure --save, or with hybridplan calibrate --save"):
        load(path)


def test_a_constant_of_zero_among_others_is_a_fit(tmp_path: Path) -> None:
    made: Calibration = preset(find_gpu("h200"))
    step = replace(made.constants["step.step"], value=0.0)
    made = replace(made, constants={**made.constants, "step.step": step})
    save(made, tmp_path / "c.json")
    assert load(tmp_path / "c.json") == made
