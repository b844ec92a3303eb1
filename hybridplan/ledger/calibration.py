"""Constants of step time: fitted by ``measure --save`` to steps of a card, by ``calibrate --save``
to a log of requests, or assumed from a card's datasheet.

A step takes the sum of its counts (``ledger.work.FEATURES``) times a constant each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hybridplan.config.jsonfile import parse_object
from hybridplan.errors import InputError
from hybridplan.ledger.gpu import Gpu, find_gpu, gpus
from hybridplan.ledger.work.features import FEATURES

SCHEMA_VERSION = 1
KIND = "hybridplan calibration"
FROM_LOG = "fitted to "
"""How a constant begins to say where it is from, if that is a log of requests."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One fitted number. ``spread`` in the same unit: half the range that leaving out single points
    gives, or the difference between two rounds; None where it was measured once."""

    value: float
    unit: str
    spread: float | None
    how: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants of a time model on one card with one model's layers.

    ``constants`` by name; those of the step time are ``step.<feature>`` in seconds per unit of the
    feature. ``mean_error`` and ``worst_error`` are those of the points left out of the fit: of the
    time of steps, or of the TPOT of requests where they were fitted to a log.
    """

    schema_version: int
    kind: str
    model: str
    card: str
    driver: str
    versions: Mapping[str, str]
    date: str
    clocks_mhz: Mapping[str, int]
    constants: Mapping[str, Constant]
    fitted_points: int
    judged_points: int
    mean_error: float | None
    worst_error: float | None

    @property
    def assumed(self) -> bool:
        """Whether nothing was measured: a preset."""
        return self.fitted_points == 0

    def step_seconds(self, feature: str) -> float:
        """Seconds a unit of one feature. Raises InputError where the file has none."""
        found = self.constants.get(f"step.{feature}")
        if found is None:
            raise InputError(
                f"the calibration of {self.card} (made with {self.model}) has no constant"
                f" step.{feature}, which this model needs; measure a model with such layers, or use"
                " preset:CARD"
            )
        return found.value

    def seconds(self, features: Mapping[str, float]) -> float:
        """Step time for the features of a step (see ``ledger.work.FEATURES``), in seconds."""
        known = {name.removeprefix("step."): c for name, c in self.constants.items()}
        missing = sorted(set(features) - set(known))
        if missing:
            raise InputError(f"the calibration of {self.card} has no constant for {missing[0]!r}")
        return sum(known[name].value * amount for name, amount in features.items())


PRESET = "preset:"
_STEP_S = 1e-3
_LAUNCH_S = 1.8e-6
_BANDWIDTH_SHARE = 0.80
_FLOP_SHARES = {"dense_flop": 0.60, "attention_flop": 0.40, "scan_flop": 0.15}


def preset(gpu: Gpu, flop_dtype: str = "bf16") -> Calibration:
    """Constants of a card from its published bandwidth and FLOP rate; every one is assumed.

    ``flop_dtype`` is what products of weights run in; attention and recurrent layers run in bf16.
    Raises InputError for a card without a rate for it.
    """
    known = gpu.flops_per_s
    constants = {
        "step.step": Constant(_STEP_S, "s", None, "assumed: host work between two steps"),
        "step.launches": Constant(
            _LAUNCH_S, "s a kernel launched", None, "assumed: a kernel inside a CUDA graph"
        ),
        "step.bytes": Constant(
            1 / (_BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s), FEATURES["bytes"], None,
            f"assumed: {_BANDWIDTH_SHARE:.0%} of the {gpu.bandwidth_bytes_per_s / 1e12:.3g} TB/s"
            f" published for {gpu.title}",
        ),
    }  # fmt: skip
    for feature, share in _FLOP_SHARES.items():
        dtype = flop_dtype if feature == "dense_flop" else "bf16"
        rate = known.get(dtype)
        if rate is None:
            raise InputError(
                f"no {dtype} rate is known of {gpu.title} (known: {', '.join(known)}), so"
                f" {PRESET}{gpu.name} cannot time {feature}; measure the card with --save"
            )
        constants[f"step.{feature}"] = Constant(
            1 / (share * rate), FEATURES[feature], None,
            f"assumed: {share:.0%} of its {rate / 1e12:,.4g} TFLOP/s in {dtype}",
        )  # fmt: skip
    return Calibration(
        schema_version=SCHEMA_VERSION,
        kind=KIND,
        model="",
        card=gpu.title,
        driver="",
        versions={},
        date="",
        clocks_mhz={},
        constants=constants,
        fitted_points=0,
        judged_points=0,
        mean_error=None,
        worst_error=None,
    )


def card_of(calibration: Calibration) -> Gpu | None:
    """The published card of a calibration, by its title or its name; None for an unknown one."""
    plain = calibration.card.lower().removeprefix("nvidia ").replace(" ", "-")
    known = gpus()
    by_title = {gpu.title: gpu for gpu in known.values()}
    return by_title.get(calibration.card) or known.get(plain)


def read_calibration(text: str, flop_dtype: str = "bf16") -> Calibration:
    """``--calibration``: a file of ``measure --save``, or ``preset:CARD``."""
    if text.lower().startswith(PRESET):
        return preset(find_gpu(text[len(PRESET) :]), flop_dtype)
    return load(Path(text))


def save(calibration: Calibration, path: Path) -> None:
    """Write the file. Raises InputError where it cannot be written."""
    text = json.dumps(asdict(calibration), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--save {path}: cannot be written ({error.strerror})") from None


def load(path: Path) -> Calibration:
    """Read a file that ``--save`` wrote. Raises InputError for anything else."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"the calibration {path} cannot be read: {error.strerror}") from None
    raw = parse_object(text, f"the calibration {path}")
    if raw.get("kind") != KIND:
        raise InputError(
            f"{path} is not a calibration; make one with hybridplan measure --save, or with"
            " hybridplan calibrate --save"
        )
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema_version {raw.get('schema_version')}, this version reads"
            f" {SCHEMA_VERSION}; make it again with --save"
        )
    _check(raw, Calibration, _FIELDS, str(path))
    constants = {}
    for name, entry in raw["constants"].items():
        _check(entry, Constant, _CONSTANT_FIELDS, f"{path}, constants.{name}")
        if name.startswith("step."):
            _check_step(name.removeprefix("step."), entry, f"{path}, constants.{name}")
        constants[name] = Constant(**entry)
    made = Calibration(**{**raw, "constants": constants})
    steps = [c.value for name, c in constants.items() if name.startswith("step.")]
    if steps and not any(steps):
        raise InputError(f"{path}: every constant of a step is 0, so that nothing takes time")
    return made


def _check_step(feature: str, entry: Mapping[str, Any], where: str) -> None:
    """Refuse a feature that no step has, and a time that no step takes."""
    if feature not in FEATURES:
        raise InputError(f"{where} is of no known feature; those are {', '.join(FEATURES)}")
    if not 0 <= entry["value"] <= _LONGEST_S:
        raise InputError(
            f"{where}: value is {entry['value']:g} and must be from 0 to {_LONGEST_S:g}, in"
            f" {entry['unit']}"
        )


_NUMBER: tuple[type, ...] = (int, float)
_FIELDS: dict[str, tuple[type, ...]] = {
    "schema_version": (int,), "kind": (str,), "model": (str,), "card": (str,), "driver": (str,),
    "versions": (dict,), "date": (str,), "clocks_mhz": (dict,), "constants": (dict,),
    "fitted_points": (int,), "judged_points": (int,),
    "mean_error": (*_NUMBER, type(None)), "worst_error": (*_NUMBER, type(None)),
}  # fmt: skip
_CONSTANT_FIELDS: dict[str, tuple[type, ...]] = {
    "value": _NUMBER, "unit": (str,), "spread": (*_NUMBER, type(None)), "how": (str,)
}  # fmt: skip
_LONGEST_S = 1e6
_MOST = 2**63
_KINDS: dict[tuple[type, ...], str] = {
    (int,): "a whole number", (str,): "text", (dict,): "an object", _NUMBER: "a number",
    (*_NUMBER, type(None)): "a number or null",
}  # fmt: skip


def _check(raw: Any, made: type, kinds: Mapping[str, tuple[type, ...]], where: str) -> None:
    """Refuse an object with a key too few, too many, or of another kind."""
    if not isinstance(raw, dict):
        raise InputError(f"{where} is no object with {', '.join(kinds)}; make it with --save")
    expected = [field.name for field in fields(made)]
    for name in (*expected, *raw):
        if name not in raw or name not in kinds:
            fault = "lacks the key" if name not in raw else "has an unknown key"
            raise InputError(f"{where} {fault} {name!r}; make it again with --save")
        value = raw[name]
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise InputError(f"{where}: {name} is {value!r:.60}, not {_KINDS[kinds[name]]}")
        if isinstance(value, (int, float)) and not abs(value) < _MOST:
            raise InputError(f"{where}: {name} is {value!r:.60}, not a number below 2**63")
        if isinstance(value, (int, float)) and value < 0:
            raise InputError(f"{where}: {name} is {value:g} and cannot be negative")
