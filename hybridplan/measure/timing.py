"""Times on a CUDA device: graphs, inputs rotated beyond L2, medians, everything twice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Median time of one call, and by how much two rounds' medians differ, as a share."""

    seconds: float
    spread: float
    replays: int


class Timer:
    """Times calls on one CUDA device. ``budget_s`` bounds a round of replays."""

    def __init__(self, torch: Any, device: Any, l2_bytes: int, budget_s: float = 0.012) -> None:
        self._torch = torch
        self._device = device
        self._side: Any = None
        self.l2_bytes = l2_bytes
        self.budget_s = budget_s

    def sets(self, bytes_per_set: int, most: int = 256) -> int:
        """Input sets to rotate so that L2 holds none of them when its turn comes.

        ``bytes_per_set`` counts each address once, also where it is read and written.
        """
        if bytes_per_set > 3 * self.l2_bytes:
            return 1
        return max(2, min(most, math.ceil(4 * self.l2_bytes / max(1, bytes_per_set))))

    def graph(self, calls: Sequence[Call]) -> Timing:
        """One call's share of a graph of all ``calls`` in turn, replayed in two rounds."""
        torch = self._torch
        if self._side is None:
            self._side = torch.cuda.Stream(self._device)
        side, current = self._side, torch.cuda.current_stream(self._device)
        side.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        # one stream for all warm-ups and captures: its cuBLAS workspace is then no part of a graph,
        # and leaving the block brings the current stream back even where a capture fails
        with torch.cuda.stream(side):
            for call in calls:
                call()
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(graph, stream=side):
                for call in calls:
                    call()
        current.wait_stream(side)
        timing = self._rounds(graph.replay, len(calls))
        del graph
        return timing

    def eager(self, call: Call) -> Timing:
        """A call that cannot be captured, between events."""
        call()
        return self._rounds(call, 1)

    def _rounds(self, run: Call, share: int) -> Timing:
        self._replay(run, 1)
        once_s = max(self._replay(run, 1)[0], 1e-6)
        times = int(min(40, max(3, self.budget_s / once_s)))
        rounds = [[t / share for t in self._replay(run, times)] for _ in range(2)]
        first, second = (statistics.median(r) for r in rounds)
        return Timing(
            statistics.median(rounds[0] + rounds[1]), abs(first - second) / first, 2 * times
        )

    def _replay(self, run: Call, times: int) -> list[float]:
        torch = self._torch
        events = [
            tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(times)
        ]
        for before, after in events:
            before.record()
            run()
            after.record()
        torch.cuda.synchronize(self._device)
        return [before.elapsed_time(after) / 1e3 for before, after in events]
