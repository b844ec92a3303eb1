"""Marconi as its published simulator does it (GitHub ruipeterpan/marconi, commit 0801661).

Where that differs from the paper (spec section 4), by its number there:

1   inserting looks the sequence up again, which touches the last matched node; new nodes get the
    present time;
2   room is made once, by an estimate, before inserting; evicting may drop the path just matched,
    and a sequence larger than the cache goes in all the same: the tree overshoots;
3   recency is 1/(now - last access); among equal scores the first in depth-first order goes;
4   MLP savings subtract the parent's attention FLOPs; memory is a state and the KV of the whole
    prefix, not of the edge;
5   for an evicted leaf, the bytes counted are those of the last candidate's edge;
6   a merged node takes the later of both times (that the grandchildren keep pointing at the dead
    node never changes a length: each dead node's own edge stays as it was);
7   the lookup goes on below an edge that matched in part, and can report tokens that are no
    prefix. Followed at U = 1 only: at larger units two places inside a unit cannot be compared;
8   the baseline SGLang+ touches every node on the way, partial matches too;
9   alpha is tuned once, in `tuning`, by FLOPs saved;
10  the branch state is taken at the exact split.

Deviation 11 is in `vllm_plus`, 12 in `replay`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.score import lowest, reciprocal_age
from hybridplan.sim.marconi.tree import Node, RadixTree
from hybridplan.sim.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class Walk:
    """``reusable_tokens`` end at a node; ``matched_tokens`` go on into an edge."""

    last: Node
    reusable_tokens: int
    matched_tokens: int


class ArtifactCache:
    """Marconi with a fixed alpha, or with ``lru_leaves`` its baseline SGLang+.

    ``lookup`` then ``insert`` per request, in trace order; both change the cache. No locks, no
    time between the two. ``matched_tokens`` is what KV alone matched in the last lookup.
    """

    def __init__(
        self,
        costs: ModelCosts,
        capacity_bytes: int,
        alpha: float = 0.0,
        lru_leaves: bool = False,
    ) -> None:
        self.costs = costs
        self.capacity_bytes = capacity_bytes
        self.alpha = alpha
        self.lru_leaves = lru_leaves
        self.tree = RadixTree(None if lru_leaves else self._efficiency)
        self._looked_up = TokenSequence(b"", 1, 0), self.tree.root
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
        """One request of the published loop: look its prompt up, then insert all of it."""
        hit_tokens = self.lookup(sequence, prompt_tokens)
        self.insert(sequence)
        return hit_tokens

    def lookup(self, sequence: TokenSequence, prompt_tokens: int) -> int:
        """Hit tokens of a prompt, which may be all of it."""
        found = self._match(sequence, prompt_tokens, self.tree.root)
        self._looked_up = sequence, self._certain(found)
        self.tree.note_hit(found.last)
        self.matched_tokens = found.matched_tokens
        return found.reusable_tokens

    def insert(self, sequence: TokenSequence) -> None:
        """Put prompt and output into the tree: a state at the end, one at a split."""
        self._now += 1
        end = sequence.length_tokens
        known, start = self._looked_up
        found = self._match(sequence, end, start if known is sequence else self.tree.root)
        branches = found.matched_tokens > found.reusable_tokens
        needed = self.costs.prefix_bytes(end - found.matched_tokens, 2 if branches else 1)
        over = self.bytes + needed - self.capacity_bytes
        start = self._certain(found)
        if over > 0:
            self._evict(over)
            start = self.tree.root
        self._insert(sequence, end, start)
        self._looked_up = sequence, self.tree.root

    def _certain(self, found: Walk) -> Node:
        """Where a walk of the same sequence may begin as long as the tree stays as it is: the
        last node it fully matched, unless it went astray or has to touch the way there."""
        astray = found.last.end != found.reusable_tokens
        return self.tree.root if astray or self.lru_leaves else found.last

    def _match(self, sequence: TokenSequence, end: int, start: Node) -> Walk:
        self._now += 1
        tree = self.tree
        node = last = start
        position = reusable = start.end
        aligned = True
        while True:
            if self.lru_leaves:
                node.access = self._now
            if position >= end or not (aligned or sequence.unit_tokens == 1):
                break
            child = tree.child(node, sequence, position)
            if child is None:
                break
            shared = tree.shared(child, sequence, position, end)
            position += shared
            if shared == child.tokens:
                reusable += shared
                last = child
            else:
                aligned = False
            node = child
        if not self.lru_leaves and last is not tree.root:
            last.access = self._now
        return Walk(last, reusable, position)

    def _insert(self, sequence: TokenSequence, end: int, start: Node) -> None:
        tree = self.tree
        node, position = start, start.end
        while True:
            if self.lru_leaves:
                node.access = self._now
            if position == end:
                return
            child = tree.child(node, sequence, position)
            if child is None:
                tree.add_leaf(node, sequence, end, self._now)
                return
            position += tree.shared(child, sequence, position, end)
            if position < child.end:
                node = tree.split(child, position, self._now)
            elif position == end:
                return
            else:
                node = child

    def _evict(self, over: int) -> None:
        self._now += 1
        self.evictions += 1
        if self.lru_leaves:
            self._evict_leaves(over)
        else:
            self._evict_lowest(over)

    def _evict_leaves(self, over: int) -> None:
        tree = self.tree
        # The order of equally old leaves is that of this very heap over a depth-first list.
        heap = [node for node in tree.preorder() if not node.children] or [tree.root]
        heapq.heapify(heap)
        freed = 0
        while freed < over and heap:
            leaf = heapq.heappop(heap)
            parent = leaf.parent
            if parent is None:
                return
            freed += self.costs.prefix_bytes(leaf.tokens)
            tree.delete_leaf(leaf)
            if not parent.children:
                heapq.heappush(heap, parent)

    def _evict_lowest(self, over: int) -> None:
        tree, freed = self.tree, 0
        while freed < over and tree.candidates:
            nodes = list(tree.candidates)
            tied = lowest(nodes, self._now, self.alpha, reciprocal_age)
            victim = tree.first_in_preorder(tied)
            if victim.children:
                freed += self.costs.state_bytes
                tree.absorb(victim)
            else:
                freed += self.costs.prefix_bytes(tree.last_in_preorder().tokens)
                tree.delete_leaf(victim)

    def _efficiency(self, node: Node) -> float:
        costs, end, start = self.costs, node.end, node.start
        attention_before = costs.attention_layer_flops(start)
        saved = (
            node.tokens * costs.state_flops
            + costs.attention_layers * (costs.attention_layer_flops(end) - attention_before)
            + costs.mlp_layers * (end * costs.mlp_layer_flops - attention_before)
        )
        return saved / costs.prefix_bytes(end)
