"""Closed forms over positions against counting one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridplan.ledger.work.model import distinct_share
from hybridplan.ledger.work.positions import Reach

REACHES = st.one_of(
    st.just(Reach()),
    st.builds(Reach, st.integers(1, 40)),
    st.builds(Reach, st.integers(1, 40), st.just(True)),
)


def keys_of(reach: Reach, position: int) -> int:
    """Keys that token number ``position``, from 1, reads: itself and what lies in its reach."""
    found = 0
    for key in range(1, position + 1):
        if reach.tokens is None:
            found += 1
        elif reach.chunked:
            found += (key - 1) // reach.tokens == (position - 1) // reach.tokens
        else:
            found += position - key < reach.tokens
    return found


@given(REACHES, st.integers(1, 90), st.integers(1, 60))
def test_decode_steps_read_what_each_token_reads(reach: Reach, context: int, steps: int) -> None:
    one_by_one = sum(keys_of(reach, context + n) for n in range(steps))
    assert reach.read(context, steps) == one_by_one


@given(REACHES, st.integers(0, 90), st.integers(0, 60))
def test_chunk_scores_the_pairs_of_its_tokens(reach: Reach, start: int, tokens: int) -> None:
    one_by_one = sum(keys_of(reach, start + n) for n in range(1, tokens + 1))
    assert reach.pairs(start, tokens) == one_by_one


@given(REACHES, st.integers(0, 90))
def test_chunk_reads_before_it_what_its_first_token_reads(reach: Reach, start: int) -> None:
    assert reach.before(start) == keys_of(reach, start + 1) - 1


@given(st.integers(1, 512), st.integers(1, 512), st.integers(0, 9000))
def test_expected_experts_follow_the_power_law(experts: int, topk: int, rows: int) -> None:
    topk = min(topk, experts)
    exact = 1 - (1 - topk / experts) ** rows
    assert abs(distinct_share(experts, topk, rows) / 2**48 - exact) < 1e-9
