"""What a trace says about a request, in the words every engine's replay reads.

A prompt is its length and a chain of ids at a unit of U tokens (explicit tokens: U = 1, a
Mooncake file: U = 512, Bailian: 16, WEKA: 64). Engines ask for "the identity of the first k
tokens". Where k is no multiple of U the trace cannot tell: the *lower* bound calls two prefixes
equal only if the whole unit that contains k is equal, the *upper* bound if every unit wholly
inside k is equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token content of a prompt at the resolution of its trace.

    ``ids[i]`` names tokens ``[i * unit_tokens, min((i + 1) * unit_tokens, length_tokens))``.
    With ``chained`` an id also stands for everything before it (Mooncake, WEKA: equal id means
    equal prefix); otherwise for the unit's own content only. ``ids`` may be any sequence, a range
    included. A prompt without ids shares nothing with any other.
    ``scope`` says where an id is valid ("" is global; else a file or session name): ids of
    different scopes never match.
    """

    length_tokens: int
    unit_tokens: int = 1
    ids: Sequence[int] = ()
    chained: bool = False
    scope: str = ""

    @property
    def known_tokens(self) -> int:
        """Tokens from the left that the ids cover."""
        return min(self.length_tokens, len(self.ids) * self.unit_tokens)


@dataclass(frozen=True, slots=True)
class Request:
    """One line of a trace.

    ``arrival_s`` is None when the trace has no clock. ``sequence`` is the identity of prompt plus
    output where a later turn of the same session shows it; None means the output's ids are unknown
    and unique to this request. ``session`` and ``turn`` are None for single requests.
    """

    request_id: str
    prompt: Prompt
    output_tokens: int
    arrival_s: float | None = None
    session: str | None = None
    turn: int | None = None
    sequence: Prompt | None = None
