"""Marconi as the paper states it (MLSys 2025, sections 4.1 to 4.3), with exact book-keeping.

Admission: before prefill the prompt is inserted speculatively; where that would split an edge,
prefill keeps the state of the split point. After decode the state of the last token is kept.
Eviction: of the nodes with at most one child the one with the lowest score; an inner one only
loses its state. Only the node that served a hit gets a new time.

Our readings, where the paper leaves a choice: recency is the time of the last access; a node's
bytes are one state and the KV of its own edge, its FLOPs those beyond its parent; the bootstrap
window begins after the request that evicted first and is replayed on the tree as it stood then;
among equally good alphas the smallest is taken. The cache never exceeds its capacity: a request
that cannot fit beside what it is using leaves nothing. A split that no prompt asked for (two
outputs that agree and part) has no state until a prompt ends or branches there.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.tree import Node, RadixTree
from hybridplan.sim.marconi.tuning import GRID, Served
from hybridplan.sim.marconi.victims import Victims, last_access
from hybridplan.sim.sequence import TokenSequence, common_tokens


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a sequence leads: the last node it reaches, the deepest state on the way, and the
    edge it enters without reaching its end (None if it stops at a node)."""

    node: Node
    hit_node: Node
    matched_tokens: int
    inside: Node | None


class PaperCache:
    """Marconi with a fixed alpha. ``serve`` changes the cache.

    ``chunk_tokens`` models a prefill that only yields states at the ends of its chunks: the
    branch state is that of the last whole chunk. None is the exact two-pass prefill.
    """

    def __init__(
        self,
        costs: ModelCosts,
        capacity_bytes: int,
        alpha: float = 0.0,
        chunk_tokens: int | None = None,
    ) -> None:
        self.costs = costs
        self.capacity_bytes = capacity_bytes
        self.alpha = alpha
        self.chunk_tokens = chunk_tokens
        self._hold(RadixTree())
        self.evictions = self.refused = self.matched_tokens = 0
        self._now = 0

    @property
    def states(self) -> int:
        return self.tree.states

    @property
    def kv_tokens(self) -> int:
        return self.tree.kv_tokens

    @property
    def bytes(self) -> int:
        return self.costs.prefix_bytes(self.tree.kv_tokens, self.tree.states)

    def serve(self, sequence: TokenSequence, prompt_tokens: int) -> int:
        """Hit tokens of one request, which then leaves its states and KV."""
        end = sequence.length_tokens
        if end == 0:
            return 0
        self._now += 1
        prompt = self._walk(sequence, prompt_tokens)
        hit = prompt.hit_node
        hit_tokens = hit.end
        self.tree.touch(hit, self._now)
        self.tree.note_hit(hit)
        self.matched_tokens = prompt.matched_tokens
        branch = self._branch(prompt)
        whole = self._walk(sequence, end)
        needed = self.costs.prefix_bytes(
            end - whole.matched_tokens,
            (branch is not None) + self._needs_end_state(whole, end, branch),
        )
        in_use = {hit, prompt.node, whole.node, prompt.inside, whole.inside}
        if not self._make_room(needed, in_use):
            self.refused += 1
            return hit_tokens
        if branch is not None:
            self._reach(sequence, branch)
        self._reach(sequence, end)
        return hit_tokens

    def clone(self, alpha: float) -> PaperCache:
        """This cache as it stands, under another alpha."""
        twin = PaperCache(self.costs, self.capacity_bytes, alpha, self.chunk_tokens)
        twin._hold(self.tree.clone())
        twin._now = self._now
        return twin

    def _hold(self, tree: RadixTree) -> None:
        self.tree = tree
        self.victims = Victims(tree, self._efficiency, last_access)

    def _walk(self, sequence: TokenSequence, end: int) -> Walk:
        node = hit = self.tree.root
        while node.end < end:
            child = node.children.get(sequence.key(node.end, 1))
            if child is None:
                break
            start = child.start
            upto = start + common_tokens(child.sequence, start, child.end, sequence, start, end)
            if upto < child.end:
                return Walk(node, hit, upto, child)
            node = child
            if node.has_state:
                hit = node
        return Walk(node, hit, node.end, None)

    def _branch(self, prompt: Walk) -> int | None:
        """Position of the branch state prefill is asked for, None without one."""
        at = prompt.matched_tokens
        if self.chunk_tokens is not None:
            at = at // self.chunk_tokens * self.chunk_tokens
        if prompt.inside is not None:
            return at if at > prompt.node.end else None
        lacks_state = prompt.node is not self.tree.root and not prompt.node.has_state
        return at if lacks_state and at == prompt.node.end else None

    @staticmethod
    def _needs_end_state(whole: Walk, end: int, branch: int | None) -> bool:
        """Whether the state after the last token is one more than the branch state."""
        if whole.matched_tokens < end:
            return True
        there = whole.inside is None and whole.node.has_state
        return not there and branch != end

    def _reach(self, sequence: TokenSequence, position: int) -> None:
        """Make ``position`` of the sequence a node with a state."""
        tree = self.tree
        walk = self._walk(sequence, position)
        node = walk.node
        if walk.inside is not None:
            wanted = walk.matched_tokens == position
            node = tree.split(walk.inside, walk.matched_tokens, self._now, has_state=wanted)
        if node.end < position:
            tree.add_leaf(node, sequence, position, self._now)
        elif not node.has_state:
            tree.give_state(node)

    def _make_room(self, needed_bytes: int, in_use: set[Node | None]) -> bool:
        tree = self.tree
        if self.bytes + needed_bytes <= self.capacity_bytes:
            return True
        self.evictions += 1
        while self.bytes + needed_bytes > self.capacity_bytes:
            tied = self.victims.lowest(self._now, self.alpha, in_use)
            if not tied:
                return False
            self._evict(tree.first_in_preorder(tied))
        return True

    def _evict(self, victim: Node) -> None:
        tree, parent = self.tree, victim.parent
        if victim.children:
            tree.absorb(victim)
            return
        tree.delete_leaf(victim)
        if parent is None or parent is tree.root or parent.has_state:
            return
        if len(parent.children) == 1:
            tree.absorb(parent)

    def _efficiency(self, node: Node) -> float:
        costs = self.costs
        saved = costs.prefill_flops(node.end) - costs.prefill_flops(node.start)
        return saved / costs.prefix_bytes(node.tokens)


class PaperMarconi:
    """`PaperCache` whose alpha is 0 until a bootstrap window has been replayed over `GRID`."""

    def __init__(
        self,
        costs: ModelCosts,
        capacity_bytes: int,
        bootstrap_multiplier: int = 5,
        chunk_tokens: int | None = None,
    ) -> None:
        self.cache = PaperCache(costs, capacity_bytes, 0.0, chunk_tokens)
        self.bootstrap_multiplier = bootstrap_multiplier
        self.requests_before_first_eviction: int | None = None
        self.bootstrap_window: int | None = None
        self._requests = 0
        self._snapshot: PaperCache | None = None
        self._window: list[Served] = []

    @property
    def alpha(self) -> float:
        return self.cache.alpha

    def serve(self, sequence: TokenSequence, prompt_tokens: int) -> int:
        """Hit tokens of one request; tunes alpha when the window is full."""
        self._requests += 1
        hit_tokens = self.cache.serve(sequence, prompt_tokens)
        if self._snapshot is not None:
            self._window.append((sequence, prompt_tokens))
            if len(self._window) == self.bootstrap_window:
                self.cache.alpha = self._best_alpha(self._snapshot)
                self._snapshot = None
                self._window.clear()
        elif self.bootstrap_window is None and self.cache.evictions:
            self.requests_before_first_eviction = self._requests
            self.bootstrap_window = self.bootstrap_multiplier * self._requests
            self._snapshot = self.cache.clone(0.0)
        return hit_tokens

    def _best_alpha(self, snapshot: PaperCache) -> float:
        def hit_tokens(alpha: float) -> int:
            cache = snapshot.clone(alpha)
            return sum(cache.serve(sequence, tokens) for sequence, tokens in self._window)

        return max(GRID, key=hit_tokens)
