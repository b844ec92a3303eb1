"""Where to put M states among N positions so that later requests recompute least.

The dynamic programme of Sparse Prefix Caching (arXiv 2605.05219), exact, O(N M). A request whose
prompt agrees with the cached sequence on d tokens starts from the deepest state at or before d.
With S(p) the number of requests that agree on p tokens or more, a further state at p after one at
q saves (p - q) x S(p) tokens. For growing p the counts S(p) fall, so the best q is found on the
upper envelope of lines with a pointer that only moves one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from hybridplan.errors import InputError
from hybridplan.sim.bound.trie import Trie


@dataclass(frozen=True, slots=True)
class Placement:
    """``positions`` in tokens, ascending; ``saved_tokens`` over all requests, out of
    ``overlap_tokens`` that a state at every position would save."""

    positions: tuple[int, ...]
    saved_tokens: int
    overlap_tokens: int

    @property
    def saved_share(self) -> float:
        return self.saved_tokens / self.overlap_tokens if self.overlap_tokens else 0.0


def optimal_placement(overlaps: Sequence[int], states: int) -> Placement:
    """The best places for at most ``states`` states.

    ``overlaps[d]`` requests agree with the cached sequence on exactly d tokens. Among equally good
    placements one with the fewest states. Raises InputError on negative numbers.
    """
    if states < 0 or any(count < 0 for count in overlaps):
        raise InputError(
            f"{states} states, overlap counts {min(overlaps, default=0)} and up:"
            " neither may be negative"
        )
    length = len(overlaps)
    at_least = list(accumulate(reversed(overlaps)))[::-1]
    best = [0] * length  # tokens saved with the last state at p; p = 0 is no state
    chosen: list[list[int]] = []
    for _ in range(states):
        following, before = _one_more(best, at_least)
        if max(following, default=0) <= max(best, default=0):
            break
        chosen.append(before)
        best = following
    saved = max(best, default=0)
    positions: list[int] = []
    position = best.index(saved) if saved else 0
    for before in reversed(chosen):
        if position:
            positions.append(position)
            position = before[position]
    overlap_tokens = sum(d * count for d, count in enumerate(overlaps))
    return Placement(tuple(reversed(positions)), saved, overlap_tokens)


def _one_more(best: list[int], at_least: list[int]) -> tuple[list[int], list[int]]:
    """Tokens saved with one more state, the last at p, and where the state before it is.

    Line q is best[q] - q x S, taken at S = S(p); lines come with falling slope, S falls too.
    """
    following, before = [0] * len(best), [0] * len(best)
    envelope: list[int] = []
    pointer = 0
    for p in range(1, len(best)):
        _push(envelope, best, p - 1)
        pointer = min(pointer, len(envelope) - 1)
        count = at_least[p]
        while pointer + 1 < len(envelope) and _value(best, envelope[pointer + 1], count) > _value(
            best, envelope[pointer], count
        ):
            pointer += 1
        q = envelope[pointer]
        following[p] = _value(best, q, count) + p * count
        before[p] = q
    return following, before


def _value(best: list[int], q: int, count: int) -> int:
    return best[q] - q * count


def _push(envelope: list[int], best: list[int], q: int) -> None:
    """Add line q; drop lines that are nowhere on top any more. For falling S later lines win."""
    while len(envelope) > 1:
        first, second = envelope[-2], envelope[-1]
        # The second is useless if q overtakes it no later (at no smaller S) than it the first.
        if (best[second] - best[first]) * (q - second) <= (best[q] - best[second]) * (
            second - first
        ):
            envelope.pop()
        else:
            break
    envelope.append(q)


def overlap_histogram(trie: Trie, grid_tokens: int = 1) -> list[int]:
    """How many requests of a trace agree with earlier ones on exactly d tokens, in steps of
    ``grid_tokens``: entry d stands for d x grid_tokens tokens."""
    depths = [hit // grid_tokens for hit in trie.infinite_hits()]
    histogram = [0] * (max(depths, default=0) + 1)
    for depth in depths:
        histogram[depth] += 1
    return histogram
