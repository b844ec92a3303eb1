"""The infinite cache against a naive one that remembers every prefix."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridplan.sim.ceiling import InfiniteCache
from hybridplan.sim.request import Prompt, Request

SYMBOLS = st.integers(0, 2)


@given(st.lists(st.lists(SYMBOLS, max_size=12), max_size=12), st.sampled_from([1, 4]))
def test_radix_tree_agrees_with_a_set_of_prefixes(prompts: list[list[int]], unit: int) -> None:
    cache = InfiniteCache()
    seen: set[tuple[int, ...]] = {()}
    for number, ids in enumerate(prompts):
        request = Request(str(number), Prompt(len(ids) * unit, unit, ids), 1)
        longest = max(i for i in range(len(ids) + 1) if tuple(ids[:i]) in seen)
        assert cache.reusable_tokens(request) == longest * unit
        cache.remember(request)
        seen.update(tuple(ids[:i]) for i in range(len(ids) + 1))


def test_ids_beyond_64_bits_are_compared_exactly() -> None:
    cache = InfiniteCache()
    big = 2**70
    cache.remember(Request("a", Prompt(3, 1, [1, big, big + 1]), 1))
    again = Request("b", Prompt(3, 1, [1, big, big + 2]), 1)
    assert cache.reusable_tokens(again) == 2


def test_scopes_and_units_are_kept_apart() -> None:
    cache = InfiniteCache()
    cache.remember(Request("a", Prompt(32, 16, (1, 2), chained=True, scope="x"), 1))
    assert cache.reusable_tokens(Request("b", Prompt(32, 16, (1, 2), chained=True), 1)) == 0
    assert (
        cache.reusable_tokens(Request("c", Prompt(32, 16, (1, 2), chained=True, scope="x"), 1))
        == 32
    )


def test_answer_counts_where_a_later_turn_shows_it() -> None:
    cache = InfiniteCache()
    shown = Prompt(48, 16, (1, 2, 3), chained=True)
    cache.remember(Request("a", Prompt(16, 16, (1,), chained=True), 32, sequence=shown))
    turn = Request("b", Prompt(60, 16, (1, 2, 3, 4), chained=True), 1)
    assert cache.reusable_tokens(turn) == 48


def test_last_unit_counts_when_its_whole_reading_was_seen() -> None:
    """The prompt's part of unit 1 is new, the whole unit its sequence shows is not."""
    cache = InfiniteCache()
    cache.remember(Request("a", Prompt(32, 16, (1, 7), chained=True), 1))
    branch = Request(
        "b",
        Prompt(20, 16, (1, 99), chained=True),
        12,
        sequence=Prompt(32, 16, (1, 7), chained=True),
    )
    assert cache.reusable_tokens(branch) == 20
