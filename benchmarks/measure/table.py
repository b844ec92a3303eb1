"""Write the tables of README and docs/measure.md from the stored run of ``measure --gpu``.

    python -m benchmarks.measure.table

A page's table stands between two comments; README has one line a check family (its check with the
largest error for its tolerance), docs/measure.md every check.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from hybridplan.measure.result import Check
from hybridplan.report.measure import cells

ROOT = Path(__file__).parents[2]
RUN = ROOT / "benchmarks" / "results" / "measure-h200-qwen3.5-0.8b.json"
PAGES = {"README.md": "families", "docs/measure.md": "checks"}
BEGIN, END = "<!-- from the stored run -->\n", "<!-- end of the stored run -->"


def stored() -> list[Check]:
    """The checks of the stored run that have a measurement."""
    raw = json.loads(RUN.read_text(encoding="utf-8"))
    names = {f.name for f in fields(Check)}
    found = [Check(**{k: v for k, v in c.items() if k in names}) for c in raw["checks"]]
    return [c for c in found if c.measured is not None]


def table(kind: str) -> str:
    """Markdown of the whole run, or of one check a family."""
    checks = stored()
    head = ["check", "figure", "predicted", "measured", "error", "tolerance", "verdict"]
    if kind == "checks":
        rows = [[c.check, c.name, *cells(c), c.verdict] for c in checks]
        return _markdown(head, rows)
    rows = []
    for family in dict.fromkeys(c.check for c in checks):
        own = [c for c in checks if c.check == family and c.verdict != "noted"]
        worst = max(own, key=_use_of_tolerance)
        within = sum(c.verdict == "within" for c in own)
        rows.append([family, f"{within} of {len(own)}", worst.name, *cells(worst)])
    return _markdown(["check", "within", "closest to its bound", *head[2:6]], rows)


def _use_of_tolerance(check: Check) -> float:
    """How much of what is allowed was used: 1 is the bound."""
    assert check.measured is not None
    assert check.tolerance is not None
    assert check.predicted is not None
    if check.sense == "near":
        return abs(check.error or 0.0) / check.tolerance if check.tolerance else 0.0
    ratio = check.measured / check.predicted
    return (ratio if check.sense == "at most" else 1 / ratio) / (1 + check.tolerance)


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page_with_table(text: str, kind: str) -> str:
    """The page with what stands between the comments made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(kind)}\n{END}{after}"


def main() -> None:
    """Write both pages."""
    for name, kind in PAGES.items():
        page = ROOT / name
        page.write_text(page_with_table(page.read_text(encoding="utf-8"), kind), encoding="utf-8")


if __name__ == "__main__":
    main()
