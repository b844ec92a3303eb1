"""The infinite-cache ceiling: how much of a prompt some earlier request already showed.

Counted at the trace's own resolution, in trace order, whatever an engine had computed by then. Its
memory grows with the distinct content of the trace: an infinite cache cannot be bounded.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hybridplan.sim.request import Prompt, Request


class InfiniteCache:
    """Every prompt seen so far, and what follows it where the trace shows it."""

    def __init__(self) -> None:
        self._chained: dict[str, set[int]] = {}
        self._roots: dict[tuple[str, int], _Node] = {}

    def reusable_tokens(self, request: Request) -> int:
        """Leading prompt tokens already seen. Does not remember the request.

        Where a later turn shows the prompt's last unit whole, that reading counts too.
        """
        tokens = self._seen(request.prompt)
        sequence = request.sequence
        if sequence is not None and sequence.ids:
            tokens = max(tokens, min(self._seen(sequence), request.prompt.length_tokens))
        return tokens

    def _seen(self, prompt: Prompt) -> int:
        if not prompt.ids:
            return 0
        units = 0
        if prompt.chained:
            seen = self._chained.get(prompt.scope, ())
            for unit_id in prompt.ids:
                if unit_id not in seen:
                    break
                units += 1
        else:
            root = self._roots.get((prompt.scope, prompt.unit_tokens))
            units = root.match(prompt.ids) if root is not None else 0
        return min(units * prompt.unit_tokens, prompt.known_tokens)

    def remember(self, request: Request) -> None:
        """Add the request's prompt and, where known, its output."""
        self._add(request.prompt)
        if request.sequence is not None:
            self._add(request.sequence)

    def _add(self, prompt: Prompt) -> None:
        if not prompt.ids:
            return
        if prompt.chained:
            self._chained.setdefault(prompt.scope, set()).update(prompt.ids)
        else:
            key = (prompt.scope, prompt.unit_tokens)
            self._roots.setdefault(key, _Node(())).insert(prompt.ids)


class _Node:
    """An edge of a radix tree and what hangs below it. Compares whole slices, not ids."""

    __slots__ = ("children", "edge")

    def __init__(self, edge: Sequence[int]) -> None:
        self.edge = edge
        self.children: dict[int, _Node] = {}

    def match(self, ids: Sequence[int]) -> int:
        node, at = self, 0
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                break
            common = _common(child.edge, ids, at)
            at += common
            if common < len(child.edge):
                break
            node = child
        return at

    def insert(self, ids: Sequence[int]) -> None:
        node, at = self, 0
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                node.children[ids[at]] = _Node(_packed(ids[at:]))
                return
            common = _common(child.edge, ids, at)
            at += common
            if common < len(child.edge):
                child._split(common)
            node = child

    def _split(self, at: int) -> None:
        tail = _Node(self.edge[at:])
        tail.children = self.children
        self.children = {tail.edge[0]: tail}
        self.edge = self.edge[:at]


def _packed(ids: Sequence[int]) -> Sequence[int]:
    try:
        return array("q", ids)
    except OverflowError:
        return tuple(ids)


def _common(edge: Sequence[int], ids: Sequence[int], at: int) -> int:
    """Leading ids on which ``edge`` and ``ids[at:]`` agree; at least one does."""
    most = min(len(edge), len(ids) - at)
    window = _packed(ids[at : at + most])
    if type(window) is not type(edge):
        window, edge = tuple(window), tuple(edge)
    if window[:most] == edge[:most]:
        return most
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        if window[low:middle] == edge[low:middle]:
            low = middle
        else:
            high = middle
    return low
