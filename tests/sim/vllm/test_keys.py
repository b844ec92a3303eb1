"""Identity of prefixes where the trace's unit and the hash block differ."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from hybridplan.sim.request import Prompt
from hybridplan.sim.vllm.keys import Key, Reading, prefix_keys


def _keys(
    prompt: Prompt, count: int, block: int, reading: Reading = Reading.LOWER, ahead: int = 0
) -> list[Key]:
    keys = prefix_keys(prompt, id(prompt), block, ahead, reading)
    keys.extend(count)
    return keys.keys[:count]


def _shared(a: Prompt, b: Prompt, block: int, reading: Reading = Reading.LOWER) -> list[bool]:
    count = min(a.length_tokens, b.length_tokens) // block
    return [
        x == y
        for x, y in zip(
            _keys(a, count, block, reading), _keys(b, count, block, reading), strict=True
        )
    ]


def test_chained_units_are_read_low_or_high_when_the_block_ends_inside_one() -> None:
    """Units of 512: the first is shared. 576 lies inside the second, which differs."""
    a = Prompt(1024, 512, (7, 8), chained=True)
    b = Prompt(1024, 512, (7, 9), chained=True)
    assert _shared(a, b, 576) == [False]
    assert _shared(a, b, 576, Reading.UPPER) == [True]
    assert _shared(a, b, 512) == [True, False]


def test_unchained_units_only_agree_from_the_left() -> None:
    a, b = Prompt(96, 32, (1, 2, 3)), Prompt(96, 32, (1, 9, 3))
    assert _shared(a, b, 32) == [True, False, False]
    assert _shared(a, b, 48) == [False, False]
    assert _shared(a, b, 48, Reading.UPPER) == [True, False]


def test_scopes_never_share() -> None:
    for chained, unit in product((True, False), (1, 16)):
        a = Prompt(64, unit, tuple(range(64 // unit)), chained=chained, scope="one")
        b = Prompt(64, unit, tuple(range(64 // unit)), chained=chained, scope="two")
        assert not any(_shared(a, b, 32)), (chained, unit)


def test_unknown_tokens_are_unique_to_their_request() -> None:
    a, b = Prompt(128), Prompt(128)
    assert not any(_shared(a, b, 32))
    floor = Prompt(100, 64, (5,), chained=True)
    again = Prompt(100, 64, (5,), chained=True)
    assert _shared(floor, again, 50) == [True, False]


def test_lookahead_key_needs_the_token_after_the_block() -> None:
    tokens = list(range(65))
    a, b = Prompt(65, 1, tokens), Prompt(65, 1, [*tokens[:64], 999])
    assert _keys(a, 1, 64) == _keys(b, 1, 64)
    assert _keys(a, 1, 64, ahead=1) != _keys(b, 1, 64, ahead=1)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.sampled_from([1, 2, 3, 5, 8]),
)
def test_token_keys_agree_exactly_where_the_tokens_do(
    a: list[int], b: list[int], block: int
) -> None:
    shared = _shared(Prompt(len(a), 1, a), Prompt(len(b), 1, b), block)
    assert shared == [a[: (i + 1) * block] == b[: (i + 1) * block] for i in range(len(shared))]


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
    st.sampled_from([2, 3, 4, 6, 12]),
    st.booleans(),
)
def test_readings_bracket_the_trace_for_every_unit(
    a: list[int], b: list[int], block: int, chained: bool
) -> None:
    """Lower equality implies upper equality, and whole units decide both."""
    unit = 4
    prompts = [_prompt(ids, unit, chained) for ids in (a, b)]
    lower = _shared(*prompts, block)
    upper = _shared(*prompts, block, Reading.UPPER)
    for index, (low, high) in enumerate(zip(lower, upper, strict=True)):
        at = (index + 1) * block
        assert low == (a[: -(-at // unit)] == b[: -(-at // unit)])
        assert high == (a[: at // unit] == b[: at // unit])


def _prompt(ids: list[int], unit: int, chained: bool) -> Prompt:
    if not chained:
        return Prompt(len(ids) * unit, unit, ids)
    prefixes = [int("1" + "".join(map(str, ids[: i + 1]))) for i in range(len(ids))]
    return Prompt(len(ids) * unit, unit, prefixes, chained=True)
