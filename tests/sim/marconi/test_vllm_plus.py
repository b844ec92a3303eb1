"""Runs of blocks against the same rules on a dictionary of prefixes, block by block."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.vllm_plus import VllmPlusCache
from hybridplan.sim.sequence import TokenSequence
from tests.sim.marconi.cases import SMALL, served

Tokens = tuple[int, ...]


class NaiveBlocks:
    """A block is the whole prefix that ends with it; what it hangs under follows from its length.
    Kept with it: its last access, and whether its state served a hit."""

    def __init__(self, costs: ModelCosts, capacity_bytes: int, block_tokens: int) -> None:
        self.costs, self.capacity_bytes, self.size = costs, capacity_bytes, block_tokens
        self.blocks: dict[Tokens, tuple[int, bool]] = {}
        self.now = self.states_hit = 0

    @property
    def kv_tokens(self) -> int:
        return sum(len(block) - len(self.parent(block)) for block in self.blocks)

    def parent(self, block: Tokens) -> Tokens:
        return block[: (len(block) - 1) // self.size * self.size]

    def children(self, block: Tokens) -> list[Tokens]:
        return [other for other in self.blocks if self.parent(other) == block]

    def touch(self, block: Tokens) -> None:
        if block:
            self.blocks[block] = self.now, self.blocks.get(block, (0, False))[1]

    def match(self, tokens: Tokens) -> Tokens:
        self.now += 1
        at: Tokens = ()
        while len(tokens) - len(at) >= self.size and tokens[: len(at) + self.size] in self.blocks:
            at = tokens[: len(at) + self.size]
            self.touch(at)
        parts = [b for b in self.children(at) if len(b) % self.size and b == tokens[: len(b)]]
        return parts[0] if parts else at

    def serve(self, tokens: Tokens, prompt_tokens: int) -> int:
        hit = self.match(tokens[:prompt_tokens])
        if hit and not self.blocks[hit][1]:
            self.blocks[hit] = self.blocks[hit][0], True
            self.states_hit += 1
        self.now += 1
        blocks = -(-len(self.match(tokens)) // self.size)
        new = len(tokens) - self.size * (blocks + 1)
        needed = new / self.size * self.costs.state_bytes + self.costs.kv_bytes_per_token * new
        held = self.costs.prefix_bytes(self.kv_tokens, len(self.blocks))
        if held + needed > self.capacity_bytes:
            self.evict(held + needed - self.capacity_bytes)
        self.insert(tokens)
        return len(hit)

    def insert(self, tokens: Tokens) -> None:
        at: Tokens = ()
        while len(at) < len(tokens):
            shared = {child: self.shared(child, tokens) for child in self.children(at)}
            most = max(shared.values(), default=0)
            found = [child for child in shared if len(child) == shared[child] == most]
            if found:
                at = found[0]
            else:
                used = self.blocks.pop(at)[1] if len(at) % self.size else False
                at = tokens[: (len(at) // self.size + 1) * self.size]
                self.blocks[at] = self.now, used
            self.touch(at)

    @staticmethod
    def shared(a: Tokens, b: Tokens) -> int:
        pairs = enumerate(zip(a, b, strict=False))
        return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))

    def evict(self, over: float) -> None:
        self.now += 1
        freed = 0
        while freed < over and self.blocks:
            leaves = [block for block in self.blocks if not self.children(block)]
            victim = min(leaves, key=lambda block: self.blocks[block][0])
            freed += self.costs.prefix_bytes(len(victim) - len(self.parent(victim)))
            del self.blocks[victim]


@given(
    served(),
    st.builds(SMALL.prefix_bytes, st.integers(10, 300), st.integers(1, 20)),
    st.sampled_from([2, 4, 8]),
)
@settings(max_examples=100, deadline=None)
def test_runs_agree_with_blocks_one_by_one(
    requests: list[tuple[list[int], int]], capacity: int, block_tokens: int
) -> None:
    runs = VllmPlusCache(SMALL, capacity, block_tokens)
    naive = NaiveBlocks(SMALL, capacity, block_tokens)
    for tokens, prompt_tokens in requests:
        hit = runs.serve(TokenSequence.of_tokens(tokens), prompt_tokens)
        assert hit == naive.serve(tuple(tokens), prompt_tokens)
        held = (runs.states, runs.kv_tokens, runs.states_hit)
        assert held == (len(naive.blocks), naive.kv_tokens, naive.states_hit)
