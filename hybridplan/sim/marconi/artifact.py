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

from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.tree import Node, RadixTree
from hybridplan.sim.marconi.victims import Victims, reciprocal_age
from hybridplan.sim.sequence import TokenSequence, common_tokens


class Walk:
    """How far the edges of a tree follow a sequence.

    ``last`` is the last node on whose edge every token matched, the node of a hit;
    ``reusable_tokens`` are those of such edges. ``matched_tokens`` go on into edges that matched in
    part, the first of which is ``fork``, left at ``fork_tokens``. Below a fork the lookup is astray
    (deviation 7). ``ended`` tells that no edge goes on, however long the sequence.
    """

    __slots__ = (
        "ended",
        "fork",
        "fork_tokens",
        "last",
        "matched_tokens",
        "node",
        "reusable_tokens",
        "sequence",
    )

    def __init__(self, sequence: TokenSequence, root: Node) -> None:
        self.sequence = sequence
        self.last = self.node = root
        self.fork: Node | None = None
        self.reusable_tokens = self.matched_tokens = self.fork_tokens = 0
        self.ended = False

    @property
    def astray(self) -> bool:
        return self.last.end != self.reusable_tokens

    def follow(self, root: Node, end: int, stray: bool = True) -> None:
        """Walk on through the first ``end`` tokens: not fewer than before, in an unchanged tree.
        Without ``stray`` it stops at a fork, as inserting does."""
        if self.ended:
            return
        if self.fork is not None:
            # What stopped there may have been the end of the tokens: compare that edge again.
            if self.astray:
                self.last, self.reusable_tokens = root, 0
            self.node, self.matched_tokens, self.fork = self.last, self.last.end, None
        sequence, node, position = self.sequence, self.node, self.matched_tokens
        while position < end:
            child = node.children.get(sequence.key(position, 1))
            if child is None:
                self.ended = True
                break
            start, edge_end = child.start, child.end
            shared = common_tokens(child.sequence, start, edge_end, sequence, position, end)
            position += shared
            node = child
            if shared == edge_end - start:
                self.reusable_tokens += shared
                self.last = child
            elif self.fork is None:
                self.fork, self.fork_tokens = child, position
                if not stray or sequence.unit_tokens > 1:
                    break
        self.node, self.matched_tokens = node, position


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
        self._saved = _saved_flops(costs)
        self._hold(RadixTree())
        self._walk: Walk | None = None
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
        walk = self._walk = Walk(sequence, self.tree.root)
        self._match(walk, prompt_tokens)
        self.tree.note_hit(walk.last)
        self.matched_tokens = walk.matched_tokens
        return walk.reusable_tokens

    def insert(self, sequence: TokenSequence) -> None:
        """Put prompt and output into the tree: a state at the end, one at a split."""
        self._now += 1
        end = sequence.length_tokens
        walk, self._walk = self._walk, None
        if walk is None or walk.sequence is not sequence:
            walk = Walk(sequence, self.tree.root)
        self._match(walk, end)
        branches = walk.matched_tokens > walk.reusable_tokens
        needed = self.costs.prefix_bytes(end - walk.matched_tokens, 2 if branches else 1)
        over = self.bytes + needed - self.capacity_bytes
        if over > 0:
            self._evict(over)
        self._insert(walk, end)

    def clone(self, alpha: float) -> ArtifactCache:
        """This cache as it stands, under another alpha."""
        twin = ArtifactCache(self.costs, self.capacity_bytes, alpha, self.lru_leaves)
        twin._hold(self.tree.clone())
        twin._now = self._now
        return twin

    def _hold(self, tree: RadixTree) -> None:
        self.tree = tree
        self.victims = Victims(tree, self._efficiency, reciprocal_age)

    def _match(self, walk: Walk, end: int) -> None:
        self._now += 1
        walk.follow(self.tree.root, end)
        if self.lru_leaves:
            self._touch_path(walk.node)
        elif walk.last is not self.tree.root:
            self.tree.touch(walk.last, self._now)

    def _touch_path(self, node: Node | None) -> None:
        while node is not None:
            node.access = self._now
            node = node.parent

    def _insert(self, walk: Walk, end: int) -> None:
        tree = self.tree
        node, fork = walk.last, walk.fork
        # Evicting may have taken a part of the way, and a lookup gone astray took a wrong one.
        gone = node.parent is None and node is not tree.root
        moved = fork is not None and (fork.parent is not node or fork.start != node.end)
        if gone or moved:
            walk = Walk(walk.sequence, tree.root)
            walk.follow(tree.root, end, stray=False)
            node, fork = walk.last, walk.fork
        if self.lru_leaves:
            self._touch_path(node if node.end < end else node.parent)
        if fork is not None:
            node = tree.split(fork, walk.fork_tokens, self._now)
        if node.end < end:
            tree.add_leaf(node, walk.sequence, end, self._now)

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
        heap = [(leaf.access, leaf) for leaf in tree.leaves()]
        heapq.heapify(heap)
        freed = 0
        while freed < over and heap:
            _, leaf = heapq.heappop(heap)
            parent = leaf.parent
            if parent is None:
                break
            freed += self.costs.prefix_bytes(leaf.tokens)
            tree.delete_leaf(leaf)
            if not parent.children:
                heapq.heappush(heap, (parent.access, parent))
        tree.changed.clear()

    def _evict_lowest(self, over: int) -> None:
        tree, freed = self.tree, 0
        while freed < over:
            tied = self.victims.lowest(self._now, self.alpha)
            if not tied:
                return
            victim = tree.first_in_preorder(tied)
            if victim.children:
                freed += self.costs.state_bytes
                tree.absorb(victim)
            else:
                freed += self.costs.prefix_bytes(tree.last_in_preorder().tokens)
                tree.delete_leaf(victim)

    def _efficiency(self, node: Node) -> float:
        end, start = node.end, node.start
        end_linear, end_square, start_linear, start_square = self._saved
        saved = (end_linear + end_square * end) * end - (
            start_linear + start_square * start
        ) * start
        return saved / self.costs.prefix_bytes(end)


def _saved_flops(costs: ModelCosts) -> tuple[int, int, int, int]:
    """Coefficients of a node's saved FLOPs in its end, end², start and start² (deviation 4)."""
    attention, subtracting = costs.attention_layers, costs.attention_layers + costs.mlp_layers
    return (
        costs.state_flops
        + attention * costs.attention_linear_flops
        + costs.mlp_layers * costs.mlp_layer_flops,
        attention * costs.attention_square_flops,
        costs.state_flops + subtracting * costs.attention_linear_flops,
        subtracting * costs.attention_square_flops,
    )
