"""Constants of step time from a log of served requests.

A log does not show steps, but between a request's first and last token lie exactly as many as it
has further tokens, and between its arrival and first token those that a replay of the log puts
there. So the log is replayed on candidate constants, each logged interval is set equal to the work
that the replay did in it times unknown constants, and these equations are solved for constants
that are nowhere negative. The next replay runs on the solution, until the intervals it predicts
stand still.

Requests that are judged take part in every replay, as load: their arrivals and lengths are used,
their tokens' stamps are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from hybridplan.errors import InputError
from hybridplan.ledger.calibration import FROM_LOG, KIND, Calibration, Constant, preset
from hybridplan.ledger.calibration import SCHEMA_VERSION as CALIBRATION_VERSION
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.work.features import FEATURES
from hybridplan.ledger.work.model import WorkModel, work_model
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.result import Setup
from hybridplan.sim.setup import EngineAsk, build
from hybridplan.sim.time.clock import StepClock
from hybridplan.sim.time.fit_judge import Judged, Single, judge, singles
from hybridplan.sim.time.fit_log import Logged, RequestLog
from hybridplan.sim.time.fit_replay import Replayed, replay_log
from hybridplan.sim.time.fit_round import Interval, Round, moved

Split: TypeAlias = Literal["time", "alternate"]
SPLITS: tuple[Split, ...] = ("time", "alternate")
SCHEMA_VERSION = 1
_FIRST_GUESS = "h100"
_MOST_ROUNDS = 12
_STILL = 2e-3


@dataclass(frozen=True, slots=True)
class FitAsk:
    """A log and the engine that wrote it. ``share`` of the requests is fitted, the rest judged:
    the first ones by arrival, or ("alternate") evenly among all. ``card`` is only a name."""

    log: RequestLog
    engine: EngineAsk
    share: float = 0.5
    split: Split = "time"
    card: str = ""


@dataclass(frozen=True, slots=True)
class LogFit:
    """Fitted constants and how well they predict the requests that were left out.

    Attributes:
        calibration: as ``simulate --calibration`` takes it.
        holds: whether TTFT and TPOT of the requests left out are within their tolerances.
        judged: percentiles of the requests left out; ``fitted``, of those that were not.
        singles: errors of the requests left out, one by one.
        rounds: replays until the constants stood still (``settled``) or no more were made.
        assumptions: sentences on what was taken for granted.
    """

    schema_version: int
    log: str
    setup: Setup
    split: Split
    share: float
    calibration: Calibration
    fitted_requests: int
    judged_requests: int
    holds: bool
    judged: tuple[Judged, ...]
    fitted: tuple[Judged, ...]
    singles: tuple[Single, ...]
    rounds: int
    settled: bool
    assumptions: tuple[str, ...]


def fit_log(ask: FitAsk, *, on_round: Callable[[int], None] | None = None) -> LogFit:
    """Fit constants to a part of a log and judge them on the rest.

    ``on_round`` is called with the number of each replay before it runs. Raises InputError for a
    share that leaves too little on either side and for a request that the engine refuses, and what
    the engine raises for its flags.
    """
    requests = ask.log.requests
    model = work_model(ask.engine.spec, ask.engine.deployment)
    names = tuple(name for name in FEATURES if model.uses(name))
    taken = _taken(len(requests), ask.share, ask.split, len(names))
    built = build(ask.engine)
    guess = preset(find_gpu(_FIRST_GUESS))
    constants = {name: guess.step_seconds(name) for name in names}
    rounds: list[Round] = []
    settled = False
    while len(rounds) < _MOST_ROUNDS and not settled:
        if on_round is not None:
            on_round(len(rounds) + 1)
        clock = StepClock(model, _calibration(constants))
        replayed = replay_log(requests, lambda: built.engine(losses=False), clock)
        intervals = _intervals(requests, replayed, taken)
        if len(intervals) < len(names):
            raise InputError(
                f"{len(intervals)} intervals of the log's fitted requests take any time, too few"
                f" for {len(names)} constants; are the stamps seconds with fractions?"
            )
        found = Round(constants, replayed.outcomes, intervals)
        settled = bool(rounds) and moved(rounds[-1], found) < _STILL
        rounds.append(found)
        constants = found.solution(names) if len(rounds) > 1 else found.scaled()
    best = rounds[-1] if settled else min(rounds, key=lambda found: found.loss)
    return _result(ask, built.setup, model, names, taken, best, len(rounds), settled)


def _taken(count: int, share: float, split: Split, constants: int) -> list[bool]:
    """Whether each request, by arrival, is fitted."""
    if not 0 < share < 1:
        raise InputError(f"--fit-share {share:g} must lie between 0 and 1; the rest is judged")
    fitted = round(count * share)
    if fitted < 2 * constants or fitted == count:
        raise InputError(
            f"--fit-share {share:g} fits {constants} constants to {fitted} of the log's {count}"
            f" requests; at least {2 * constants} are needed, and one more to judge"
        )
    if split == "time":
        return [index < fitted for index in range(count)]
    return [(index + 1) * fitted // count > index * fitted // count for index in range(count)]


def _intervals(
    requests: Sequence[Logged], replayed: Replayed, taken: Sequence[bool]
) -> list[Interval]:
    found = []
    for index, (logged, outcome) in enumerate(zip(requests, replayed.outcomes, strict=True)):
        if not taken[index] or outcome.ttft_s is None or outcome.e2e_s is None:
            continue
        decoding_s = logged.last_token_s - logged.first_token_s
        if logged.ttft_s > 0:
            counts = replayed.waiting[index]
            found.append(Interval(index, "waiting", logged.ttft_s, outcome.ttft_s, counts))
        if decoding_s > 0:
            counts = replayed.decoding[index]
            predicted_s = outcome.e2e_s - outcome.ttft_s
            found.append(Interval(index, "decoding", decoding_s, predicted_s, counts))
    return found


def _result(
    ask: FitAsk,
    setup: Setup,
    model: WorkModel,
    names: Sequence[str],
    taken: Sequence[bool],
    best: Round,
    rounds: int,
    settled: bool,
) -> LogFit:
    sides: dict[bool, tuple[list[Logged], list[RequestOutcome]]] = {True: ([], []), False: ([], [])}
    for is_fitted, logged, outcome in zip(taken, ask.log.requests, best.outcomes, strict=True):
        sides[is_fitted][0].append(logged)
        sides[is_fitted][1].append(outcome)
    judged, left_out = judge(*sides[False]), singles(*sides[False])
    if all(found.measure == "e2e" for found in judged):
        raise InputError(
            f"the {len(sides[False][0])} requests that are left out have neither a TTFT nor a TPOT"
            " above zero in the log, so that nothing can be judged; choose another --split"
        )
    decode = next((single for single in left_out if single.measure == "TPOT"), None)
    made = replace(
        _calibration(best.constants, best.spreads(names), FROM_LOG + Path(ask.log.path).name),
        model=ask.engine.spec.name,
        card=ask.card or "the card of the log",
        versions={"rules": setup.rules},
        fitted_points=len(sides[True][0]),
        judged_points=len(sides[False][0]),
        mean_error=decode.mean if decode else None,
        worst_error=decode.worst if decode else None,
    )
    return LogFit(
        schema_version=SCHEMA_VERSION,
        log=ask.log.path,
        setup=setup,
        split=ask.split,
        share=ask.share,
        calibration=made,
        fitted_requests=len(sides[True][0]),
        judged_requests=len(sides[False][0]),
        holds=all(found.within for found in judged if found.measure != "e2e"),
        judged=judged,
        fitted=judge(*sides[True]),
        singles=left_out,
        rounds=rounds,
        settled=settled,
        assumptions=_assumptions(ask, setup, model),
    )


def _calibration(
    constants: Mapping[str, float],
    spreads: Mapping[str, float] | None = None,
    how: str = "tried",
) -> Calibration:
    return Calibration(
        schema_version=CALIBRATION_VERSION,
        kind=KIND,
        model="",
        card="",
        driver="",
        versions={},
        date="",
        clocks_mhz={},
        constants={
            f"step.{name}": Constant(
                value, FEATURES[name], spreads[name] if spreads is not None else None, how
            )
            for name, value in constants.items()
        },
        fitted_points=0,
        judged_points=0,
        mean_error=None,
        worst_error=None,
    )


def _assumptions(ask: FitAsk, setup: Setup, model: WorkModel) -> tuple[str, ...]:
    said = [
        ask.log.clock,
        "requests that are judged are load in every replay: their arrivals and lengths are used,"
        " the stamps of their tokens are not",
        f"the log's engine scheduled as {setup.rules} does, with the flags given here",
    ]
    if not any(logged.request.prompt.ids for logged in ask.log.requests):
        said.append("the log has no token ids, so no prompt hits the prefix cache")
    return (*said, *setup.assumptions, *model.notes)
