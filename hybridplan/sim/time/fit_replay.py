"""A replay of a log on candidate constants, remembered as work done up to each moment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hybridplan.errors import InputError
from hybridplan.ledger.work.features import Counts
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.replay import Engine
from hybridplan.sim.time.clock import NS, StepClock
from hybridplan.sim.time.fit_log import Logged
from hybridplan.sim.time.server import Server


class Track:
    """Counts of all steps up to a time. Between two notes work is taken to go on evenly."""

    def __init__(self) -> None:
        self._ticks: list[int] = [0]
        self._sums: list[Counts] = [Counts()]

    def note(self, ticks: int, spent: Counts) -> None:
        """``spent`` is what was done up to ``ticks``; later notes are no earlier."""
        if ticks != self._ticks[-1]:
            self._ticks.append(ticks)
            self._sums.append(spent)

    def between(self, begin: float, end: float) -> list[float]:
        """Counts of the work from ``begin`` to ``end``, in ticks."""
        return [b - a for a, b in zip(self._until(begin), self._until(end), strict=True)]

    def _until(self, ticks: float) -> list[float]:
        after = bisect_left(self._ticks, ticks)
        if after >= len(self._ticks):
            return [float(count) for count in self._sums[-1]]
        if not after:
            return [float(count) for count in self._sums[0]]
        early, late = self._ticks[after - 1], self._ticks[after]
        share = (ticks - early) / (late - early)
        pairs = zip(self._sums[after - 1], self._sums[after], strict=True)
        return [a + share * (b - a) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay gave each request of the log, in the log's order, and the work over time.

    Waiting and decoding are counts: of all steps between arrival and first token, and between first
    and last token.
    """

    outcomes: tuple[RequestOutcome, ...]
    waiting: tuple[list[float], ...]
    decoding: tuple[list[float], ...]


def replay_log(
    requests: Sequence[Logged], make_engine: Callable[[], Engine], clock: StepClock
) -> Replayed:
    """Replay every request of a log when it arrived.

    Raises InputError for a request the engine refuses: its run had other limits.
    """
    server = Server(make_engine(), clock)
    scale = clock.ticks_per_s // NS
    arrivals = [round(logged.arrival_s * NS) * scale for logged in requests]
    track = Track()
    found: dict[str, RequestOutcome] = {}
    sent = 0
    while sent < len(requests) or server.open:
        while sent < len(requests) and arrivals[sent] <= server.horizon:
            request = requests[sent].request
            reason = server.engine.refusal(request)
            if reason is not None:
                raise InputError(
                    f"the log served request {request.request_id} and this engine would refuse it:"
                    f" {reason}; give the flags of the run"
                )
            server.add(request, arrivals[sent], arrivals[sent])
            sent += 1
        if not server.open:
            server.wake(arrivals[sent])
            track.note(server.now, server.spent)
            continue
        finished = server.run(arrivals[sent] if sent < len(requests) else None)
        track.note(server.now, server.spent)
        found.update((outcome.request_id, outcome) for outcome in finished)
    outcomes = [found[logged.request.request_id] for logged in requests]
    waiting, decoding = [], []
    for outcome, arrival in zip(outcomes, arrivals, strict=True):
        assert outcome.ttft_s is not None
        assert outcome.e2e_s is not None
        first = arrival + outcome.ttft_s * clock.ticks_per_s
        last = arrival + outcome.e2e_s * clock.ticks_per_s
        waiting.append(track.between(arrival, first))
        decoding.append(track.between(first, last))
    return Replayed(tuple(outcomes), tuple(waiting), tuple(decoding))
