"""Hold the predictions of ``hybridplan measure`` against kernel times recorded on an H200.

    python -m benchmarks.measure.kernel_rows

Reads benchmarks/results/kernels_delta_h200.json and kernels_states_h200.json, fits the card's copy
bandwidth on their read-modify-write rows, and predicts the other rows with the same arithmetic and
the same tolerances as the checks of the command. Writes
benchmarks/results/measure_kernel_rows_h200.json. Needs torch for least squares, and no GPU.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kernels.case import READ_BYTES_PER_US
from hybridplan.measure.linear import LinearLayer
from hybridplan.measure.result import Check, compared
from hybridplan.measure.timemodel import StepPoint, fit, solve
from hybridplan.report.document import document

RESULTS = Path(__file__).parent.parent / "results"
DELTA, STATES = "kernels_delta_h200.json", "kernels_states_h200.json"
LEAST_BYTES = 32 << 20
LEAST_KV_BYTES = 256_000_000
HEADS = {
    "0.8B": LinearLayer("gdn", 16, 16, 128, 128),
    "next": LinearLayer("gdn", 16, 32, 128, 128),
    "27B": LinearLayer("gdn", 16, 48, 128, 128),
    "kimi": LinearLayer("kda", 32, 32, 128, 128),
}


@dataclass(frozen=True)
class Card:
    """Floor in seconds and seconds a byte, of copying in place and of reading."""

    floor_s: float
    copy_s: float
    read_s: float


def load(name: str) -> dict[str, Any]:
    """One recorded file."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def card(delta: dict[str, Any]) -> Card:
    """Copy bandwidth and floor from the rows of the plain read-modify-write."""
    points = [
        StepPoint(r["shape"], {"step": 1.0, "bytes": r["least_bytes"]}, r["us"] / 1e6)
        for r in delta["rows"]
        if r["library"] == "read-modify-write"
    ]
    found = solve(points)
    return Card(found["step"], found["bytes"], 1e-6 / READ_BYTES_PER_US)


def checks() -> list[Check]:
    """Every recorded row of our kernels that the command would judge."""
    delta, states = load(DELTA), load(STATES)
    here = card(delta)
    return [*_decodes(delta, here), *_states(states, here), *_prefills(delta)]


def _decodes(delta: dict[str, Any], here: Card) -> list[Check]:
    found = []
    for row in delta["rows"]:
        if row["kind"] != "decode" or row["library"] != "ours" or "us" not in row:
            continue
        layer, batch = HEADS[row["heads"]], int(row["shape"].split()[-1])
        element = 4 if row["state"] == "float32" else 2
        moved = 2 * batch * layer.state_elements * element + layer.io_bytes(batch)
        if moved >= LEAST_BYTES:
            name = f"{layer.operator} {row['heads']}, {row['state']}, batch {batch}"
            found.append(_against("decode", name, moved, here.copy_s, here, row, 0.15))
    return found


def _states(states: dict[str, Any], here: Card) -> list[Check]:
    found = []
    for row in states["rows"]:
        operator, size = row["operator"], row["least_bytes"]
        name = f"{operator} {row['shape']}"
        if operator.endswith("decode") and operator != "short_conv decode":
            if size >= LEAST_BYTES:
                family, tolerance = ("drafts", 0.25) if "drafts" in name else ("decode", 0.15)
                found.append(_against(family, name, size, here.copy_s, here, row, tolerance))
        elif operator == "state_copy":
            found.append(_against("checkpoints", name, size, here.copy_s, here, row, 0.25))
        elif operator == "paged_attention gqa" and size >= LEAST_KV_BYTES:
            found.append(_against("decode", name, size, here.read_s, here, row, 0.25))
    return found


def _against(
    family: str, name: str, size: int, per_byte_s: float, here: Card, row: Any, tolerance: float
) -> Check:
    return compared(
        family, name, "recorded kernel time", 1e6 * (here.floor_s + size * per_byte_s), row["us"],
        "us", tolerance, f"{1e6 * here.floor_s:.1f} us + {size:,} B / "
        f"{1e-12 / per_byte_s:.2f} TB/s", spread=row.get("spread"),
    )  # fmt: skip


def _prefills(delta: dict[str, Any]) -> list[Check]:
    """One layer's prefill by the time model, fitted on every other row."""
    points = []
    for row in delta["rows"]:
        if row["kind"] != "prefill" or row["library"] != "ours" or "us" not in row:
            continue
        layer = HEADS[row["heads"]]
        count, length = row["shape"].split("x")
        tokens = int(count) * int(length.removesuffix("k")) * 1024
        features = {
            "step": 1.0,
            "bytes": float(layer.io_bytes(tokens) + 8 * layer.state_elements * int(count)),
            "scan_flop": layer.prefill_flop(tokens),
        }
        points.append(StepPoint(f"{row['heads']} {row['shape']}", features, row["us"] / 1e6))
    model = fit(points)
    errors = [abs(e) for e in model.errors(model.judged)]
    how = f"fitted on {len(model.fitted)} rows of one layer's prefill, judged on the others"
    return [
        compared("time model", "mean error, one layer's prefill", "mean size of the error", 0.10,
                 sum(errors) / len(errors), "share", 0.0, how, sense="at most"),
        compared("time model", "worst error, one layer's prefill", "largest error", 0.25,
                 max(errors), "share", 0.0, how, sense="at most"),
    ]  # fmt: skip


def main() -> None:
    """Write the result and print a line a row."""
    found = checks()
    delta = load(DELTA)
    result = {
        "what": "predictions of hybridplan measure against recorded kernel times; not a run of "
        "the command",
        "card": delta["card"],
        "versions": delta["versions"],
        "sources": [DELTA, STATES],
        "command": "python -m benchmarks.measure.kernel_rows",
        "checks": document(tuple(found)),
    }
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / "measure_kernel_rows_h200.json").write_text(text, encoding="utf-8")
    for c in found:
        print(f"{c.verdict:8} {c.check:12} {c.name:62} {c.predicted:9.2f} {c.measured:9.2f}")  # noqa: T201


if __name__ == "__main__":
    main()
