"""``hybridplan schema``: JSON schemas of what --json prints."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from hybridplan.cli.common import print_json
from hybridplan.errors import InputError

_RESULTS = {
    "explain-log": ("hybridplan.ledger.logs.result", ("LogReport",)),
    "fit": ("hybridplan.ledger.planning.result", ("FitResult",)),
    "compare": ("hybridplan.sim.compare", ("CompareResult",)),
    "curve": ("hybridplan.sim.sweep.curve", ("Curve",)),
    "ledger": ("hybridplan.ledger.result", ("Ledger", "Comparison")),
    "measure": ("hybridplan.measure.result", ("MeasureResult",)),
    "models": ("hybridplan.ledger.catalogue", ("Catalogue",)),
    "plan": ("hybridplan.ledger.planning.result", ("VllmResult", "SglangResult")),
    "recommend": ("hybridplan.sim.recommend", ("RecommendResult",)),
    "simulate": ("hybridplan.sim.result", ("SimulateResult",)),
    "sweep": ("hybridplan.sim.sweep.sweep", ("SweepResult",)),
    "trace": ("hybridplan.sim.traces.summary", ("TraceSummary",)),
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("schema", help="JSON schema of a command's --json output.")(_schema)


def _schema(
    command: Annotated[str, typer.Argument(help=f"One of: {', '.join(_RESULTS)}.")],
) -> None:
    if command not in _RESULTS:
        raise InputError(f"{command!r} has no JSON schema; there is one for {', '.join(_RESULTS)}")
    from hybridplan.report.schema import json_schema

    module, names = _RESULTS[command]
    print_json(json_schema([getattr(import_module(module), name) for name in names]))
