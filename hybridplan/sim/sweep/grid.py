"""A grid of settings as cells, each with a key that says what its result depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path

from hybridplan import __version__
from hybridplan.config.find import load
from hybridplan.config.spec import ModelSpec
from hybridplan.errors import HybridplanError, InputError, MissingExtraError
from hybridplan.ledger.calibration import PRESET
from hybridplan.sim.prepared import wanted
from hybridplan.sim.settings import Value, axis_name, canonical

CELLS = "cells"
ROW_VERSION = 2
"""Raise when the same configuration gives another row, so that stored ones are not reused."""
MOST_CELLS = 1_000_000
_PATHS = ("trace", "model", "calibration")
"""Settings that name files, which count by their content."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration. ``key`` hashes the settings less paths, the model itself, the trace's
    bytes, what was asked of the replay and the version."""

    key: str
    settings: Mapping[str, Value]
    trace_sha256: str
    bounds: bool
    losses: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells in the order of the grid, without doubles; ``varied`` are the settings that differ,
    ``notes`` say which settings were left out where an engine has none such."""

    cells: tuple[Cell, ...]
    varied: tuple[str, ...]
    notes: tuple[str, ...]


def read_grid(path: Path) -> dict[str, object]:
    """The mapping in a .json, .yaml or .yml file.

    Raises InputError for another suffix, a file that cannot be read or holds no mapping.
    """
    suffix = path.suffix.lower()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"grid {path} cannot be read: {error}") from None
    if suffix == ".json":
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InputError(f"grid {path} is not JSON: {error}") from None
    elif suffix in (".yaml", ".yml"):
        found = _yaml(path, text)
    else:
        raise InputError(f"grid {path}: the name must end in .yaml, .yml or .json")
    if not isinstance(found, dict):
        raise InputError(f"grid {path} must map settings to values, as in engine: [vllm, sglang]")
    return {str(name): value for name, value in found.items()}


def _yaml(path: Path, text: str) -> object:
    try:
        import yaml
    except ImportError:
        raise MissingExtraError(
            f'{path} needs PyYAML; install it with: pip install "hybridplan[sweep]", or write JSON'
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"grid {path} is not YAML: {error}") from None


def laid_over(grid: Mapping[str, object], flags: Mapping[str, object]) -> dict[str, object]:
    """A grid with the settings of ``flags``, full names, in place of its own, in its cells too."""
    found = {n: v for n, v in grid.items() if n == CELLS or axis_name(n) not in flags}
    parts = found.get(CELLS)
    if isinstance(parts, list):
        found[CELLS] = [
            {n: v for n, v in part.items() if axis_name(str(n)) not in flags}
            if isinstance(part, Mapping)
            else part
            for part in parts
        ]
    return {**found, **flags}


def parse_assignment(text: str) -> tuple[str, list[str]]:
    """``NAME=VALUE[,VALUE]`` as a setting and its values. Raises InputError for another form."""
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise InputError(f"--set {text!r} must read NAME=VALUE or NAME=VALUE,VALUE")
    return axis_name(name.strip()), [value.strip() for value in values.split(",")]


def expand(grid: Mapping[str, object], *, bounds: bool = False, losses: bool = True) -> Grid:
    """The cells of a grid.

    ``grid`` maps a setting to a value or a list of values; ``cells`` may list further grids, each
    laid over the rest. Models and traces are read here, to name them by content.
    Raises InputError for unknown settings and bad values.
    """
    cells: dict[str, Cell] = {}
    dropped: dict[tuple[str, str], None] = {}
    values: dict[str, dict[Value, None]] = {}
    for settings in _points(grid):
        found, foreign = canonical(settings)
        engine = str(found["engine"])
        dropped.update(dict.fromkeys((name, engine) for name in foreign))
        cell = _cell(found, bounds, losses)
        cells.setdefault(cell.key, cell)
        if len(cells) > MOST_CELLS:
            raise InputError(f"the grid has more than {MOST_CELLS:,} cells; vary fewer settings")
    names = {name: None for cell in cells.values() for name in cell.settings}
    for name in names:
        values[name] = dict.fromkeys(cell.settings.get(name) for cell in cells.values())
    by_name: dict[str, list[str]] = {}
    for name, engine in dropped:
        by_name.setdefault(name, []).append(engine)
    return Grid(
        cells=tuple(cells.values()),
        varied=tuple(name for name, seen in values.items() if len(seen) > 1),
        notes=tuple(
            f"{name} is no setting of {', '.join(engines)}: not varied there"
            for name, engines in by_name.items()
        ),
    )


def _points(grid: Mapping[str, object]) -> Iterator[dict[str, object]]:
    base = {name: value for name, value in grid.items() if name != CELLS}
    parts = grid.get(CELLS, [{}])
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
        raise InputError(f"{CELLS} must be a list of grids, as in cells: [{{engine: vllm}}]")
    for part in parts:
        if not isinstance(part, Mapping):
            raise InputError(f"{CELLS} holds {part!r}, which maps no setting to a value")
        for names in (base, part):
            _refuse_doubles(names)
        named: dict[str, list[object]] = {}
        for name, value in (*base.items(), *part.items()):
            listed = list(value) if isinstance(value, (list, tuple)) else [value]
            if not listed:
                raise InputError(f"{name} has no value; give one or leave it out")
            named[axis_name(str(name))] = listed
        for point in product(*named.values()):
            yield dict(zip(named, point, strict=True))


def _refuse_doubles(names: Mapping[str, object]) -> None:
    """A setting under two of its names: one would silently win."""
    seen: dict[str, str] = {}
    for name in map(str, names):
        other = seen.setdefault(axis_name(name), name)
        if other != name:
            raise InputError(f"{other} and {name} are one setting; give one of them")


def _cell(settings: dict[str, Value], bounds: bool, losses: bool) -> Cell:
    trace = str(wanted(settings, "trace"))
    model = str(wanted(settings, "model"))
    sha = file_sha256(trace)
    content = {
        "settings": {k: v for k, v in settings.items() if k not in _PATHS},
        "model": _model_sha256(model),
        "trace": sha,
        **_calibration_sha256(settings.get("calibration")),
        "bounds": bounds,
        "losses": losses,
        "version": __version__,
        "row": ROW_VERSION,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    return Cell(key, settings, sha, bounds, losses)


def _calibration_sha256(path: Value) -> dict[str, str]:
    """The calibration's bytes: another measurement under the same name is another cell. A preset
    is its name."""
    if path is None:
        return {}
    text = str(path)
    preset = text.lower().startswith(PRESET)
    return {"calibration": text.lower() if preset else file_sha256(text, "calibration")}


@lru_cache(maxsize=256)
def model_of(name: str) -> ModelSpec:
    """The model of that name, read once a process."""
    return load(name)


@lru_cache(maxsize=256)
def _model_sha256(name: str) -> str:
    """What the model is, wherever its file lies. A model that cannot be read is its name: the
    cell will say why."""
    try:
        spec = model_of(name)
    except HybridplanError:
        return f"unread {name}"
    plain = replace(spec, file="", sources={}, notes=())
    return hashlib.sha256(repr(plain).encode()).hexdigest()


def file_sha256(path: str, kind: str = "trace") -> str:
    """SHA-256 of the file's bytes. Raises InputError where it cannot be read, naming its kind."""
    try:
        status = Path(path).stat()
        return _sha256(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise InputError(f"{kind} {path} cannot be read: {error.strerror}") from None


@lru_cache(maxsize=256)
def _sha256(path: str, _size_bytes: int, _changed_ns: int) -> str:
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
