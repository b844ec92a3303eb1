"""Requests in order of arrival, with a bounded number of them in memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace

from hybridplan.errors import InputError
from hybridplan.sim.request import Request


def in_time_order(stream: Iterator[Request], window: int, path: str) -> Iterator[Request]:
    """The requests sorted by arrival; equal arrivals keep their order.

    At most ``window`` requests are held. If the first one lies before the clock's zero, all are
    shifted so that it arrives at 0. Raises InputError when a request has no arrival, or comes
    later in the file than the window can mend.
    """
    heap: list[tuple[float, int, Request]] = []
    shift_s: float | None = None
    latest_s = 0.0
    for index, request in enumerate(stream):
        if request.arrival_s is None:
            raise InputError(
                f"{path}: --order time needs arrivals, but request {request.request_id} has none"
            )
        if shift_s is not None and request.arrival_s < latest_s:
            raise InputError(
                f"{path}: request {request.request_id} arrives {latest_s - request.arrival_s:g} s "
                f"before one that stands more than {window} requests above it; raise --window, or "
                "sort the file"
            )
        heapq.heappush(heap, (request.arrival_s, index, request))
        if len(heap) > window:
            latest_s, _, first = heapq.heappop(heap)
            shift_s = min(0.0, latest_s) if shift_s is None else shift_s
            yield _shifted(first, shift_s)
    while heap:
        latest_s, _, first = heapq.heappop(heap)
        shift_s = min(0.0, latest_s) if shift_s is None else shift_s
        yield _shifted(first, shift_s)


def _shifted(request: Request, shift_s: float) -> Request:
    if not shift_s or request.arrival_s is None:
        return request
    return replace(request, arrival_s=request.arrival_s - shift_s)
