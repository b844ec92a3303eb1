"""What latencies are asked for, and the share of requests that must get them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hybridplan.errors import InputError
from hybridplan.sim.outcome import RequestOutcome

LIMITS = ("ttft", "tpot", "e2e")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m)")
USUAL_SHARE = 0.99
_LONGEST_S = 1e9


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds a request may take to its first token, a later token and its last one, None where
    nothing is asked; ``share`` of the requests must keep all of them."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    share: float = USUAL_SHARE

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(
                f"--slo-share {self.share:g} must be above 0 and at most 1, as in 0.99"
            )

    @property
    def limits(self) -> Mapping[str, float]:
        """Those that are asked for, by the names of LIMITS."""
        values = {name: getattr(self, f"{name}_s") for name in LIMITS}
        return {name: limit for name, limit in values.items() if limit is not None}

    def missed(self, outcome: RequestOutcome) -> tuple[str, ...]:
        """The limits a request broke. One of a single output token has no time between tokens."""
        times = {"ttft": outcome.ttft_s, "tpot": outcome.tpot_s, "e2e": outcome.e2e_s}
        return tuple(
            name
            for name, limit in self.limits.items()
            if (found := times[name]) is not None and found > limit
        )

    def __str__(self) -> str:
        parts = ",".join(f"{name}={duration(limit)}" for name, limit in self.limits.items())
        return f"{parts} for {self.share:.4g} of the requests"


def parse_slo(text: str, share: float = USUAL_SHARE) -> Slo:
    """``ttft=2s,tpot=50ms,e2e=30s``, any of them. Raises InputError for anything else."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        match = _DURATION.fullmatch(value)
        if name not in LIMITS or match is None or name in found:
            raise InputError(
                f"--slo {text!r}: {part.strip()!r} is not one of ttft=, tpot= or e2e= with a time"
                " such as 2s or 50ms, each at most once"
            )
        found[name] = float(match[1]) * _UNITS[match[2]]
        if not 0 < found[name] <= _LONGEST_S:
            raise InputError(
                f"--slo {text!r}: {part.strip()[:60]!r} must be above 0 and at most {_LONGEST_S:g}s"
            )
    return Slo(found.get("ttft"), found.get("tpot"), found.get("e2e"), share)


def duration(seconds: float) -> str:
    """As ``parse_slo`` reads it: 2s, 50ms, 80us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.6g}{unit}"
    return f"{seconds * 1e6:.6g}us"
