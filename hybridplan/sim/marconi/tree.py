"""The radix tree both modes of Marconi share: edges of KV, a state at a node's end.

Children keep the order in which they came, as that order settles ties between victims.
"""

from __future__ import annotations

from collections.abc import Iterator

from hybridplan.sim.sequence import TokenSequence


class Node:
    """KV of ``sequence[start:end]``, which hangs under ``key`` at its parent.

    ``access`` is the tree's clock at its last use, ``used`` tells that its state has served a hit.
    ``serial`` is its own in its tree; the values it is filed under are those of `victims`.
    """

    __slots__ = (
        "access",
        "children",
        "end",
        "filed_access",
        "filed_efficiency",
        "has_state",
        "key",
        "parent",
        "sequence",
        "serial",
        "start",
        "used",
    )

    def __init__(
        self,
        sequence: TokenSequence,
        start: int,
        end: int,
        parent: Node | None,
        key: bytes,
        access: int,
        serial: int,
    ) -> None:
        self.sequence = sequence
        self.start = start
        self.end = end
        self.parent = parent
        self.key = key
        self.children: dict[bytes, Node] = {}
        self.access = access
        self.serial = serial
        self.has_state = True
        self.used = False
        self.filed_access: int | None = None
        self.filed_efficiency: float | None = None

    @property
    def tokens(self) -> int:
        return self.end - self.start

    def __lt__(self, other: Node) -> bool:
        """Older; of two equally old nodes neither is, so pairs of time and node tie as well."""
        return self.access < other.access


class RadixTree:
    """Nodes, their number and bytes.

    ``states_kept`` counts every state ever put in, ``states_hit`` those that served at least one
    hit. ``changed`` are the nodes whose edge, children or time changed, and nodes that went, since
    whoever reads it last cleared it.
    """

    def __init__(self) -> None:
        self.root = Node(TokenSequence(b"", 1, 0), 0, 0, None, b"", 0, 0)
        self.root.has_state = False
        self.states = self.states_kept = self.states_hit = 0
        self.kv_tokens = 0
        self.changed: set[Node] = set()
        self._serials = 0

    def touch(self, node: Node, now: int) -> None:
        """Note a use."""
        node.access = now
        self.changed.add(node)

    def add_leaf(self, parent: Node, sequence: TokenSequence, end: int, access: int) -> Node:
        """KV of ``sequence[parent.end:end]`` and the state at its end."""
        start = parent.end
        leaf = self._hang(parent, sequence, start, end, sequence.key(start, 1), access)
        self._count_state()
        self.kv_tokens += end - start
        self.changed.add(parent)
        return leaf

    def split(self, child: Node, at: int, access: int, has_state: bool = True) -> Node:
        """Cut ``child``'s edge; the new upper node takes its place among its siblings."""
        parent = child.parent
        assert parent is not None
        upper = self._hang(parent, child.sequence, child.start, at, child.key, access)
        upper.has_state = has_state
        if has_state:
            self._count_state()
        child.start, child.parent, child.key = at, upper, child.sequence.key(at, 1)
        upper.children[child.key] = child
        self.changed.add(child)
        return upper

    def give_state(self, node: Node) -> None:
        """Put a state on a node that has none."""
        node.has_state = True
        self._count_state()

    def note_hit(self, node: Node) -> None:
        """The state of ``node`` served a request."""
        if not node.used and node is not self.root:
            node.used = True
            self.states_hit += 1

    def delete_leaf(self, leaf: Node) -> None:
        """Drop a childless node with its KV and state."""
        parent = leaf.parent
        assert parent is not None
        assert not leaf.children
        self.states -= leaf.has_state
        self.kv_tokens -= leaf.end - leaf.start
        del parent.children[leaf.key]
        leaf.parent = None
        self.changed.add(leaf)
        self.changed.add(parent)

    def absorb(self, node: Node) -> Node:
        """Drop a one-child node's state; its child takes over the KV of its edge."""
        parent = node.parent
        (child,) = node.children.values()
        assert parent is not None
        self.states -= node.has_state
        parent.children[node.key] = child
        child.start, child.parent, child.key = node.start, parent, node.key
        child.access = max(child.access, node.access)
        node.parent = None
        self.changed.add(node)
        self.changed.add(child)
        return child

    def clone(self) -> RadixTree:
        """The same tree again, sharing only the sequences."""
        twin = RadixTree()
        twin.states, twin.kv_tokens = self.states, self.kv_tokens
        twin.root.access = self.root.access
        twin_of = {self.root: twin.root}
        for node in self.preorder():
            parent = node.parent
            assert parent is not None
            copy = twin._hang(
                twin_of[parent], node.sequence, node.start, node.end, node.key, node.access
            )
            copy.has_state = node.has_state
            twin_of[node] = copy
        return twin

    def preorder(self) -> Iterator[Node]:
        """Every node but the root, parents first, siblings in the order they came."""
        stack = list(reversed(self.root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def leaves(self) -> list[Node]:
        """Every childless node in that order; the root if the tree is empty."""
        found = []
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(reversed(node.children.values()))
            else:
                found.append(node)
        return found

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

    def _hang(
        self, parent: Node, sequence: TokenSequence, start: int, end: int, key: bytes, access: int
    ) -> Node:
        """A new node; whatever hung under its key gives way."""
        self._serials += 1
        node = Node(sequence, start, end, parent, key, access, self._serials)
        parent.children[key] = node
        self.changed.add(node)
        return node

    def _count_state(self) -> None:
        self.states += 1
        self.states_kept += 1
