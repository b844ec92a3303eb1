"""A timed run with a made-up clock in the GPU's place: its branches run, its times mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hybridplan.config.find import load
from hybridplan.measure import device as devices
from hybridplan.measure.checks.decode import Grid
from hybridplan.measure.context import Context, tiny
from hybridplan.measure.gates import Gates
from hybridplan.measure.probe import Rates
from hybridplan.measure.steps import Shape
from hybridplan.measure.timing import Timing


class HostTimer:
    """Runs each call once; stands in for CUDA graphs. Every time it gives is longer than the last,
    whatever the machine does, so that a test always takes the same branches."""

    l2_bytes = 1

    def __init__(self) -> None:
        self._timed = 0

    def sets(self, bytes_per_set: int, most: int = 16) -> int:
        return 2

    def graph(self, calls: Sequence[Callable[[], object]]) -> Timing:
        for call in calls[:3]:
            call()
        self._timed += 1
        return Timing(1e-3 * self._timed, 0.0, 1)

    def eager(self, call: Callable[[], object]) -> Timing:
        return self.graph([call])


@dataclass
class Rehearsal(Context):
    """A timed run on the CPU: the branches of a GPU, the sizes of the interpreter."""

    def pick(self, full: Any, quick: Any, cpu: Any) -> Any:
        if not isinstance(cpu, tuple) or cpu:
            return cpu or 4
        if full and isinstance(full[0], Grid):
            return (Grid(1, 70), Grid(2, 40))
        if full and isinstance(full[0], Shape):
            kinds = (("decode", 1), ("decode", 2), ("prefill", 1), ("prefill", 2))
            return tuple(Shape(k, n, t) for k, n in kinds for t in (10, 20, 30))
        return full[:2]


RATES = Rates(4e12, 1e-6, 4.4e12, 2e-6, 2e-6, 7e14, {})


def make_context(kind: type[Context], model: str, timed: bool) -> Any:
    """A context on the CPU; a timed one is a quick one."""
    spec = load(model)
    device = torch.device("cpu")
    timer: Any = HostTimer() if timed else None
    return kind(
        spec, tiny(spec), device, devices.describe(torch, device), timed, Gates(device), timer,
        RATES if timed else None, None, lambda _: None,
    )  # fmt: skip
