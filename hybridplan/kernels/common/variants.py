"""Ways to build the delta-rule prefill that give the same results, to be timed side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Variant:
    """What a prefill is built of.

    export: ``run`` ends the scan's loop at each exported state and starts it anew behind; ``loop``
    stores states between two full chunks from inside the loop.

    prepare, of Kimi delta attention alone: ``tokens`` deals single tokens out to threads; ``runs``
    followed by the channels worked on at a time gives each a run of tokens, ``free`` without a cap
    on registers.
    """

    export: Literal["run", "loop"] = "run"
    prepare: Literal["tokens", "runs32", "runs64", "runs64free", "runs128", "runs128free",
                     "halves", "halves168", "halves128"] = "tokens"


DEFAULT = Variant()
