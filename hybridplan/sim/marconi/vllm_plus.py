"""The artifact's baseline vLLM+: a state for every block of tokens, LRU over leaf blocks.

vLLM's real `align` mode is not this. Deviation 11 of the artifact: a block of fewer tokens than
the block size also counts as a state, can be a hit, and is filled up later; the estimate of the
room needed is tokens / block size fractional states and counts the root as a block.

Blocks that follow one another and were last used together are kept as one run, so that a request
costs what it shares and leaves in runs, not in blocks.
"""

from __future__ import annotations

import heapq

from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.sequence import TokenSequence, common_tokens


class Run:
    """Whole blocks of ``sequence[start:end]`` with a state at the end of each, or one block that is
    not full. Whole runs that follow hang in ``full`` by their first block's ``key``, blocks that
    are not full in ``partial``. ``used`` are the starts of blocks whose state served a hit."""

    __slots__ = (
        "access",
        "end",
        "full",
        "key",
        "offered",
        "parent",
        "partial",
        "sequence",
        "start",
        "used",
    )

    def __init__(self, sequence: TokenSequence, start: int, end: int, parent: Run | None) -> None:
        self.sequence = sequence
        self.start = start
        self.end = end
        self.parent = parent
        self.key = b""
        self.full: dict[bytes, Run] = {}
        self.partial: dict[Run, None] = {}  # in the order they came or were last extended
        self.access = 0
        self.offered = -1
        self.used: set[int] = set()

    @property
    def tokens(self) -> int:
        return self.end - self.start

    @property
    def is_leaf(self) -> bool:
        return not self.full and not self.partial


class VllmPlusCache:
    """``lookup`` then ``insert`` per request, in trace order; both change the cache."""

    def __init__(self, costs: ModelCosts, capacity_bytes: int, block_tokens: int = 32) -> None:
        self.costs = costs
        self.capacity_bytes = capacity_bytes
        self.block_tokens = block_tokens
        self.root = Run(TokenSequence(b"", 1, 0), 0, 0, None)
        self.alpha = 0.0
        self.states = self.states_kept = self.states_hit = 0
        self.kv_tokens = self.evictions = self.refused = self.matched_tokens = 0
        self._now = 0
        # No two leaves are equally old: a request touches one path from the root, so the blocks
        # touched last at one time lie on a chain, and a chain has one leaf.
        self._leaves: list[tuple[int, int, Run]] = []
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
        last = self._match(sequence, prompt_tokens)
        last_block = max(last.start, last.end - self.block_tokens)
        if last is not self.root and last_block not in last.used:
            last.used.add(last_block)
            self.states_hit += 1
        self.matched_tokens = last.end
        return last.end

    def insert(self, sequence: TokenSequence) -> None:
        """Put prompt and output into the tree, block by block."""
        self._now += 1
        end = sequence.length_tokens
        blocks = -(-self._match(sequence, end).end // self.block_tokens)
        new_tokens = end - self.block_tokens * (blocks + 1)
        needed = (
            new_tokens / self.block_tokens * self.costs.state_bytes
            + self.costs.kv_bytes_per_token * new_tokens
        )
        over = self.bytes + needed - self.capacity_bytes
        if over > 0:
            self._evict(over)
        self._insert(sequence, end)

    def _match(self, sequence: TokenSequence, end: int) -> Run:
        """What ends with the last block matched; touches whole blocks only."""
        self._now += 1
        node = self._descend(sequence, end)
        self._offer(node)
        for part in node.partial:
            if _runs_along(part, sequence, end) == part.tokens:
                return part
        return node

    def _descend(self, sequence: TokenSequence, end: int) -> Run:
        """Touch the whole blocks that the sequence shares; the run that ends with the last."""
        size = self.block_tokens
        node = self.root
        while True:
            node.access = self._now
            position = node.end
            if end - position < size:
                return node
            run = node.full.get(sequence.key(position, size))
            if run is None:
                return node
            shared = _runs_along(run, sequence, end) // size * size
            node = run if shared == run.tokens else self._split(run, position + shared)

    def _insert(self, sequence: TokenSequence, end: int) -> None:
        node = self._descend(sequence, end)
        part = self._longest_part(node, sequence, end)
        if part is not None:
            part.access = self._now
            node = part if part.end == end else self._fill(part, sequence, end)
        whole_tokens = (end - node.end) // self.block_tokens * self.block_tokens
        if whole_tokens:
            node = self._add_blocks(node, sequence, node.end + whole_tokens)
        if node.end < end:
            node = self._add_part(node, sequence, end)
        self._offer(node)

    def _add_blocks(self, node: Run, sequence: TokenSequence, end: int) -> Run:
        self._count_states((end - node.end) // self.block_tokens, end - node.end)
        if node is not self.root and node.is_leaf:
            node.sequence, node.end = sequence, end
            return node
        run = Run(sequence, node.end, end, node)
        self._hang(run)
        return run

    def _add_part(self, node: Run, sequence: TokenSequence, end: int) -> Run:
        self._count_states(1, end - node.end)
        part = Run(sequence, node.end, end, node)
        part.access = self._now
        node.partial[part] = None
        return part

    def _count_states(self, states: int, tokens: int) -> None:
        self.states += states
        self.states_kept += states
        self.kv_tokens += tokens

    def _fill(self, part: Run, sequence: TokenSequence, end: int) -> Run:
        """Fill a block up as far as the sequence goes; the run that now ends with it."""
        parent = part.parent
        assert parent is not None
        upto = min(end, part.start + self.block_tokens)
        self.kv_tokens += upto - part.end
        part.sequence, part.end = sequence, upto
        del parent.partial[part]
        if part.tokens < self.block_tokens:
            parent.partial[part] = None
        elif parent is self.root or not parent.is_leaf:
            self._hang(part)
        else:
            parent.sequence, parent.end = sequence, upto
            parent.used |= part.used
            part.parent = None
            return parent
        return part

    def _hang(self, run: Run) -> None:
        assert run.parent is not None
        run.access = self._now
        run.key = run.sequence.key(run.start, self.block_tokens)
        run.parent.full[run.key] = run

    def _split(self, run: Run, at: int) -> Run:
        """Cut a run at a block's end; the new upper run takes its place."""
        upper = Run(run.sequence, run.start, at, run.parent)
        upper.used = {start for start in run.used if start < at}
        run.used -= upper.used
        self._hang(upper)
        run.start, run.parent = at, upper
        run.key = run.sequence.key(at, self.block_tokens)
        upper.full[run.key] = run
        return upper

    def _longest_part(self, node: Run, sequence: TokenSequence, end: int) -> Run | None:
        """A partial block that the sequence continues, unless another child shares more."""
        found = [part for part in node.partial if _runs_along(part, sequence, end) == part.tokens]
        if not found:
            return None
        others = [*node.full.values(), *node.partial]
        most = max(_runs_along(other, sequence, end) for other in others)
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
            if parent is None or not leaf.is_leaf or access != leaf.access:
                continue
            # The blocks before the last are as old as it is, and so go next.
            block_tokens = min(leaf.tokens, self.block_tokens)
            block_bytes = self.costs.prefix_bytes(block_tokens)
            while freed < over and leaf.end > leaf.start:
                freed += block_bytes
                leaf.end -= block_tokens
                self.states -= 1
                self.kv_tokens -= block_tokens
            if leaf.end > leaf.start:
                leaf.used = {start for start in leaf.used if start < leaf.end}
                self._offer(leaf)
                continue
            leaf.parent = None
            if block_tokens == self.block_tokens:
                del parent.full[leaf.key]
            else:
                del parent.partial[leaf]
            self._offer(parent)

    def _offer(self, run: Run) -> None:
        if run.parent is None or not run.is_leaf or run.offered == run.access:
            return
        run.offered = run.access
        self._count += 1
        heapq.heappush(self._leaves, (run.access, self._count, run))


def _runs_along(run: Run, sequence: TokenSequence, end: int) -> int:
    return common_tokens(run.sequence, run.start, run.end, sequence, run.start, end)
