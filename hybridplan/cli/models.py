"""``hybridplan models``: the catalogue of shipped configs."""

from __future__ import annotations

import typer

from hybridplan.cli.common import JsonFlag, print_json, print_report


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("models", help="The catalogue of shipped configs.")(_models)


def _models(json: JsonFlag = False) -> None:
    from hybridplan.ledger.catalogue import catalogue

    found = catalogue()
    if json:
        from hybridplan.report.document import document

        print_json(document(found))
        return
    from hybridplan.report.models import screen

    print_report(*screen(found))
