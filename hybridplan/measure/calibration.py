"""The constants that a run fits, as ``--save`` writes them and a simulator reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hybridplan.errors import InputError

SCHEMA_VERSION = 1
KIND = "hybridplan calibration"


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
    feature. ``mean_error`` and ``worst_error`` are those of the points left out of the fit.
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

    def seconds(self, features: Mapping[str, float]) -> float:
        """Step time for the features of a step (see ``timemodel.FEATURES``), in seconds."""
        known = {name.removeprefix("step."): c for name, c in self.constants.items()}
        missing = sorted(set(features) - set(known))
        if missing:
            raise InputError(f"the calibration of {self.card} has no constant for {missing[0]!r}")
        return sum(known[name].value * amount for name, amount in features.items())


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
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the calibration {path} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"the calibration {path} is not JSON: {error}") from None
    if not isinstance(raw, dict) or raw.get("kind") != KIND:
        raise InputError(f"{path} is not a calibration; make one with hybridplan measure --save")
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema_version {raw.get('schema_version')}, this version reads "
            f"{SCHEMA_VERSION}; measure again with --save"
        )
    try:
        raw["constants"] = {name: Constant(**c) for name, c in raw["constants"].items()}
        return Calibration(**raw)
    except (TypeError, AttributeError, KeyError) as error:
        raise InputError(f"the calibration {path} lacks or misnames a key: {error}") from None
