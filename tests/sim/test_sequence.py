"""Sequences at unit resolution against tokens written out one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.sequence import SequenceReader, TokenSequence, common_tokens


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    unit = draw(st.sampled_from([1, 3, 16]))
    ids = st.lists(st.sampled_from([0, 1, 2, -5, 1 << 63, 1 << 70]), max_size=6)
    made = []
    for index in range(draw(st.integers(2, 4))):
        shown = draw(ids)
        length = draw(st.integers(0, unit * (len(shown) + 1)))
        prompt = Prompt(length, unit, shown, scope=draw(st.sampled_from(["", "a"])))
        made.append(Request(str(index), prompt, draw(st.integers(0, 5))))
    return made


def written_out(request: Request) -> list[object]:
    """One entry a token: which unit of which scope it is in, or that nobody else has it."""
    prompt = request.prompt
    tokens: list[object] = [
        (prompt.scope, position // prompt.unit_tokens, prompt.ids[position // prompt.unit_tokens])
        for position in range(prompt.known_tokens)
    ]
    total = prompt.length_tokens + request.output_tokens
    return tokens + [(request.request_id, position) for position in range(len(tokens), total)]


@given(requests())
@settings(max_examples=200, deadline=None)
def test_common_prefix_is_that_of_the_tokens_written_out(made: list[Request]) -> None:
    reader = SequenceReader()
    first, second = made[:2]
    a, b = reader.read(first), reader.read(second)
    long_a, long_b = written_out(first), written_out(second)
    assert (a.length_tokens, b.length_tokens) == (len(long_a), len(long_b))
    pairs = zip(long_a, long_b, strict=False)
    want = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(long_a), len(long_b)))
    if a.scope_key != b.scope_key:
        assert min(len(long_a), len(long_b)) == 0 or a.key(0, 1) != b.key(0, 1)
        return
    assert common_tokens(a, 0, len(long_a), b, 0, len(long_b)) == want
    if want < min(len(long_a), len(long_b)):
        assert a.key(want, 1) != b.key(want, 1) or a.element(want) != b.element(want)


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40))
@settings(max_examples=200, deadline=None)
def test_edges_compare_from_any_two_places(left: list[int], right: list[int]) -> None:
    a, b = TokenSequence.of_tokens(left), TokenSequence.of_tokens(right)
    for i in range(0, len(left), 7):
        for j in range(0, len(right), 5):
            pairs = zip(left[i:], right[j:], strict=False)
            most = min(len(left) - i, len(right) - j)
            want = next((k for k, (x, y) in enumerate(pairs) if x != y), most)
            assert common_tokens(a, i, len(left), b, j, len(right)) == want


def test_a_later_turn_shows_the_output_of_an_earlier_one() -> None:
    reader = SequenceReader()
    whole = Prompt(90, 1, range(90))
    first = reader.read(Request("1", Prompt(60, 1, range(60)), 30, sequence=whole))
    second = reader.read(Request("2", Prompt(100, 1, range(100)), 5))
    assert common_tokens(first, 0, 90, second, 0, 100) == 90


def test_unknown_outputs_are_nobody_elses() -> None:
    reader = SequenceReader()
    prompt = Prompt(1000, 512, [1, 2])
    first, second = (reader.read(Request(name, prompt, 500)) for name in "ab")
    assert common_tokens(first, 0, 1500, second, 0, 1500) == 1000


def test_one_scope_keeps_one_unit() -> None:
    reader = SequenceReader()
    reader.read(Request("1", Prompt(10, 1, range(10)), 1))
    with pytest.raises(InputError, match=r"request 2 comes at 16 tokens a unit.*at 1;"):
        reader.read(Request("2", Prompt(32, 16, [1, 2]), 1))
