"""One clock for traces in which every session has its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hybridplan.errors import InputError
from hybridplan.sim.request import Request

LONGEST_GAP_S = 1e6


def place_sessions(requests: Iterable[Request], gap_s: float) -> list[Request]:
    """Let session k, counted by first appearance, start ``gap_s`` x k seconds into the replay.

    Within a session the trace's own times hold. Returns the requests by the time they then arrive,
    equal times in trace order; all of them are held in memory. Raises InputError for a negative
    gap, or a request without a time.
    """
    if not 0 <= gap_s <= LONGEST_GAP_S:
        raise InputError(f"--session-gap {gap_s:g} must be 0 s or more, up to {LONGEST_GAP_S:g}")
    starts: dict[str | None, float] = {}
    placed = []
    for request in requests:
        if request.arrival_s is None:
            raise InputError(
                f"request {request.request_id} has no arrival time; use --arrival closed:N or"
                " sequential"
            )
        start_s = starts.setdefault(request.session, gap_s * len(starts))
        placed.append(replace(request, arrival_s=start_s + request.arrival_s))
    placed.sort(key=lambda request: request.arrival_s or 0.0)
    return placed
