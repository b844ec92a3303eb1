"""What a user decides about SGLang's memory, beside the Deployment."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from hybridplan.errors import InputError

Replay: TypeAlias = Literal["off", "decode", "verify"]
REPLAYS: dict[str, Replay] = {"off": "off", "decode": "decode", "verify": "verify"}


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """Flags of SGLang 0.5.23 that decide the split.

    ``strategy`` is ``--mamba-radix-cache-strategy``, ``ratio`` ``--mamba-full-memory-ratio``,
    ``slots`` ``--max-mamba-cache-size``. ``host_ratio`` (``--hicache-ratio``) or ``host_bytes``
    (``--hicache-size``) size the host tier. ``preallocated_requests`` > 0 plans a PD decode server.
    ``context_tokens`` None: the model's maximum; ``chunk_tokens`` None: its own state chunk.
    """

    strategy: str = "auto"
    ratio: Fraction = Fraction(9, 10)
    slots: int | None = None
    max_running_requests: int | None = None
    context_tokens: int | None = None
    page_tokens: int = 1
    overlap: bool = True
    radix_cache: bool = True
    skip_decode_lock: bool = False
    replay: Replay = "off"
    replay_rows: int = 16
    prefill_server: bool = False
    preallocated_requests: int = 0
    host_ratio: Fraction | None = None
    host_bytes: int | None = None
    track_interval_tokens: int = 256
    chunk_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.ratio <= 0:
            raise InputError(f"--mamba-full-memory-ratio is {self.ratio}; it must be above 0")
        for name in ("slots", "max_running_requests", "context_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be 1 or more")
        if self.host_ratio is not None and self.host_bytes is not None:
            raise InputError("--hicache-ratio and --hicache-size both size the host tier; give one")
        if self.replay == "decode" and self.strategy not in ("auto", "no_buffer"):
            raise InputError(
                f"--enable-linear-replayssm needs strategy no_buffer and {self.strategy} was asked"
            )
