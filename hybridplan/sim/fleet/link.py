"""A link that sends one transfer after another at full rate. Times are whole ticks."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.errors import InputError

GB = 10**9
LONGEST_LATENCY_S = 3600


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """``bytes_per_s`` of one rank's link, and what every transfer takes beside its bytes."""

    bytes_per_s: int
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.bytes_per_s < 1:
            raise InputError(f"a link of {self.bytes_per_s:,} B/s is none; give more than 0 GB/s")
        if not 0 <= self.latency_s <= LONGEST_LATENCY_S:
            raise InputError(
                f"a latency of {self.latency_s * 1e3:g} ms a transfer is none; give 0 to"
                f" {LONGEST_LATENCY_S * 1000:,} ms (1 h)"
            )

    @classmethod
    def of_gb_s(cls, gb_per_s: float, flag: str, latency_s: float = 0.0) -> LinkSpeed:
        """A speed in GB/s (1e9 bytes). Raises InputError naming the flag."""
        if not 1 / GB <= gb_per_s <= 1e6:
            raise InputError(
                f"{flag} {gb_per_s:g} must be above 0 (at least 1 B/s) and at most 1,000,000 GB/s"
            )
        return cls(round(gb_per_s * GB), latency_s)

    def ticks(self, moved_bytes: int, ticks_per_s: int) -> int:
        """Ticks of one transfer, rounded up; latency included."""
        moving = -(-moved_bytes * ticks_per_s // self.bytes_per_s)
        return moving + round(self.latency_s * ticks_per_s)


@dataclass(slots=True)
class Link:
    """One end of transfers: when it is free again, what it moved and how long that took."""

    free_at: int = 0
    busy_ticks: int = 0
    moved_bytes: int = 0
    transfers: int = 0


def send(
    ends: tuple[Link, ...], speed: LinkSpeed, moved_bytes: int, ready: int, ticks_per_s: int
) -> tuple[int, int]:
    """Move bytes once every end is free, in the order asked; returns begin and end."""
    begin = max(ready, *(end.free_at for end in ends))
    ticks = speed.ticks(moved_bytes, ticks_per_s)
    for end in ends:
        end.free_at = begin + ticks
        end.busy_ticks += ticks
        end.moved_bytes += moved_bytes
        end.transfers += 1
    return begin, begin + ticks
