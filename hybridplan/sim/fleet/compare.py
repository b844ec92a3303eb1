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
    Ctrl-C ends the comparison with the routers that are done, and is raised where none is.
    """
    answers: list[FleetResult] = []
    for kind in ROUTERS:
        one = replace(
            ask,
            router=replace(ask.router, kind=kind),
            references=ask.references and not answers,
        )
        alone = one.independent
        try:
            answer = run_fleet(
                one,
                jobs=jobs if alone else 1,
                scheduler=scheduler if alone else None,
                watch=watch,
            )
            if answer.interrupted == "replay":
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            if not answers:
                raise
            return RouterComparison(SCHEMA_VERSION, tuple(answers), interrupted=True)
        answers.append(answer)
        if answer.interrupted is not None:
            return RouterComparison(SCHEMA_VERSION, tuple(answers), interrupted=True)
    return RouterComparison(SCHEMA_VERSION, tuple(answers), interrupted=False)
