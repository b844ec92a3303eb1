"""The artifact's baseline vLLM+: a state for every block of tokens, LRU over leaf blocks.

vLLM's real `align` mode is not this. Deviation 11 of the artifact: a block of fewer tokens than
the block size also counts as a state, can be a hit, and is filled up later; the estimate of the
room needed is tokens / block size fractional states and counts the root as a block.
"""

from __future__ import annotations

import heapq

from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.sequence import TokenSequence, common_tokens


class Block:
    """KV of ``sequence[start:end]``, at most a block, and the state at its end."""

    __slots__ = (
        "access",
        "end",
        "full",
        "offered",
        "parent",
        "partial",
        "sequence",
        "start",
        "used",
    )

    def __init__(self, sequence: TokenSequence, start: int, end: int, parent: Block | None) -> None:
        self.sequence = sequence
        self.start = start
        self.end = end
        self.parent = parent
        self.full: dict[bytes, Block] = {}
        self.partial: dict[Block, None] = {}  # in the order they came or were last extended
        self.access = 0
        self.offered = -1
        self.used = False

    @property
    def tokens(self) -> int:
        return self.end - self.start


class VllmPlusCache:
    """``lookup`` then ``insert`` per request, in trace order; both change the cache."""

    def __init__(self, costs: ModelCosts, capacity_bytes: int, block_tokens: int = 32) -> None:
        self.costs = costs
        self.capacity_bytes = capacity_bytes
        self.block_tokens = block_tokens
        self.root = Block(TokenSequence(b"", 1, 0), 0, 0, None)
        self.alpha = 0.0
        self.states = self.states_kept = self.states_hit = 0
        self.kv_tokens = self.evictions = self.refused = self.matched_tokens = 0
        self._now = 0
        # No two leaves are equally old: a request touches one path from the root, so the blocks
        # touched last at one time lie on a chain, and a chain has one leaf.
        self._leaves: list[tuple[int, int, Block]] = []
        self._count = 0

    @property
    def bytes(self) -> int:
        return self.costs.prefix_bytes(self.kv_tokens, self.states)

    def serve(self, sequence: TokenSequence, prompt_tokens: int) -> int:
        """One request of the published loop: look its prompt up, then insert all of it."""
        hit_tokens = self.lookup(sequence, prompt_tokens)
        self.insert(sequence)
        return hit_tokens

    def lookup(self, sequence: TokenSequence, prompt_tokens: int) -> int:
        """Hit tokens of a prompt, partial blocks included."""
        last, _ = self._match(sequence, prompt_tokens)
        if last is not self.root and not last.used:
            last.used = True
            self.states_hit += 1
        self.matched_tokens = last.end
        return last.end

    def insert(self, sequence: TokenSequence) -> None:
        """Put prompt and output into the tree, block by block."""
        self._now += 1
        end = sequence.length_tokens
        _, blocks = self._match(sequence, end)
        new_tokens = end - self.block_tokens * (blocks + 1)
        needed = (
            new_tokens / self.block_tokens * self.costs.state_bytes
            + self.costs.kv_bytes_per_token * new_tokens
        )
        over = self.bytes + needed - self.capacity_bytes
        if over > 0:
            self._evict(over)
        self._insert(sequence, end)

    def _match(self, sequence: TokenSequence, end: int) -> tuple[Block, int]:
        """The last block matched and how many there were; touches whole blocks only."""
        self._now += 1
        node, position, blocks = self.root, 0, 0
        while True:
            node.access = self._now
            child = self._whole_block(node, sequence, position, end)
            if child is None:
                break
            node, position, blocks = child, child.end, blocks + 1
        self._offer(node)
        for part in node.partial:
            if _runs_along(part, sequence, position, end) == part.tokens:
                return part, blocks + 1
        return node, blocks

    def _insert(self, sequence: TokenSequence, end: int) -> None:
        size = self.block_tokens
        node, position = self.root, 0
        while True:
            node.access = self._now
            if position == end:
                break
            child = self._whole_block(node, sequence, position, end)
            if child is None:
                child = self._longest_part(node, sequence, position, end)
            if child is not None:
                node, position = child, child.end
            elif node is self.root or node.tokens == size:
                upto = min(end, position + size)
                child = Block(sequence, position, upto, node)
                self.states += 1
                self.states_kept += 1
                self.kv_tokens += child.tokens
                self._hang(node, child)
                node, position = child, upto
            else:
                position = self._fill(node, sequence, end)
        self._offer(node)

    def _fill(self, block: Block, sequence: TokenSequence, end: int) -> int:
        parent = block.parent
        assert parent is not None
        upto = min(end, block.start + self.block_tokens)
        self.kv_tokens += upto - block.end
        del parent.partial[block]
        block.sequence, block.end = sequence, upto
        self._hang(parent, block)
        return upto

    def _hang(self, parent: Block, block: Block) -> None:
        if block.tokens == self.block_tokens:
            parent.full[block.sequence.key(block.start, self.block_tokens)] = block
        else:
            parent.partial[block] = None

    def _whole_block(
        self, node: Block, sequence: TokenSequence, position: int, end: int
    ) -> Block | None:
        if end - position < self.block_tokens:
            return None
        return node.full.get(sequence.key(position, self.block_tokens))

    def _longest_part(
        self, node: Block, sequence: TokenSequence, position: int, end: int
    ) -> Block | None:
        """A partial block that the sequence continues, unless another child shares more."""
        found = [
            part
            for part in node.partial
            if _runs_along(part, sequence, position, end) == part.tokens
        ]
        if not found:
            return None
        others = [*node.full.values(), *node.partial]
        most = max(_runs_along(other, sequence, position, end) for other in others)
        return next((part for part in found if part.tokens == most), None)

    def _evict(self, over: float) -> None:
        self._now += 1
        self.evictions += 1
        freed = 0
        while freed < over and self._leaves:
            access, _, leaf = heapq.heappop(self._leaves)
            if access != leaf.offered:
                continue
            leaf.offered = -1
            parent = leaf.parent
            if parent is None or leaf.full or leaf.partial or access != leaf.access:
                continue
            freed += self.costs.prefix_bytes(leaf.tokens)
            self.states -= 1
            self.kv_tokens -= leaf.tokens
            if leaf.tokens == self.block_tokens:
                del parent.full[leaf.sequence.key(leaf.start, self.block_tokens)]
            else:
                del parent.partial[leaf]
            leaf.parent = None
            self._offer(parent)

    def _offer(self, block: Block) -> None:
        if block.parent is None or block.full or block.partial or block.offered == block.access:
            return
        block.offered = block.access
        self._count += 1
        heapq.heappush(self._leaves, (block.access, self._count, block))


def _runs_along(block: Block, sequence: TokenSequence, position: int, end: int) -> int:
    return common_tokens(block.sequence, block.start, block.end, sequence, position, end)
