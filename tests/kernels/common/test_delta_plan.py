"""The walk of a packed batch covers every token once, stops at exports, and is refused in time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.kernels.common.checks import KernelInputError, check_slots, host_values
from hybridplan.kernels.common.delta_plan import CHUNK_TOKENS, check_exports, layout
from hybridplan.kernels.common.varlen import chunk_bounds, sequence_lengths


@st.composite
def batches(draw):
    lengths = tuple(draw(st.lists(st.integers(0, 500), min_size=1, max_size=4)))
    exports, slot = [], 0
    for n, length in enumerate(lengths):
        if length:
            for p in draw(st.sets(st.integers(1, length), max_size=4)):
                exports.append((n, p, slot))
                slot += 1
    return lengths, tuple(exports), draw(st.integers(0, 3)), draw(st.booleans())


@given(batches())
def test_walk_visits_each_token_once_and_exports_in_place(batch):
    lengths, exports, segment_chunks, export_in_loop = batch
    walk = layout(lengths, exports, segment_chunks, export_in_loop)
    assert export_in_loop or len(walk.stops) == 1
    assert walk.stops[-1][0] >= len(walk.chunks)
    start = 0
    for n, length in enumerate(lengths):
        mine = [s for s in walk.segments if s[2] == n]
        assert [s[3] for s in mine] == list(range(len(mine)))
        assert {s[4] for s in mine} == {len(mine)}
        at, seen = start, set()
        for first, end, *_ in mine:
            for token, full, tail, chunk, slot, stop in walk.runs[first:end]:
                assert token == at
                for i in range(full + (tail > 0)):
                    assert walk.chunks[chunk + i][0] == at
                    if chunk + i == walk.stops[stop][0]:
                        assert 0 < i < full
                        seen.add((n, at - start, walk.stops[stop][1]))
                        stop += 1
                    at = walk.chunks[chunk + i][1]
                    assert tail if i == full else at % CHUNK_TOKENS == token % CHUNK_TOKENS
                if slot >= 0:
                    seen.add((n, at - start, slot))
        assert at == start + length
        assert seen == {e for e in exports if e[0] == n}
        start += length


@given(st.integers(0, 300), st.sets(st.integers(1, 300), max_size=5), st.integers(1, 70))
def test_chunks_are_as_long_as_the_stops_allow(length, stops, chunk_tokens):
    stops = sorted(s for s in stops if s < length)
    bounds = chunk_bounds(length, chunk_tokens, stops)
    edges = {0, length, *stops} if length else set()
    assert [a for a, _ in bounds] == [0, *(z for _, z in bounds)][: len(bounds)]
    for a, z in bounds:
        assert z - a == chunk_tokens or (z in edges and z - a < chunk_tokens)


@pytest.mark.parametrize(
    "cu, tokens, sentence",
    [([0, 4], 5, "ends at 4"), ([1, 5], 5, "start with 0"), ([0, 6, 5], 5, "falls"), ([0], 0, "0")],
)
def test_bad_cu_seqlens(cu, tokens, sentence):
    with pytest.raises(KernelInputError, match=sentence):
        sequence_lengths(torch.tensor(cu), tokens)


def test_host_values_follow_writes():
    x = torch.tensor([1, 2])
    assert host_values("x", x) == (1, 2)
    x[0] = 5
    assert host_values("x", x) == (5, 2)


@pytest.mark.parametrize(
    "exports", [((1, 1, 5),), ((0, 0, 5),), ((0, 11, 5),), ((0, 1, 9),), ((0, 1, 5), (0, 2, 5))]
)
def test_bad_exports(exports):
    with pytest.raises(KernelInputError):
        check_exports(exports, (10,), 9, (0,))


def test_padding_may_repeat_and_slots_may_not():
    cpu = torch.device("cpu")
    check_slots("slots", torch.tensor([-1, 3, -1], dtype=torch.int32), (3,), 4, cpu, unique=True)
    with pytest.raises(KernelInputError, match="slot 3 twice"):
        check_slots("slots", torch.tensor([3, 3], dtype=torch.int32), (2,), 4, cpu, unique=True)
