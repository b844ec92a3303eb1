"""Ways to build the delta-rule prefill that give the same results, to be timed side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Variant:
    """What a prefill is built of.

    export: ``run`` ends the scan's loop at each exported state and starts it anew behind; ``loop``
    stores states between two full chunks from inside the loop.
    """

    export: Literal["run", "loop"] = "run"


DEFAULT = Variant()
