"""The router's index against a twin that keeps every prompt and compares token by token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridplan.sim.fleet.prefix_index import PrefixIndex, block_tokens_of, prefix_chain
from hybridplan.sim.request import Prompt


class NaiveIndex:
    """Blocks as whole prefixes with the time they were last sent; the oldest, deepest go first."""

    def __init__(self, capacity_tokens: int | None) -> None:
        self.capacity_tokens = capacity_tokens
        self.sent_at: dict[tuple[int, ...], int] = {}
        self.sizes: dict[tuple[int, ...], int] = {}
        self.now = 0

    def match(self, ids: tuple[int, ...]) -> int:
        units = 0
        while units < len(ids) and ids[: units + 1] in self.sent_at:
            units += 1
        return units

    def insert(self, ids: tuple[int, ...], block_tokens: int) -> None:
        self.now += 1
        for end in range(1, len(ids) + 1):
            self.sent_at[ids[:end]] = self.now
            self.sizes[ids[:end]] = block_tokens
        while self.capacity_tokens is not None and sum(self.sizes.values()) > self.capacity_tokens:
            oldest = min(self.sent_at, key=lambda prefix: (self.sent_at[prefix], -len(prefix)))
            del self.sent_at[oldest], self.sizes[oldest]


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple), max_size=25)


@given(PROMPTS, st.one_of(st.none(), st.integers(1, 200)))
def test_index_agrees_with_its_naive_twin(
    prompts: list[tuple[int, ...]], capacity_tokens: int | None
) -> None:
    index, naive = PrefixIndex(capacity_tokens), NaiveIndex(capacity_tokens)
    for ids in prompts:
        prompt = Prompt(len(ids) * 16, 16, ids)
        chain = prefix_chain(prompt)
        assert index.match(chain) == naive.match(ids)
        index.insert(chain, 16)
        naive.insert(ids, 16)
        assert len(index) == len(naive.sent_at)
        assert index.tokens == sum(naive.sizes.values())
    for ids in prompts:
        assert index.match(prefix_chain(Prompt(len(ids) * 16, 16, ids))) == naive.match(ids)


def test_blocks_are_units_and_fine_units_are_taken_together() -> None:
    assert block_tokens_of(Prompt(100, 512, (1,))) == 512
    assert block_tokens_of(Prompt(100, 16, (1,))) == 16
    assert block_tokens_of(Prompt(100, 1, tuple(range(100)))) == 16
    assert block_tokens_of(Prompt(100, 6, tuple(range(17)))) == 18
    assert len(prefix_chain(Prompt(100, 1, tuple(range(100))))) == 6
    assert len(prefix_chain(Prompt(1000, 512, (1, 2)))) == 1
    assert len(prefix_chain(Prompt(1000))) == 0


def test_chained_and_scoped_ids_are_told_apart() -> None:
    def one(scope: str) -> Prompt:
        return Prompt(1024, 512, (7, 8), chained=True, scope=scope)

    index = PrefixIndex()
    index.insert(prefix_chain(one("a")), 512)
    assert index.match(prefix_chain(one("a"))) == 2
    assert index.match(prefix_chain(one("b"))) == 0
