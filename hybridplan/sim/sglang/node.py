"""One edge of the tree and the state at its lower end."""

from __future__ import annotations

from hybridplan.sim.sequence import TokenSequence

NEVER = -1.0


class Node:
    """KV of ``sequence[start:end]``, and perhaps the state at ``end``.

    ``full_lock`` counts requests that need the KV (every node up to the root), ``state_lock``
    those that need this very state; ``state_used`` tells that it has served a hit. ``access``
    orders KV victims. ``offered`` is the access time under which the node last entered the
    victims' heap.
    """

    __slots__ = (
        "access",
        "children",
        "end",
        "full_lock",
        "offered",
        "parent",
        "sequence",
        "start",
        "state",
        "state_lock",
        "state_used",
    )

    def __init__(
        self, sequence: TokenSequence, start: int, end: int, parent: Node | None, access: float
    ) -> None:
        self.sequence = sequence
        self.start = start
        self.end = end
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.state = False
        self.full_lock = 0
        self.state_lock = 0
        self.state_used = False
        self.access = access
        self.offered = NEVER

    @property
    def tokens(self) -> int:
        return self.end - self.start

    @property
    def evictable_leaf(self) -> bool:
        """In the tree, no child, no lock of any kind (`unified_tree_core`)."""
        return (
            self.parent is not None
            and not self.children
            and self.full_lock == 0
            and self.state_lock == 0
        )
