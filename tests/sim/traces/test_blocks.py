"""Block size from lengths: the closed form against trying every size."""

from __future__ import annotations

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from hybridplan.sim.traces.blocks import BlockInference, bounds

TRY = range(1, 200)


def naive(length: int, ids: int, tail: Literal["ceil", "floor"]) -> list[int]:
    wanted = (lambda b: -(-length // b)) if tail == "ceil" else (lambda b: length // b)
    return [b for b in TRY if wanted(b) == ids]


@given(st.integers(0, 150), st.integers(0, 160), st.sampled_from(["ceil", "floor"]))
def test_bounds_are_the_sizes_that_give_the_row(
    length: int, ids: int, tail: Literal["ceil", "floor"]
) -> None:
    found = bounds(length, ids, tail)
    allowed = [] if found is None else [b for b in TRY if found[0] <= b <= (found[1] or TRY[-1])]
    assert allowed == naive(length, ids, tail)


@given(
    st.sampled_from([1, 7, 16, 64, 512]),
    st.sampled_from(["ceil", "floor"]),
    st.lists(st.integers(1, 20_000), min_size=1, max_size=60),
)
def test_the_true_size_is_never_excluded(
    size: int, tail: Literal["ceil", "floor"], lengths: list[int]
) -> None:
    inference = BlockInference()
    for line, length in enumerate(lengths):
        inference.add(length, -(-length // size) if tail == "ceil" else length // size, line)
    if inference.rows:
        found = inference.best(tail)
        assert found.allows(size)
        assert not found.misfits


def test_one_wrong_row_is_set_aside_with_its_line() -> None:
    inference = BlockInference()
    for line, length in enumerate([6758, 7322, 513, 1025, 100], 1):
        inference.add(length, -(-length // 512), line)
    inference.add(4096, 200, 6)
    found = inference.best(None)
    assert (found.tail, found.misfits, found.first_misfit) == ("ceil", 1, 6)
    assert found.powers_of_two() == [512]


def test_floor_wins_where_ceil_fits_fewer_rows() -> None:
    inference = BlockInference()
    for line, length in enumerate([1000, 1001, 127, 128, 6400], 1):
        inference.add(length, length // 64, line)
    assert inference.best(None).tail == "floor"
    assert inference.best(None).allows(64)
