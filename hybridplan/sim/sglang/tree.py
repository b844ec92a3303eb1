"""SGLang's unified radix tree with the FULL (KV) and MAMBA (state) components.

Rules of `mem_cache/unified_cache/unified_tree_core.py` and `components/mamba.py`, SGLang 0.5.23:
lookup (spec section 4), insert (6), locks (7), eviction (8). One node is one edge; the state, if
any, belongs to its lower end. Pools are counters: which slot is taken never matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridplan.sim.sequence import TokenSequence, common_tokens
from hybridplan.sim.sglang.node import Node
from hybridplan.sim.sglang.victims import LeafHeap, StateOrder

_PARENT_IS_OLDER_BY = 0.00001


@dataclass(frozen=True, slots=True)
class Match:
    """A lookup. ``node`` is valid until the next eviction unless it is locked.

    ``kv_tokens`` is what KV alone would allow (`full_kv_hit_length`); ``hit_tokens`` ends at a
    state; ``branch_tokens`` is the position whose state prefill is asked to keep, or None.
    """

    node: Node
    hit_tokens: int
    kv_tokens: int
    branch_tokens: int | None


class StateTree:
    """The tree and its two pools. Single-threaded; every method leaves the counters consistent.

    ``kv_free`` and ``slots_free`` are the pools' free tokens and state slots; requests take from
    and give to them directly. ``evicted_kv_tokens``, ``evicted_states`` and ``evictions`` (victims)
    only grow.
    """

    def __init__(
        self,
        kv_tokens: int,
        state_slots: int,
        page_tokens: int = 1,
        checkpoint_grid: int = 64,
        max_states_per_path: int = -1,
    ) -> None:
        self.page_tokens = page_tokens
        self.checkpoint_grid = checkpoint_grid
        self.max_states_per_path = max_states_per_path
        self.kv_tokens, self.state_slots = kv_tokens, state_slots
        self.kv_free, self.slots_free = kv_tokens, state_slots
        self.evicted_kv_tokens = self.evicted_states = self.evictions = 0
        self.tree_tokens = self.protected_tokens = self.protected_states = 0
        self.node_count = 0
        self.leaves = LeafHeap()
        self.states = StateOrder()
        self._now = 0.0
        self.root = Node(TokenSequence(b"", 1, 0), 0, 0, None, self._tick())
        self._tick()
        self.root.full_lock = self.root.state_lock = 1

    # Lookup

    def match(self, sequence: TokenSequence, limit_tokens: int) -> Match:
        """The deepest state on the path of ``sequence[:limit_tokens]``, cut to whole pages.

        Splits the edge in which the path ends, refreshes access times and the state's place in
        its LRU. Takes no lock.
        """
        end = limit_tokens // self.page_tokens * self.page_tokens
        if end <= 0:
            return Match(self.root, 0, 0, None)
        node = best = self.root
        kv_tokens = 0
        while node.end < end:
            child = node.children.get(sequence.key(node.end, self.page_tokens))
            if child is None:
                break
            shared = self._shared(child, sequence, end)
            kv_tokens = child.start + shared
            if kv_tokens < child.end:
                self._split(child, kv_tokens)  # the upper part has no state
                break
            node = child
            if node.state:
                best = node
        if best.state:
            self.states.touch(best)
        access: float = self._tick()
        above: Node | None = best
        while above is not None:
            above.access = access
            access -= _PARENT_IS_OLDER_BY
            above = above.parent
        self.leaves.offer(best)
        branch = kv_tokens // self.checkpoint_grid * self.checkpoint_grid
        return Match(best, best.end, kv_tokens, branch if branch > best.end else None)

    # Locks

    def lock(self, node: Node, state: bool = True) -> None:
        """Hold the KV of the path to ``node`` and, with ``state``, the state on it."""
        if state and node is not self.root:
            if node.state_lock == 0 and node.state:
                self.protected_states += 1
            node.state_lock += 1
        above = node
        while above.parent is not None:
            if above.full_lock == 0:
                self.protected_tokens += above.tokens
            above.full_lock += 1
            above = above.parent

    def unlock(self, node: Node, state: bool = True) -> None:
        """Undo one ``lock`` with the same arguments."""
        if state:
            self.unlock_state(node)
        above = node
        while above.parent is not None:
            above.full_lock -= 1
            if above.full_lock == 0:
                self.protected_tokens -= above.tokens
                self.leaves.offer(above)
            above = above.parent
        self.leaves.shrink(self.node_count)

    def unlock_state(self, node: Node) -> None:
        """Give up the state alone; the path's KV stays held."""
        if node is self.root:
            return
        node.state_lock -= 1
        if node.state_lock == 0 and node.state:
            self.protected_states -= 1

    # Insert

    def insert(self, sequence: TokenSequence, end: int, owned_from: int) -> tuple[Node, bool]:
        """Put KV of ``sequence[:end]`` and a state at ``end`` into the tree.

        KV the tree already has past ``owned_from`` is the giver's duplicate and goes back to the
        pool. Returns the node and whether it had a state already (then the given slot is spare).
        ``end`` is a multiple of the page and at least one page.
        """
        node = self.root
        node.access = self._tick()
        while node.end < end:
            child = node.children.get(sequence.key(node.end, self.page_tokens))
            if child is None:
                break
            child.access = self._tick()
            upto = child.start + self._shared(child, sequence, end)
            if upto < child.end:
                child = self._split(child, upto)
            else:
                self.leaves.offer(child)
            self.kv_free += max(0, child.end - max(child.start, owned_from))
            node = child
        if node.end < end:
            leaf = Node(sequence, node.end, end, node, self._tick())
            self._tick()  # a node's creation time takes a tick of its own
            node.children[sequence.key(node.end, self.page_tokens)] = leaf
            self.node_count += 1
            self.tree_tokens += leaf.tokens
            node, had_state = leaf, False
        else:
            had_state = node.state
            node.access = self._tick()
        node.state = True
        self.states.touch(node)
        self.leaves.offer(node)
        if self.max_states_per_path > 0 and not had_state:
            self._cap_states(node)
        return node, had_state

    def _cap_states(self, newest: Node) -> None:
        """`mamba_max_states_per_path`: drop states from the root side, KV stays."""
        holders = []
        above: Node | None = newest
        while above is not None:
            if above.state:
                holders.append(above)
            above = above.parent
        surplus = len(holders) - self.max_states_per_path
        for node in reversed(holders):
            if surplus <= 0 or node is newest:
                break
            if node.state_lock or len(node.children) != 1 or node.evictable_leaf:
                continue
            self._drop_state(node)
            surplus -= 1

    # Eviction

    def evict_kv(self, short_tokens: int) -> None:
        """Delete leaves, states included, until ``short_tokens`` more are free or none is left."""
        target = self.kv_free + short_tokens
        while self.kv_free < target:
            leaf = self.leaves.pop()
            if leaf is None:
                return
            self._delete_leaf(leaf)

    def evict_states(self, count: int) -> None:
        """Free ``count`` state slots, least recently used first, passing over locked ones.

        A leaf goes whole; an inner node becomes a tombstone and keeps its KV.
        """
        for _ in range(count):
            victim = self.states.victim()
            if victim is None:
                return
            if victim.evictable_leaf:
                self._delete_leaf(victim)
            else:
                self._drop_state(victim)
                self.evicted_states += 1
                self.evictions += 1

    # Observation

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, in no promised order."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    @property
    def kv_evictable(self) -> int:
        return self.tree_tokens - self.protected_tokens

    @property
    def states_evictable(self) -> int:
        return len(self.states) - self.protected_states

    # Parts

    def _tick(self) -> float:
        self._now += 1.0
        return self._now - 1.0

    def _shared(self, child: Node, sequence: TokenSequence, end: int) -> int:
        """Whole pages of ``child``'s edge that ``sequence[:end]`` runs along, in tokens."""
        tokens = common_tokens(child.sequence, child.start, child.end, sequence, child.start, end)
        return tokens // self.page_tokens * self.page_tokens

    def _split(self, child: Node, at: int) -> Node:
        """Cut ``child``'s edge; returns the new upper part, which carries the path's lock."""
        parent = child.parent
        assert parent is not None
        upper = Node(child.sequence, child.start, at, parent, self._tick())
        self._tick()
        upper.full_lock = child.full_lock
        parent.children[child.sequence.key(child.start, self.page_tokens)] = upper
        child.start, child.parent = at, upper
        upper.children[child.sequence.key(at, self.page_tokens)] = child
        child.access = self._tick()
        self.leaves.offer(child)
        self.node_count += 1
        return upper

    def _drop_state(self, node: Node) -> None:
        node.state = node.state_used = False
        self.states.remove(node)
        self.slots_free += 1

    def _delete_leaf(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        if leaf.state:
            self._drop_state(leaf)
            self.evicted_states += 1
        self.kv_free += leaf.tokens
        self.evicted_kv_tokens += leaf.tokens
        self.evictions += 1
        self.tree_tokens -= leaf.tokens
        del parent.children[leaf.sequence.key(leaf.start, self.page_tokens)]
        leaf.parent = None
        self.node_count -= 1
        self.leaves.offer(parent)
