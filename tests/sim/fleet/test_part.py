"""Shares of replicas, put together again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridplan.sim.fleet.part import joined
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.result import Refused, count_refused
from hybridplan.sim.time.slo import parse_slo
from hybridplan.sim.time.stopwatch import Stopwatch

SLO = parse_slo("ttft=2s,tpot=500ms")
TIMES = st.floats(0, 5, allow_nan=False)


def outcome(index: int, sent_s: float, ttft_s: float, tpot_s: float | None) -> RequestOutcome:
    return RequestOutcome(
        f"r{index}",
        10,
        1 if tpot_s is None else 5,
        arrival_s=sent_s / 2,
        sent_s=sent_s,
        queued_s=ttft_s / 2,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=2 * ttft_s,
        finish_s=sent_s + 2 * ttft_s,
    )


@given(
    st.lists(st.tuples(st.integers(0, 3), TIMES, TIMES, st.one_of(st.none(), TIMES)), max_size=30)
)
def test_watches_of_parts_are_the_watch_of_all(
    rows: list[tuple[int, float, float, float | None]],
) -> None:
    whole, parts = Stopwatch(SLO), [Stopwatch(SLO) for _ in range(4)]
    for index, (part, *times) in enumerate(rows):
        one = outcome(index, *times)  # type: ignore[arg-type]
        whole.see(one)
        parts[part].see(one)
    merged = joined(parts, SLO)
    assert merged.latencies() == whole.latencies()
    assert merged.attained() == whole.attained()
    assert merged.span_s == whole.span_s
    assert merged.offered_per_s == whole.offered_per_s
    assert (merged.requests, merged.held_back) == (whole.requests, whole.held_back)
    assert (merged.prompt_tokens, merged.output_tokens) == (
        whole.prompt_tokens,
        whole.output_tokens,
    )


def test_refusals_that_differ_in_numbers_are_one() -> None:
    found: dict[str, Refused] = {}
    count_refused(found, Refused("a prompt of 9 tokens is too long", 1, "a"))
    count_refused(found, Refused("a prompt of 12 tokens is too long", 2, "b"))
    count_refused(found, Refused("the prompt is empty", 1, "c"))
    assert list(found.values()) == [
        Refused("a prompt of 9 tokens is too long", 3, "a"),
        Refused("the prompt is empty", 1, "c"),
    ]
