"""What a kernel benchmark declares, and how one case is checked and timed."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

L2_BYTES = 60 * 2**20
COPY_BYTES_PER_US = 4.18e6
"""In-place read-modify-write of 1 GiB on one H200, bytes read and written."""

READ_BYTES_PER_US = 4.47e6
"""Reading 1 GiB on one H200."""


@dataclass(frozen=True)
class Prepared:
    """One case on a device: a call per set of inputs, how to check the first, and its bytes.

    calls: each runs the operator once, writing only buffers of its own set.
    check: name -> (error, bound), for a fresh run of the first call; outputs are poisoned before.
    least_bytes: each input read once and each output written once.
    """

    calls: tuple[Callable[[], object], ...]
    check: Callable[[], Mapping[str, tuple[float, float]]]
    least_bytes: int


@dataclass(frozen=True)
class Case:
    """An operator at a shape. ``target`` is a bound on ``figure``: us, ratio or terabytes_per_s."""

    operator: str
    shape: str
    prepare: Callable[[torch.device], Prepared]
    floor_bytes_per_us: float = COPY_BYTES_PER_US
    figure: str = ""
    target: float = 0.0


@dataclass(frozen=True)
class Row:
    """Result of a case. Times are None unless every error is within its bound."""

    operator: str
    shape: str
    errors: Mapping[str, float]
    passed: bool
    least_bytes: int
    floor_us: float
    us: float | None = None
    spread: float | None = None
    ratio: float | None = None
    terabytes_per_s: float | None = None
    eager_host_us: float | None = None
    target: str = ""
    met: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


def input_sets(set_bytes: int, most: int = 16) -> int:
    """Sets to rotate so that the L2 cache holds none of them when its turn comes."""
    if set_bytes > 3 * L2_BYTES:
        return 1
    return max(2, min(most, math.ceil(4 * L2_BYTES / set_bytes)))


def relative_error(x: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference; inf where x is not finite."""
    if not bool(x.isfinite().all()):
        return math.inf
    return float((x.double() - reference).norm() / reference.norm())


def measure(case: Case, device: torch.device) -> Row:
    """Check a case, then time it in a replayed CUDA graph and its host time per eager call."""
    prepared = case.prepare(device)
    found = prepared.check()
    floor_us = prepared.least_bytes / case.floor_bytes_per_us
    row = Row(
        case.operator,
        case.shape,
        {name: error for name, (error, _) in found.items()},
        all(error <= bound for error, bound in found.values()),
        prepared.least_bytes,
        floor_us,
    )
    if not row.passed:
        return row
    us, spread = graph_us(prepared.calls)
    values = {
        "us": us,
        "ratio": us / floor_us,
        "terabytes_per_s": prepared.least_bytes / us / 1e6,
    }
    met = None
    if case.figure:
        value = values[case.figure]
        met = value >= case.target if case.figure == "terabytes_per_s" else value <= case.target
    return dataclasses.replace(
        row,
        **values,
        spread=spread,
        eager_host_us=eager_host_us(prepared.calls[0]),
        target=f"{case.figure} {case.target}" if case.figure else "",
        met=met,
    )


def graph_us(
    calls: tuple[Callable[[], object], ...], budget_ms: float = 15.0
) -> tuple[float, float]:
    """Median time of one call in a graph of all calls, and the spread of two rounds' medians.

    Two rounds that are more than 2 % apart are taken again, up to three times: with half a
    gigabyte or more a call, a card may lower its clocks for one of them.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def replay(times: int) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in "ab"] for _ in range(times)]
        for before, after in events:
            before.record()
            graph.replay()
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) * 1e3 / len(calls) for before, after in events]

    once_ms = max(replay(2)[-1] * len(calls) / 1e3, 1e-3)
    times = int(min(40, max(5, budget_ms / once_ms)))
    spread = math.inf
    for _ in range(4):
        rounds = [replay(times), replay(times)]
        first, second = (statistics.median(r) for r in rounds)
        spread = abs(first - second) / first
        if spread < 0.02:
            break
    return statistics.median(rounds[0] + rounds[1]), spread


def eager_host_us(call: Callable[[], object], times: int = 50, rounds: int = 5) -> float:
    """Host time of an eager call, without waiting for the device: the best of some rounds."""
    best = math.inf
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - start) / times * 1e6)
    torch.cuda.synchronize()
    return best
