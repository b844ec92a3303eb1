"""A whole trace as one trie: which request passes through which stretch of tokens, and when.

Nothing is ever evicted here. Tokens of one edge are visited by the same requests, so a bound can
treat the edge as one divisible item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hybridplan.sim.request import Request
from hybridplan.sim.sequence import SequenceReader, TokenSequence, common_tokens


class Stretch:
    """Tokens ``[start, end)`` of every sequence that passes here. ``born`` is the index of the
    first request that did."""

    __slots__ = ("born", "children", "end", "parent", "sequence", "start")

    def __init__(
        self, sequence: TokenSequence, start: int, end: int, parent: Stretch | None, born: int
    ) -> None:
        self.sequence = sequence
        self.start = start
        self.end = end
        self.parent = parent
        self.born = born
        self.children: dict[bytes, Stretch] = {}

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Passage:
    """One request's way: the reusable part of its prompt, then the rest, each root first."""

    request_id: str
    prompt_tokens: int
    prompt: tuple[Stretch, ...]
    rest: tuple[Stretch, ...]


class Trie:
    """All requests of a trace, in order.

    ``spare_tokens`` of each prompt are never reusable: 1 where an engine always computes the last
    token, 0 as Marconi counts. Prompts at a unit above one token give lower bounds.
    """

    def __init__(self, requests: Iterable[Request], spare_tokens: int = 1) -> None:
        reader = SequenceReader()
        self.root = Stretch(TokenSequence(b"", 1, 0), 0, 0, None, -1)
        ends: list[tuple[Request, Stretch, Stretch]] = []
        for index, request in enumerate(requests):
            sequence = reader.read(request)
            limit = max(0, request.prompt.length_tokens - spare_tokens)
            self._reach(sequence, sequence.length_tokens, index)
            ends.append(
                (
                    request,
                    self._reach(sequence, limit, index),
                    self._reach(sequence, sequence.length_tokens, index),
                )
            )
        self.passages = tuple(self._passage(*end) for end in ends)

    def infinite_hits(self) -> tuple[int, ...]:
        """Hit tokens of each request in a cache that forgets nothing and holds every state."""
        return tuple(
            max((s.end for s in passage.prompt if s.born < index), default=0)
            for index, passage in enumerate(self.passages)
        )

    def most_hits(self) -> int:
        """Hit tokens of all requests that no cache can exceed, in whatever order they run: one
        prompt has to compute each stretch, unless an answer made it."""
        prompts: Counter[Stretch] = Counter()
        answered: set[Stretch] = set()
        for passage in self.passages:
            prompts.update(passage.prompt)
            answered.update(passage.rest)
        return sum(
            stretch.tokens * (times - (stretch not in answered))
            for stretch, times in prompts.items()
        )

    def _reach(self, sequence: TokenSequence, position: int, born: int) -> Stretch:
        """The stretch that ends at ``position``, made or cut as needed."""
        node = self.root
        while node.end < position:
            key = sequence.key(node.end, 1)
            child = node.children.get(key)
            if child is None:
                child = Stretch(sequence, node.end, position, node, born)
                node.children[key] = child
                return child
            shared = common_tokens(
                child.sequence, child.start, child.end, sequence, child.start, position
            )
            node = child if shared == child.tokens else self._cut(child, child.start + shared)
        return node

    @staticmethod
    def _cut(lower: Stretch, at: int) -> Stretch:
        parent = lower.parent
        assert parent is not None
        upper = Stretch(lower.sequence, lower.start, at, parent, lower.born)
        parent.children[lower.sequence.key(lower.start, 1)] = upper
        lower.start, lower.parent = at, upper
        upper.children[lower.sequence.key(at, 1)] = lower
        return upper

    def _passage(self, request: Request, prompt_end: Stretch, end: Stretch) -> Passage:
        prompt, whole = self._way(prompt_end), self._way(end)
        return Passage(
            request.request_id, request.prompt.length_tokens, prompt, whole[len(prompt) :]
        )

    @staticmethod
    def _way(stretch: Stretch) -> tuple[Stretch, ...]:
        way = []
        while stretch.parent is not None:
            way.append(stretch)
            stretch = stretch.parent
        return tuple(reversed(way))
