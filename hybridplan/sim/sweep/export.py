"""The cells of a sweep as a flat table: .jsonl, .csv or .parquet, one row a cell, by key."""

from __future__ import annotations

import csv
import json
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

from hybridplan.errors import InputError, MissingExtraError
from hybridplan.sim.cell import Row
from hybridplan.sim.outcome import LossCause
from hybridplan.sim.sweep.sweep import CellResult, SweepResult

FORMATS = (".jsonl", ".csv", ".parquet")
_ROW = tuple(f.name for f in fields(Row) if f.name not in ("policy", "lost", "assumptions"))
_LOST = tuple(f"lost_{cause.value}_tokens" for cause in LossCause)


def check_target(path: Path) -> str:
    """The suffix of an export. Raises InputError where ``write`` could not write it."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"--export {path}: the name must end in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise InputError(f"--export {path}: the folder {path.parent} does not exist")
    return suffix


def write(result: SweepResult, path: Path) -> None:
    """Write every cell. The same cells give the same bytes in .jsonl and .csv.

    Raises as ``check_target``, and MissingExtraError for parquet without pyarrow.
    """
    suffix = check_target(path)
    rows = [flat(result, cell) for cell in result.cells]
    if suffix == ".parquet":
        _parquet(path, rows)
        return
    text = StringIO()
    if suffix == ".csv":
        columns = list(rows[0]) if rows else ["key"]
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        for row in rows:
            text.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    try:
        path.write_text(text.getvalue(), encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"--export {path}: cannot be written ({error.strerror})") from None


def flat(result: SweepResult, cell: CellResult) -> dict[str, Any]:
    """One cell as columns: key, the sweep's settings, the row's fields, tokens lost by cause."""
    names = {name: None for other in result.cells for name in other.settings}
    row = cell.row
    return {
        "key": cell.key,
        "trace_sha256": cell.trace_sha256,
        **{name: cell.settings.get(name) for name in names},
        **{name: getattr(row, name) if row is not None else None for name in _ROW},
        "hit_rate": row.hit_rate if row is not None else None,
        **{
            column: row.lost.get(cause.value, 0) if row is not None else None
            for column, cause in zip(_LOST, LossCause, strict=True)
        },
        "error": cell.error,
    }


def _parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(
            f'--export {path} needs pyarrow; install it with: pip install "hybridplan[trace]"'
        ) from None
    try:
        pq.write_table(pa.Table.from_pylist(rows), path)
    except OSError as error:
        raise InputError(f"--export {path}: cannot be written ({error.strerror})") from None
