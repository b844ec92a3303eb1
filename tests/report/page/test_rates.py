"""Latency against the rate: each replay a dot and a row, the SLO and the trace's rate marked."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.cli import run as command
from hybridplan.config.find import load
from hybridplan.ledger.calibration import preset
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.report.page import scale
from hybridplan.report.page.rate_figures import rates_section
from hybridplan.report.simulate_time import seconds
from hybridplan.sim.arrival import Timed
from hybridplan.sim.rates import RateCurve, rate_curve
from hybridplan.sim.run import SimulateAsk
from hybridplan.sim.setup import EngineAsk, VllmFlags
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.slo import Slo
from hybridplan.sim.traces import open_trace

from .browser import WIDTHS, needs_chromium, seen_at
from .markup import Page, complaints

TRACES = Path(__file__).parents[2] / "data" / "traces"
AGENTS = str(TRACES / "lmcache_agent_derived.jsonl.gz")
LENGTHS = str(TRACES / "azure_llm_2023_conv.csv.gz")


@cache
def curve(trace: str = AGENTS, slo: Slo | None = Slo(ttft_s=0.05, share=0.9)) -> RateCurve:  # noqa: B008
    gap = 1.0 if trace == AGENTS else None
    found = rate_curve(
        SimulateAsk(
            EngineAsk(load("qwen3.5-0.8b"), Deployment(), VllmFlags(num_blocks=2000)),
            open_trace(trace, limit=40),
            Timed(),
            session_gap_s=gap,
            timing=TimeAsk(preset(find_gpu("l4")), slo=slo),
        )
    )
    assert found is not None
    return found


def test_no_curve_no_section() -> None:
    assert rates_section(None) == ""
    assert rates_section(replace(curve(), points=curve().points[:1])) == ""


def test_every_replay_is_a_dot_and_a_row() -> None:
    found = curve()
    html = rates_section(found)
    widths, percents, metrics, sides = 3, 3, 2, 2
    assert html.count("<circle") == widths * percents * metrics * sides * len(found.points)
    for point in found.points:
        assert point.without is not None
        for side in (point.hits, point.without):
            assert side.latencies.tpot is not None
            for values in (side.latencies.ttft, side.latencies.tpot):
                for value in (values.p50_s, values.p90_s, values.p99_s):
                    assert f"<td>{seconds(value)}</td>" in html
        assert html.count(f"<td>x{point.speed:g}</td>") == metrics


def test_the_slo_and_the_trace_s_rate_are_marked() -> None:
    found = curve()
    html = rates_section(found)
    drawing = re.findall(r'<svg class="wide".*?</svg>', html, re.DOTALL)
    assert len(drawing) == 2
    assert [part.count('"curve own"') for part in drawing] == [3, 3]
    assert [part.count('"curve ink"') for part in drawing] == [3, 0], "TPOT has no limit"
    assert f"the trace&#x27;s rate, {found.own.rate_per_s:.3g} requests/s" in html
    assert "(the trace&#x27;s)" in html


def test_without_an_slo_or_hits_less_is_drawn() -> None:
    html = rates_section(curve(LENGTHS, None))
    assert "SLO" not in html
    assert "without hits" not in html
    assert "no-prefix-caching" not in html


def test_kept_means_every_lower_rate_too() -> None:
    found = curve()
    shares = [1.0, 0.95, 0.5, 1.0, 0.0, 0.0, 0.0]
    points = tuple(
        replace(point, hits=replace(point.hits, share_met=share), without=None)
        for point, share in zip(found.points, shares, strict=False)
    )
    text = Page(rates_section(replace(found, points=points, baseline=""))).text
    assert f"Up to {points[1].rate_per_s:.3g} requests/s keep ttft=50ms" in text


def test_a_part_of_the_trace_is_called_one() -> None:
    found = curve()
    assert "The trace, replayed at" in rates_section(found)
    assert "The first 40 requests of the trace" in rates_section(replace(found, whole=False))
    assert "Ctrl-C" in rates_section(replace(found, interrupted=True))


@pytest.fixture(scope="module")
def page_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    page = tmp_path_factory.mktemp("page") / "report.html"
    words = ["report", "--trace", AGENTS, "--limit", "60", "--gpu", "l4", "--advice", "off"]
    words += ["--arrival", "timed", "--session-gap", "1", "--calibration", "preset"]
    assert command([*words, "--slo", "ttft=1s", "--slo-share", "0.5", "-o", str(page)]) == 0
    return page.read_text(encoding="utf-8")


def test_the_page_keeps_its_promises(page_text: str) -> None:
    assert complaints(page_text) == []
    assert '<h2 id="h-rates">Latency against the request rate</h2>' in page_text
    assert "the page shows latency too" not in page_text


@pytest.mark.parametrize("limit, code", [("100s", 0), ("1us", 1)])
def test_the_exit_code_says_whether_the_slo_is_kept(tmp_path: Path, limit: str, code: int) -> None:
    page = tmp_path / "report.html"
    words = ["report", "--trace", AGENTS, "--limit", "20", "--gpu", "l4", "--advice", "off"]
    words += ["--arrival", "closed:4", "--calibration", "preset", "--no-baseline"]
    assert command([*words, "--slo", f"ttft={limit}", "-o", str(page)]) == code
    assert page.exists()


def test_ctrl_c_during_the_rates_writes_the_page_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridplan.sim.rates.rate_curve", stop)
    page = tmp_path / "report.html"
    words = ["report", "--trace", AGENTS, "--limit", "20", "--gpu", "l4", "--advice", "off"]
    words += ["--arrival", "timed", "--session-gap", "1", "--calibration", "preset"]
    assert command([*words, "-o", str(page)]) == 130
    assert "interrupted during the rates" in capsys.readouterr().err
    assert "h-rates" not in page.read_text(encoding="utf-8")


def test_without_a_clock_the_page_says_how_to_get_one(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    words = ["report", "--trace", AGENTS, "--limit", "20", "--gpu", "l4", "--advice", "off"]
    assert command([*words, "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "With --calibration preset:CARD" in text
    assert "Latency" not in text


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(tmp_path: Path, page_text: str, width: int) -> None:
    found = seen_at(page_text, WIDTHS, tmp_path, width)
    assert found["scroll"] <= width, found["wide"]
    assert found["letters"] >= 11, "letters in figures stay readable"


positive = st.floats(1e-5, 1e5)


@given(st.lists(positive, min_size=1, max_size=8), st.integers(2, 12))
def test_scales_hold_their_values_and_few_marks(values: list[float], most: int) -> None:
    low, high = scale.ends(values)
    assert low <= min(values) * 1.0001
    assert high >= max(values) * 0.9999
    assert low < high
    found = scale.marks(low, high, most)
    assert 1 <= len(found) <= most
    assert found == sorted(set(found))
    assert all(low * 0.999 <= mark <= high * 1.001 for mark in found)


@pytest.mark.parametrize(
    "value, words",
    [(0.0005, "500 us"), (0.001, "1 ms"), (0.2, "200 ms"), (1.0, "1 s"), (2000.0, "2,000 s")],
)
def test_marks_of_time(value: float, words: str) -> None:
    assert scale.time(value) == words
