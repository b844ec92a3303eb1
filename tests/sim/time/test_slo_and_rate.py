"""SLOs, rates, percentiles and the search for a rate, each against what it says it is."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.sim.arrival import Closed, Rate, Timed, parse_arrival, parse_rate
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.placing import place_sessions
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.capacity import find_rate
from hybridplan.sim.time.result import Probe
from hybridplan.sim.time.slo import Slo, duration, parse_slo
from hybridplan.sim.time.stopwatch import Stopwatch, quantiles, rank


@pytest.mark.parametrize(
    "text, slo",
    [
        ("ttft=2s,tpot=50ms", Slo(2.0, 0.05)),
        ("e2e=1.5m", Slo(e2e_s=90.0)),
        ("tpot=800us, ttft=300ms", Slo(0.3, 8e-4)),
    ],
)
def test_slo_is_read_from_its_words(text: str, slo: Slo) -> None:
    found = parse_slo(text)
    assert found.limits == pytest.approx(slo.limits)


@pytest.mark.parametrize("text", ["", "ttft", "ttft=2", "ttft=-1s", "itl=5ms", "ttft=1s,ttft=2s"])
def test_slo_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--slo .* is not one of ttft=, tpot= or e2e="):
        parse_slo(text)


@pytest.mark.parametrize("text", ["ttft=0s", "tpot=0.0ms", f"ttft={'9' * 400}s"])
def test_slo_that_none_or_any_would_keep_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--slo .* must be above 0 and at most 1e\+09s"):
        parse_slo(text)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01])
def test_slo_share_is_a_share(share: float) -> None:
    with pytest.raises(InputError, match="--slo-share"):
        parse_slo("ttft=1s", share)


@pytest.mark.parametrize("seconds, text", [(2.0, "2s"), (0.05, "50ms"), (8e-5, "80us")])
def test_duration_is_written_as_it_is_read(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert parse_slo(f"ttft={text}").ttft_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text, rate",
    [("x2", Rate(speed=2.0)), ("0.5x", Rate(speed=0.5)), ("3/s", Rate(per_s=3.0))],
)
def test_rate_is_read_from_its_words(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    [
        "2",
        "x0",
        "x-1",
        "3/m",
        "xinf",
        "nan/s",
        "",
        "xx2",
        "x2x",
        "x",
        "/s",
        "x1_0",
        "x1e-320",
        "1e-320/s",
        "x1e300",
    ],
)
def test_rate_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--rate"):
        parse_rate(text)


def _at(*stamps: float) -> list[Request]:
    return [Request(str(n), Prompt(1), 1, arrival_s=s) for n, s in enumerate(stamps)]


def test_requests_a_second_stretch_the_clock_evenly() -> None:
    # 4 intervals in 8 s are 0.5 a second; twice a second is 4 times the clock
    assert Rate(per_s=2.0).of(_at(10.0, 10.0, 11.0, 17.0, 18.0)) == 4.0


def test_a_rate_needs_arrivals_apart() -> None:
    with pytest.raises(InputError, match="arrive at one moment"):
        Rate(per_s=2.0).of(_at(3.0, 3.0))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.sampled_from([50, 90, 99]))
def test_quantile_is_the_smallest_value_that_enough_do_not_exceed(
    values: list[float], percent: int
) -> None:
    found = sorted(values)[rank(percent, len(values))]
    reached = [v for v in values if Fraction(sum(w <= v for w in values), len(values)) * 100
               >= percent]  # fmt: skip
    assert found == min(reached)


def test_quantiles_of_one_hundred_values() -> None:
    found = quantiles([float(n) for n in range(100, 0, -1)])
    assert found is not None
    assert (found.p50_s, found.p90_s, found.p99_s, found.max_s) == (50.0, 90.0, 99.0, 100.0)
    assert found.mean_s == 50.5


def _outcome(sent: float, ttft: float, tpot: float | None, outputs: int = 10) -> RequestOutcome:
    e2e = ttft + (tpot or 0.0) * (outputs - 1)
    return RequestOutcome(
        "r", 100, outputs, arrival_s=sent, sent_s=sent, queued_s=0.0, ttft_s=ttft, tpot_s=tpot,
        e2e_s=e2e, finish_s=sent + e2e,
    )  # fmt: skip


def test_a_request_is_good_when_it_keeps_every_limit() -> None:
    watch = Stopwatch(Slo(ttft_s=1.0, tpot_s=0.1, share=0.5))
    watch.see(_outcome(0.0, 0.5, 0.05))
    watch.see(_outcome(1.0, 1.5, 0.2))
    watch.see(_outcome(2.0, 1.0, None, 1))
    watch.see(_outcome(3.0, 0.5, 0.15))
    watch.see(RequestOutcome("refused", 0, 0, refused="the prompt is empty"))
    found = watch.attained()
    assert found is not None
    assert (found.requests, found.met, found.kept) == (4, 2, True)
    assert found.missed == {"ttft": 1, "tpot": 2}
    assert watch.span_s == pytest.approx(3.0 + 0.5 + 9 * 0.15)
    assert found.goodput_per_s == pytest.approx(2 / watch.span_s)


def test_nothing_served_keeps_no_slo() -> None:
    found = Stopwatch(Slo(ttft_s=1.0)).attained()
    assert found is not None
    assert not found.kept


def test_refused_requests_arrive_too() -> None:
    watch = Stopwatch()
    watch.see(_outcome(0.0, 0.5, 0.05))
    watch.see(RequestOutcome("refused", 0, 0, arrival_s=1.0, refused="the prompt is empty"))
    watch.see(_outcome(2.0, 0.5, 0.05))
    assert watch.offered_per_s == 1.0
    assert watch.requests == 2


def _server(limit: float, calls: list[float]) -> object:
    def probe(speed: float) -> Probe:
        calls.append(speed)
        return Probe(speed, speed, 1.0 if speed <= limit else 0.9, speed <= limit, speed, None)

    return probe


@given(st.floats(1 / 900, 900), st.sampled_from([0.01, 0.05, 0.3]))
def test_search_brackets_the_limit_to_its_tolerance(limit: float, tolerance: float) -> None:
    calls: list[float] = []
    found = find_rate(_server(limit, calls), Slo(ttft_s=1.0), tolerance=tolerance)  # type: ignore[arg-type]
    assert found.best is not None
    assert found.next is not None
    assert found.best.speed <= limit < found.next.speed
    assert found.next.speed <= (1 + tolerance) * found.best.speed * 1.001
    assert [probe.speed for probe in found.probes] == calls
    assert len(calls) < 22


def test_search_ends_where_slower_changes_nothing() -> None:
    def probe(speed: float) -> Probe:
        return Probe(speed, speed, 0.5, False, 3.0, 0.1)

    found = find_rate(probe, Slo(ttft_s=1.0))
    assert found.best is None
    assert [p.speed for p in found.probes] == [1.0, 0.5]


def test_search_goes_on_where_requests_do_not_meet_yet() -> None:
    """Twice a rate at which every request is alone gives the same answer, and is no limit."""

    def probe(speed: float) -> Probe:
        late = max(speed / 0.05, 1.0)
        return Probe(speed, speed, 1.0 if late < 9 else 0.5, late < 9, late, None)

    found = find_rate(probe, Slo(ttft_s=9.0), start=0.001)
    assert found.best is not None
    assert found.next is not None
    assert found.best.speed < 0.45 <= found.next.speed


def test_search_ends_where_there_is_no_rate() -> None:
    def probe(speed: float) -> Probe:
        return Probe(speed, 0.0, 1.0, True, 3.0, 0.1)

    found = find_rate(probe, Slo(ttft_s=9.0))
    assert found.next is None
    assert [p.speed for p in found.probes] == [1.0, 2.0]


@pytest.mark.parametrize(
    "ask, arrival, words",
    [
        (TimeAsk(rate=Rate(speed=2.0)), Closed(2), "--rate scales the trace's clock"),
        (TimeAsk(find_rate=True, slo=Slo(1.0)), Closed(2), "--find-rate varies the rate"),
        (TimeAsk(find_rate=True), Timed(), "--find-rate needs an --slo"),
        (TimeAsk(slo=Slo(1.0)), Closed(2), "the replay has no clock; give --calibration"),
    ],
)
def test_questions_that_do_not_go_together_are_refused(
    ask: TimeAsk, arrival: Closed | Timed, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        ask.check(arrival)


@pytest.mark.parametrize(
    "text", ["timed:nan", "timed:inf", "timed:0", "timed:1e-300", "timed:9:nan", "timed:9:inf"]
)
def test_steps_without_a_finite_time_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="all finite"):
        parse_arrival(text)


@pytest.mark.parametrize("gap_s", [float("nan"), float("inf"), -1.0])
def test_a_gap_between_sessions_is_finite(gap_s: float) -> None:
    with pytest.raises(InputError, match="must be 0 s or more, up to"):
        place_sessions(_at(1.0), gap_s)
