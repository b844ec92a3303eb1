"""The two orders in which SGLang evicts: KV leaves by last access, states by their own LRU list.

SGLang builds its heap of leaves anew for each eviction. Access times only change at a few places,
so here a leaf is offered again whenever its time or its locks changed, and stale offers are
dropped when they come up.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from hybridplan.sim.sglang.node import NEVER, Node

_HEAP_SLACK = 256


class LeafHeap:
    """Evictable leaves, least recently accessed first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Node]] = []
        self._count = 0

    def offer(self, node: Node) -> None:
        """To be called whenever ``node`` may have become a victim or changed its access time."""
        if node.offered == node.access or not node.evictable_leaf:
            return
        node.offered = node.access
        self._count += 1
        heapq.heappush(self._heap, (node.access, self._count, node))

    def pop(self) -> Node | None:
        """The next victim, taken off the heap; None if no leaf can go."""
        while self._heap:
            access, _, node = heapq.heappop(self._heap)
            if access != node.offered:
                continue
            node.offered = NEVER
            if access == node.access and node.evictable_leaf:
                return node
        return None

    def shrink(self, tree_nodes: int) -> None:
        """Drop stale offers once they outnumber the tree."""
        if len(self._heap) > 2 * tree_nodes + _HEAP_SLACK:
            live = []
            for entry in self._heap:
                if entry[0] != entry[2].offered:
                    continue
                if entry[0] == entry[2].access and entry[2].evictable_leaf:
                    live.append(entry)
                else:
                    entry[2].offered = NEVER
            heapq.heapify(live)
            self._heap = live


class StateOrder:
    """Nodes that hold a state, least recently used first."""

    def __init__(self) -> None:
        self._order: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def touch(self, node: Node) -> None:
        """Make ``node`` the most recently used; adds it if it is new."""
        self._order[node] = None
        self._order.move_to_end(node)

    def remove(self, node: Node) -> None:
        del self._order[node]

    def victim(self) -> Node | None:
        """The least recently used state that no request holds; stays in the order."""
        for node in self._order:
            if node.state_lock == 0:
                return node
        return None

    def most_recent_first(self) -> list[Node]:
        return list(reversed(self._order))
