"""Statistics, linking and ordering against naive twins."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces import request_statistics
from hybridplan.sim.traces.link import link_sessions, shown_sequence
from hybridplan.sim.traces.order import in_time_order
from hybridplan.sim.traces.statistics import PrefixIndex, distribution

TEXTS = st.lists(st.integers(0, 2), max_size=8).map(tuple)


def token_prompt(text: tuple[int, ...], scope: str = "") -> Prompt:
    return Prompt(len(text), 1, text, False, scope)


def chained_prompt(text: tuple[int, ...], unit: int, scope: str = "") -> Prompt:
    """A prompt whose ids name every prefix of it, at a unit, the partial tail included."""
    ends = [min(len(text), end) for end in range(unit, len(text) + unit, unit)]
    ids = tuple(int("1" + "".join(map(str, text[:end])), 4) for end in ends)
    return Prompt(len(text), unit, ids, True, scope)


@given(st.lists(st.tuples(TEXTS, st.sampled_from(["", "s"])), max_size=12), st.integers(1, 3))
def test_prefix_index_equals_comparing_with_every_earlier_prompt(
    cases: list[tuple[tuple[int, ...], str]], unit: int
) -> None:
    chained, tokens = PrefixIndex(), PrefixIndex()
    earlier: list[tuple[Prompt, Prompt]] = []
    for text, scope in cases:
        pair = (chained_prompt(text, unit, scope), token_prompt(text, scope))
        for index, own, which in ((chained, pair[0], 0), (tokens, pair[1], 1)):
            best = 0
            for old in earlier:
                if old[which].scope == scope:
                    same = 0
                    for left, right in zip(own.ids, old[which].ids, strict=False):
                        if left != right:
                            break
                        same += 1
                    best = max(best, same)
            assert index.admit(own) == best
        earlier.append(pair)
    distinct = {(p.scope, p.ids[: k + 1]) for _, p in earlier for k in range(len(p.ids))}
    assert tokens.units == len(distinct)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200))
def test_distribution_is_exact(values: list[int]) -> None:
    found = distribution(Counter(values))
    ordered = sorted(values)
    last = len(ordered) - 1
    assert (found.minimum, found.maximum) == (ordered[0], ordered[-1])
    assert (found.total, found.count) == (sum(values), len(values))
    assert found.p50 == ordered[round(last / 2)]
    for percent, value in ((90, found.p90), (99, found.p99)):
        assert abs(ordered.index(value) - last * percent / 100) <= 0.5 or value in (
            ordered[last * percent // 100],
            ordered[-(-last * percent // 100)],
        )


def request(name: str, prompt: Prompt, out: int = 1, **more: object) -> Request:
    return replace(Request(name, prompt, out), **more)


def test_reuse_and_its_cap() -> None:
    prompt = Prompt(1000, 512, (1, 2), True)
    requests = [request("a", prompt), request("b", prompt), request("c", Prompt(5))]
    found = request_statistics(requests)
    assert found.reuse is not None
    assert found.reuse.reusable_tokens == 1000
    assert found.reuse.capped_tokens == 512
    assert (found.reuse.unique_units, found.reuse.unique_tokens) == (2, 1000)
    assert found.reuse.reusable_fraction == 1000 / 2005


def test_warm_up_fills_the_cache_without_being_counted() -> None:
    prompt = Prompt(1024, 512, (1, 2), True)
    requests = [request(str(i), prompt, arrival_s=float(i)) for i in range(4)]
    found = request_statistics(requests, warmup_requests=1)
    assert (found.requests, found.duration_s) == (3, 2.0)
    assert found.reuse is not None
    assert found.reuse.reusable_fraction == 1.0
    assert found.reuse.unique_units == 0
    with pytest.raises(InputError, match="warm-up of 9 requests leaves none"):
        request_statistics(requests, warmup_requests=9)


def test_no_ids_no_reuse_no_clock_no_rate() -> None:
    found = request_statistics([request("a", Prompt(5)), request("b", Prompt(0), out=0)])
    assert (found.reuse, found.duration_s, found.requests_per_s, found.sessions) == (None,) * 4
    assert (found.empty_prompts, found.empty_outputs) == (1, 1)


ARRIVALS = st.lists(st.integers(0, 30), min_size=1, max_size=40)


@given(ARRIVALS, st.integers(1, 50))
def test_time_order_equals_a_stable_sort_or_is_refused(arrivals: list[int], window: int) -> None:
    requests = [request(str(i), Prompt(1), arrival_s=float(a)) for i, a in enumerate(arrivals)]
    expected = sorted(requests, key=lambda r: r.arrival_s or 0.0)
    late = max(sum(other > arrival for other in arrivals[:i]) for i, arrival in enumerate(arrivals))
    refused = False
    try:
        found = list(in_time_order(iter(requests), window, "trace"))
    except InputError:
        refused = True
    if refused:
        assert late > window
    else:
        assert found == expected


def test_time_order_shifts_negative_arrivals_and_needs_a_clock() -> None:
    rows = [request("a", Prompt(1), arrival_s=0.0), request("b", Prompt(1), arrival_s=-2.0)]
    assert [r.arrival_s for r in in_time_order(iter(rows), 9, "t")] == [0.0, 2.0]
    with pytest.raises(InputError, match="needs arrivals"):
        list(in_time_order(iter([request("a", Prompt(1))]), 9, "t"))


SESSION_CALLS = st.lists(
    st.tuples(st.sampled_from(["p", "q", None]), TEXTS, st.integers(0, 3)), max_size=12
)


@given(SESSION_CALLS, st.integers(1, 2))
def test_linking_equals_looking_at_the_next_turn_directly(
    calls: list[tuple[str | None, tuple[int, ...], int]], unit: int
) -> None:
    requests = [
        request(str(i), chained_prompt(text, unit), out, session=session)
        for i, (session, text, out) in enumerate(calls)
    ]
    expected = []
    for i, own in enumerate(requests):
        later = next((r for r in requests[i + 1 :] if r.session == own.session is not None), None)
        shown = None if later is None else shown_sequence(own, later.prompt)
        expected.append(replace(own, sequence=shown))
    assert list(link_sessions(iter(requests), 100)) == expected
    bounded = list(link_sessions(iter(requests), 1))
    assert [replace(r, sequence=None) for r in bounded] == requests


@given(TEXTS, TEXTS, st.integers(0, 3), st.integers(1, 3))
def test_a_shown_sequence_is_a_prefix_of_the_later_prompt(
    text: tuple[int, ...], more: tuple[int, ...], out: int, unit: int
) -> None:
    own = request("a", chained_prompt(text, unit), out)
    later = chained_prompt(text + more, unit)
    shown = shown_sequence(own, later)
    whole = len(text) + out
    if shown is None:
        assert len(more) < out or whole // unit <= len(text) // unit
    else:
        assert shown.length_tokens == whole
        assert shown.ids == later.ids[: whole // unit]
