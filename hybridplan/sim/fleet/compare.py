"""One fleet under every router."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.sim.advice import Watch
from hybridplan.sim.fleet.ask import FleetAsk
from hybridplan.sim.fleet.result import SCHEMA_VERSION, FleetResult, RouterComparison
from hybridplan.sim.fleet.routers import ROUTERS
from hybridplan.sim.fleet.run import run_fleet


def compare_routers(
    ask: FleetAsk, *, jobs: int = 1, scheduler: str | None = None, watch: Watch | None = None
) -> RouterComparison:
    """Replay the fleet under each router, with the parameters of ``ask.router``.

    ``jobs`` and ``scheduler`` are used for routers whose replicas do not depend on each other.
    """
    answers: list[FleetResult] = []
    for kind in ROUTERS:
        one = replace(
            ask,
            router=replace(ask.router, kind=kind),
            references=ask.references and not answers,
        )
        alone = one.independent
        answers.append(
            run_fleet(
                one,
                jobs=jobs if alone else 1,
                scheduler=scheduler if alone else None,
                watch=watch,
            )
        )
    return RouterComparison(SCHEMA_VERSION, tuple(answers))
