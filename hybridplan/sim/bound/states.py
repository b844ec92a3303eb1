"""A bound on what M state slots can hit, KV aside.

A hit needs one state, at the deepest kept place of the prompt. Keeping the state of a place from
one request that passes it to the next costs one slot for the requests in between. Choosing such
intervals under M slots at every moment is hard, as a request only profits from its deepest state;
so the slots are only summed over time, M x (requests - 1), and the last interval may be taken in
part. No policy can exceed that sum. It is the relaxation of Berger, Beckmann and Harchol-Balter
(practical bounds on optimal caching, 2018) with one choice a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cmp_to_key

from hybridplan.errors import InputError
from hybridplan.sim.bound.trie import Passage, Stretch, Trie


@dataclass(frozen=True, slots=True)
class Interval:
    """Keep a state for ``gaps`` requests and hit ``tokens``."""

    gaps: int
    tokens: int


def state_hits_bound(trie: Trie, states: int, grid_tokens: int = 1) -> int:
    """No policy with ``states`` slots hits more prompt tokens in all, whatever its KV.

    ``grid_tokens``: states can only lie at multiples of it. Raises InputError on bad numbers.
    """
    if states < 0 or grid_tokens < 1:
        raise InputError(f"{states} states on a grid of {grid_tokens} tokens: not a cache")
    budget = states * (len(trie.passages) - 1)
    total = 0
    steps: list[Interval] = []
    for options in choices(trie, grid_tokens):
        previous = Interval(0, 0)
        for option in _hull(options):
            steps.append(Interval(option.gaps - previous.gaps, option.tokens - previous.tokens))
            previous = option
    # Compared by products: a quotient rounded the wrong way would no longer be a bound.
    steps.sort(key=cmp_to_key(lambda a, b: b.tokens * a.gaps - a.tokens * b.gaps))
    for step in steps:
        if step.gaps > budget:
            return total + step.tokens * budget // step.gaps
        total += step.tokens
        budget -= step.gaps
    return total


def choices(trie: Trie, grid_tokens: int = 1) -> list[list[Interval]]:
    """For each request the states it could start from, shallow first."""
    last_pass: dict[Stretch, int] = {}
    found = []
    for index, passage in enumerate(trie.passages):
        found.append(_options(passage, index, last_pass, grid_tokens))
        last_pass.update(dict.fromkeys((*passage.prompt, *passage.rest), index))
    return found


def _options(
    passage: Passage, index: int, last_pass: dict[Stretch, int], grid_tokens: int
) -> list[Interval]:
    options = []
    for stretch in passage.prompt:
        if stretch not in last_pass:
            break
        tokens = stretch.end // grid_tokens * grid_tokens
        if tokens > stretch.start:
            options.append(Interval(index - last_pass[stretch], tokens))
    return options


def _hull(options: list[Interval]) -> list[Interval]:
    """The options no mixture of others beats; each step along them is worth less than the last."""
    hull: list[Interval] = [Interval(0, 0)]
    for option in options:
        while hull[-1].gaps == option.gaps or (
            len(hull) > 1 and _steeper(hull[-2], option, hull[-1])
        ):
            hull.pop()
        hull.append(option)
    return hull[1:]


def _steeper(base: Interval, option: Interval, middle: Interval) -> bool:
    """Whether going straight from ``base`` to ``option`` is at least as good as by ``middle``."""
    return (option.tokens - base.tokens) * (middle.gaps - base.gaps) >= (
        middle.tokens - base.tokens
    ) * (option.gaps - base.gaps)
