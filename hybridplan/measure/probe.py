"""Ceilings of the card, from plain torch operations that share nothing with our kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hybridplan.ledger.calibration import Constant
from hybridplan.measure.timing import Timer


@dataclass(frozen=True, slots=True)
class Rates:
    """``copy`` counts bytes read and written in place, ``read`` bytes read only.

    ``launch_s`` is one kernel in a graph; the floors are what a copy or a read of no bytes would
    take. ``spreads`` are shares, by the names of :meth:`constants`.
    """

    copy_bytes_per_s: float
    copy_floor_s: float
    read_bytes_per_s: float
    read_floor_s: float
    launch_s: float
    dense_flop_per_s: float
    spreads: dict[str, float]

    def copy_s(self, size_bytes: float) -> float:
        """Reading and writing in place, bytes of both together."""
        return self.copy_floor_s + size_bytes / self.copy_bytes_per_s

    def read_s(self, size_bytes: float) -> float:
        """Reading."""
        return self.read_floor_s + size_bytes / self.read_bytes_per_s

    def least_seconds(self) -> dict[str, float]:
        """Seconds a unit of a step's features at these ceilings, below which no step can go."""
        flop_s = 1 / self.dense_flop_per_s
        return {
            "bytes": 1 / max(self.read_bytes_per_s, self.copy_bytes_per_s),
            "dense_flop": flop_s,
            "attention_flop": flop_s,
            "scan_flop": flop_s,
        }

    def constants(self) -> dict[str, Constant]:
        """As a calibration file names them."""
        how = "torch operations on the same card, median of two rounds"
        rows = (
            ("card.copy", self.copy_bytes_per_s, "bytes/s"),
            ("card.read", self.read_bytes_per_s, "bytes/s"),
            ("card.launch", self.launch_s, "s"),
            ("card.dense", self.dense_flop_per_s, "FLOP/s"),
        )
        return {
            name: Constant(v, unit, v * self.spreads.get(name, 0.0), how) for name, v, unit in rows
        }


_RAMP_PASSES = 400
"""In-place passes over the large buffer before the first time is taken: an idle card's clocks need
some tens of milliseconds to rise, and this is 0.2 s on the fastest."""

_BUSY_S = 0.8


def _large_bytes(free_bytes: int) -> int:
    return min(1 << 30, free_bytes // 8)


def keep_busy(device: Any, rates: Rates, free_bytes: int) -> None:
    """Queue in-place passes for most of a second and return while they run."""
    size = _large_bytes(free_bytes)
    big = torch.ones(size // 4, device=device)
    for _ in range(int(_BUSY_S / rates.copy_s(2 * size))):
        big.mul_(1.0)


def rates(timer: Timer, device: Any, free_bytes: int) -> Rates:
    """Measure them; takes about a second and at most a quarter of the free memory."""
    large = _large_bytes(free_bytes)
    small = 16 << 20
    spreads: dict[str, float] = {}
    big = torch.randn(large // 4, device=device)
    sets = [big[i * (small // 4) : (i + 1) * (small // 4)] for i in range(large // small)]
    one = torch.ones(1, device=device)
    for _ in range(_RAMP_PASSES):
        big.mul_(1.0)

    def slope(run: Callable[[Any], object], name: str, factor: int) -> tuple[float, float]:
        whole = timer.graph([partial(run, big)])
        part = timer.graph([partial(run, x) for x in sets[: max(16, timer.sets(small))]])
        spreads[name] = whole.spread
        per_s = factor * (large - small) / (whole.seconds - part.seconds)
        return per_s, max(0.0, part.seconds - factor * small / per_s)

    copy, copy_floor = slope(lambda x: x.mul_(1.0), "card.copy", 2)
    read, read_floor = slope(lambda x: x.sum(), "card.read", 1)
    launch = timer.graph([lambda: one.mul_(1.0)] * 200)
    spreads["card.launch"] = launch.spread
    n = 4096
    a, b = (torch.randn((n, n), device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    dense = timer.graph([lambda: torch.mm(a, b, out=out)] * 4)
    spreads["card.dense"] = dense.spread
    return Rates(
        copy, copy_floor, read, read_floor, launch.seconds, 2 * n**3 / dense.seconds, spreads
    )
