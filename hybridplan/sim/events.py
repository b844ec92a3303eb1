"""Events of a replay, for ``--events`` and for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Event:
    """Something the cache did in an engine step.

    ``kind`` is allocate, publish, hit, evict, copy, preempt or finish. ``position_tokens`` is the
    prefix length a key stands for (publish), or the hit (hit). ``group`` is -1 where an event
    concerns all groups. ``blocks`` are ids; a copy's are (source, target).
    """

    step: int
    kind: str
    request_id: str = ""
    group: int = -1
    blocks: tuple[int, ...] = ()
    position_tokens: int = 0


class EventSink(Protocol):
    """Receives events in order. An exception ends the replay."""

    def __call__(self, event: Event, /) -> None: ...
