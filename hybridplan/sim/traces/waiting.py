"""A queue whose entries may wait for a later line; order in is order out, memory is bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from hybridplan.sim.request import Request


class Queue:
    """At most ``window`` requests; the oldest leaves when it is settled or the queue is full."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._held: OrderedDict[object, tuple[Request, bool]] = OrderedDict()

    def add(self, key: object, request: Request, settled: bool = False) -> None:
        """Append a request under a key not in the queue."""
        self._held[key] = (request, settled)

    def get(self, key: object) -> Request | None:
        """The request under a key, None if it has left."""
        found = self._held.get(key)
        return found[0] if found else None

    def settle(self, key: object, request: Request) -> None:
        """Replace the request under a key by its final form; no effect if it has left."""
        if key in self._held:
            self._held[key] = (request, True)

    def pop_ready(self, everything: bool = False) -> Iterator[tuple[object, Request]]:
        """Take requests off the front: settled ones, and any beyond the window."""
        while self._held:
            key, (request, settled) = next(iter(self._held.items()))
            if not (everything or settled or len(self._held) > self._window):
                return
            del self._held[key]
            yield key, request
