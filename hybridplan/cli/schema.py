"""``hybridplan schema``: JSON schemas of what --json prints."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from hybridplan.cli.common import print_json
from hybridplan.errors import InputError

RESULTS = {
    "error": ("hybridplan.report.failure", ("FailureReport",)),
    "explain-log": ("hybridplan.ledger.logs.result", ("LogReport",)),
    "fit": ("hybridplan.ledger.planning.result", ("FitResult",)),
    "calibrate": ("hybridplan.sim.time.fit", ("LogFit",)),
    "compare": ("hybridplan.sim.compare", ("CompareResult",)),
    "curve": ("hybridplan.sim.sweep.curve", ("Curve",)),
    "fleet": (
        "hybridplan.sim.fleet.result",
        ("FleetResult", "FleetSize", "RouterComparison"),
    ),
    "help": ("hybridplan.topics", ("TopicList", "TopicPage")),
    "ledger": ("hybridplan.ledger.result", ("Ledger", "Comparison", "Explanation")),
    "measure": ("hybridplan.measure.result", ("MeasureResult",)),
    "models": ("hybridplan.ledger.catalogue", ("Catalogue",)),
    "plan": ("hybridplan.ledger.planning.result", ("VllmResult", "SglangResult")),
    "recommend": ("hybridplan.sim.recommend", ("RecommendResult",)),
    "simulate": ("hybridplan.sim.result", ("SimulateResult",)),
    "sweep": ("hybridplan.sim.sweep.sweep", ("SweepResult",)),
    "trace": ("hybridplan.sim.traces.summary", ("TraceSummary", "Conversion")),
}

_COMMAND = typer.Argument(help=f"One of: {', '.join(RESULTS)}.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("schema", help="JSON schema of a command's --json output.")(_schema)


def _schema(
    command: Annotated[str, _COMMAND],
) -> None:
    print_json(schema_of(command))


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of a command's document. Raises InputError where there is none."""
    if command not in RESULTS:
        raise InputError(
            f"{command!r} has no JSON schema; there is one for {', '.join(sorted(RESULTS))}"
        )
    from hybridplan.report.schema import json_schema

    module, names = RESULTS[command]
    return json_schema([getattr(import_module(module), name) for name in names])


def version_of(command: str) -> int:
    """The version that a command's document states."""
    version: int = import_module(RESULTS[command][0]).SCHEMA_VERSION
    return version
