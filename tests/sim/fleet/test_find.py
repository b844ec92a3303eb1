"""The search for the smallest fleet, against trying every size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridplan.sim.fleet.find import smallest


@given(st.integers(1, 300), st.integers(1, 200))
def test_finds_the_least_size_that_keeps(least: int, most: int) -> None:
    tried: list[int] = []

    def keeps(size: int) -> bool:
        tried.append(size)
        return size >= least

    assert smallest(keeps, most) == (least if least <= most else None)
    assert len(tried) == len(set(tried)) <= 2 * most.bit_length() + 2
    assert all(1 <= size <= most for size in tried)


@given(st.lists(st.booleans(), min_size=1, max_size=64))
def test_where_larger_is_not_always_better_it_ends_at_a_step(kept: list[bool]) -> None:
    tried: dict[int, bool] = {}

    def keeps(size: int) -> bool:
        tried[size] = kept[size - 1]
        return tried[size]

    found = smallest(keeps, len(kept))
    if found is None:
        assert not tried[len(kept)]
    else:
        assert tried[found]
        assert found == 1 or tried[found - 1] is False
        assert found == len(kept) or found + 1 in tried
