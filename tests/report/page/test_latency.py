"""The latency section of a report: there with a clock only, with the library's numbers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from hybridplan.cli import run as command
from hybridplan.config.find import load
from hybridplan.ledger.calibration import preset
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.report.page.latency_figures import latency_section
from hybridplan.report.simulate_time import seconds
from hybridplan.sim.arrival import Closed, Timed
from hybridplan.sim.run import SimulateAsk, run
from hybridplan.sim.setup import EngineAsk, VllmFlags
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.result import CURVE_PERCENTS, TimeResult
from hybridplan.sim.time.slo import Slo
from hybridplan.sim.traces import open_trace

from .markup import complaints

TRACES = Path(__file__).parents[2] / "data" / "traces"
AGENTS = str(TRACES / "lmcache_agent_derived.jsonl.gz")
AZURE = str(TRACES / "azure_llm_2023_conv.csv.gz")


@cache
def timed(*, search: bool) -> TimeResult:
    spec, deployment = load("qwen3.5-0.8b"), Deployment("vllm", "0.33")
    flags = VllmFlags(num_blocks=2000)
    timing = TimeAsk(
        preset(find_gpu("l4")), slo=Slo(ttft_s=0.5) if search else None, find_rate=search,
        tolerance=0.5,
    )  # fmt: skip
    result = run(
        SimulateAsk(
            EngineAsk(spec, deployment, flags),
            open_trace(AZURE if search else AGENTS, limit=60),
            Timed() if search else Closed(4),
            advice="off",
            bounds=False,
            timing=timing,
        )
    )
    assert result.time is not None
    return result.time


def test_no_clock_no_section() -> None:
    assert latency_section(None) == ""


def test_table_and_caption_hold_the_quantiles() -> None:
    time = timed(search=False)
    html = latency_section(time)
    assert time.latencies is not None
    assert time.worth is not None
    for found in (time.latencies.ttft, time.latencies.e2e, time.worth.latencies.ttft):
        for value in (found.p50_s, found.p90_s, found.p99_s, found.max_s, found.mean_s):
            assert f"<td>{seconds(value)}</td>" in html
    assert "with --no-prefix-caching" in html
    assert "Highest rate" not in html


def test_curve_of_quantiles_rises_from_the_least_to_the_longest() -> None:
    found = timed(search=False).latencies
    assert found is not None
    assert len(found.ttft.curve_s) == len(CURVE_PERCENTS)
    assert list(found.ttft.curve_s) == sorted(found.ttft.curve_s)
    at = dict(zip(CURVE_PERCENTS, found.ttft.curve_s, strict=True))
    assert (at[50], at[90], at[99], at[100]) == (
        found.ttft.p50_s, found.ttft.p90_s, found.ttft.p99_s, found.ttft.max_s,
    )  # fmt: skip


def test_each_rate_that_was_tried_is_a_row() -> None:
    time = timed(search=True)
    html = latency_section(time)
    assert time.capacity is not None
    probes = time.capacity.probes
    assert "Highest rate that keeps the SLO" in html
    for probe in probes:
        assert f"<td>x{probe.speed:.4g}</td>" in html


def test_page_with_latencies_keeps_its_promises(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    arguments = ("--trace", AGENTS, "--limit", "60", "--gpu", "l4", "--arrival", "closed:4")
    more = ("--calibration", "preset", "--slo", "ttft=1s", "--advice", "off", "-o", str(page))
    assert command(["report", *arguments, *more]) == 0
    text = page.read_text(encoding="utf-8")
    assert complaints(text) == []
    assert "--calibration preset --slo ttft=1s" in text
    assert '<h2 id="h-latency">Latency</h2>' in text


@pytest.mark.parametrize(
    "more, words",
    [
        (("--slo", "ttft=1s"), "the replay has no clock"),
        (("--rate", "x2"), "--rate scales the trace"),
    ],
)
def test_times_without_a_clock_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    page = tmp_path / "report.html"
    assert command(["report", "--trace", AGENTS, "--gpu", "l4", *more, "-o", str(page)]) == 2
    assert words in capsys.readouterr().err
    assert not page.exists()
