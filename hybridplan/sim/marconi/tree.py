"""The radix tree both modes of Marconi share: edges of KV, a state at a node's end.

Children keep the order in which they came, as that order settles ties between victims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hybridplan.sim.sequence import TokenSequence, common_tokens


class Node:
    """KV of ``sequence[start:end]``; ``access`` is the tree's clock at its last use, ``used`` tells
    that its state has served a hit."""

    __slots__ = (
        "access",
        "children",
        "efficiency",
        "end",
        "has_state",
        "parent",
        "sequence",
        "start",
        "used",
    )

    def __init__(
        self, sequence: TokenSequence, start: int, end: int, parent: Node | None, access: int
    ) -> None:
        self.sequence = sequence
        self.start = start
        self.end = end
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.access = access
        self.has_state = True
        self.used = False
        self.efficiency = 0.0

    @property
    def tokens(self) -> int:
        return self.end - self.start

    def __lt__(self, other: Node) -> bool:
        return self.access < other.access


class RadixTree:
    """Nodes, their number and bytes, and the nodes that may be evicted.

    ``states_kept`` counts every state ever put in, ``states_hit`` those that served at least one
    hit. ``candidates`` are the nodes with at most one child. ``efficiency`` gives a node's FLOPs
    per byte; it is asked again whenever a node's edge changes.
    """

    def __init__(self, efficiency: Callable[[Node], float] | None = None) -> None:
        self.root = Node(TokenSequence(b"", 1, 0), 0, 0, None, 0)
        self.root.has_state = False
        self.states = self.states_kept = self.states_hit = 0
        self.kv_tokens = 0
        self.candidates: dict[Node, None] = {}
        self.efficiency = efficiency

    def child(self, node: Node, sequence: TokenSequence, position: int) -> Node | None:
        """The child of ``node`` whose edge begins with the token at ``position``."""
        return node.children.get(sequence.key(position, 1))

    def shared(self, child: Node, sequence: TokenSequence, position: int, end: int) -> int:
        """Tokens of ``child``'s edge that ``sequence[position:end]`` runs along."""
        return common_tokens(child.sequence, child.start, child.end, sequence, position, end)

    def add_leaf(self, parent: Node, sequence: TokenSequence, end: int, access: int) -> Node:
        """KV of ``sequence[parent.end:end]`` and the state at its end."""
        leaf = Node(sequence, parent.end, end, parent, access)
        parent.children[sequence.key(parent.end, 1)] = leaf
        self._count_state()
        self.kv_tokens += leaf.tokens
        self._renew(leaf)
        self._review(leaf)
        self._review(parent)
        return leaf

    def split(self, child: Node, at: int, access: int, has_state: bool = True) -> Node:
        """Cut ``child``'s edge; the new upper node takes its place among its siblings."""
        parent = child.parent
        assert parent is not None
        upper = Node(child.sequence, child.start, at, parent, access)
        upper.has_state = has_state
        if has_state:
            self._count_state()
        parent.children[child.sequence.key(child.start, 1)] = upper
        child.start, child.parent = at, upper
        upper.children[child.sequence.key(at, 1)] = child
        self._renew(upper)
        self._renew(child)
        self._review(upper)
        return upper

    def give_state(self, node: Node) -> None:
        """Put a state on a node that has none."""
        node.has_state = True
        self._count_state()

    def note_hit(self, node: Node) -> None:
        """The state of ``node`` served a request."""
        if node is not self.root and not node.used:
            node.used = True
            self.states_hit += 1

    def delete_leaf(self, leaf: Node) -> None:
        """Drop a childless node with its KV and state."""
        parent = leaf.parent
        assert parent is not None
        assert not leaf.children
        self.states -= leaf.has_state
        self.kv_tokens -= leaf.tokens
        del parent.children[leaf.sequence.key(leaf.start, 1)]
        leaf.parent = None
        self.candidates.pop(leaf, None)
        self._review(parent)

    def absorb(self, node: Node) -> Node:
        """Drop a one-child node's state; its child takes over the KV of its edge."""
        parent = node.parent
        (child,) = node.children.values()
        assert parent is not None
        self.states -= node.has_state
        parent.children[child.sequence.key(node.start, 1)] = child
        child.start, child.parent = node.start, parent
        child.access = max(child.access, node.access)
        node.parent = None
        self.candidates.pop(node, None)
        self._renew(child)
        return child

    def clone(self) -> RadixTree:
        """The same tree again, sharing only the sequences."""
        twin = RadixTree(self.efficiency)
        twin.states, twin.kv_tokens = self.states, self.kv_tokens
        twin_of = {self.root: twin.root}
        for node in self.preorder():
            parent = node.parent
            assert parent is not None
            copy = Node(node.sequence, node.start, node.end, twin_of[parent], node.access)
            copy.has_state, copy.efficiency = node.has_state, node.efficiency
            twin_of[parent].children[node.sequence.key(node.start, 1)] = copy
            twin_of[node] = copy
        twin.candidates = {twin_of[node]: None for node in self.candidates}
        return twin

    def preorder(self) -> Iterator[Node]:
        """Every node but the root, parents first, siblings in the order they came."""
        stack = list(reversed(self.root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def last_in_preorder(self) -> Node:
        """The end of the rightmost path; the root if the tree is empty."""
        node = self.root
        while node.children:
            node = next(reversed(node.children.values()))
        return node

    def first_in_preorder(self, nodes: list[Node]) -> Node:
        """Whichever of ``nodes`` a depth-first walk meets first."""
        if len(nodes) == 1:
            return nodes[0]
        return min(nodes, key=self._place)

    def _place(self, node: Node) -> list[int]:
        ranks = []
        while node.parent is not None:
            ranks.append(next(i for i, n in enumerate(node.parent.children.values()) if n is node))
            node = node.parent
        return ranks[::-1]

    def _count_state(self) -> None:
        self.states += 1
        self.states_kept += 1

    def _renew(self, node: Node) -> None:
        if self.efficiency is not None:
            node.efficiency = self.efficiency(node)

    def _review(self, node: Node) -> None:
        if node is self.root:
            return
        if len(node.children) <= 1:
            self.candidates[node] = None
        else:
            self.candidates.pop(node, None)
