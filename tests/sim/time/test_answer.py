"""What a question of time answers as a whole: stopped early, without hits, at other rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hybridplan
from hybridplan.ledger.calibration import preset
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.report.simulate_time import seconds
from hybridplan.sim.arrival import Closed, Rate, Timed
from hybridplan.sim.replay import Progress
from hybridplan.sim.run import SimulateAsk, run
from hybridplan.sim.setup import EngineAsk, VllmFlags
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.slo import Slo
from hybridplan.sim.traces import open_trace

DATA = Path(__file__).parents[2] / "data" / "traces"
AGENTS = DATA / "lmcache_agent_derived.jsonl.gz"
AZURE = DATA / "azure_llm_2023_conv.csv.gz"
CALIBRATION = preset(find_gpu("l4"))


def asked(
    timing: TimeAsk, *, trace: Path = AGENTS, timed: bool = False, **flags: object
) -> SimulateAsk:  # fmt: skip
    engine = EngineAsk(
        hybridplan.load("qwen3.5-0.8b"),
        Deployment("vllm", "0.33"),
        VllmFlags(num_blocks=2000, **flags),  # type: ignore[arg-type]
    )
    opened = open_trace(str(trace), limit=60)
    return SimulateAsk(
        engine, opened, Timed() if timed else Closed(4), advice="off", bounds=False, timing=timing
    )


@pytest.mark.parametrize(
    "stage, cut", [("without prefix caching", "baseline"), ("rate ", "rate search")]
)
def test_ctrl_c_leaves_what_was_found(stage: str, cut: str) -> None:
    def stop(at: str, progress: Progress, total: int | None) -> None:
        if at.startswith(stage):
            raise KeyboardInterrupt

    trace = AGENTS if cut == "baseline" else AZURE
    slo = Slo(ttft_s=1e-6)
    timing = TimeAsk(CALIBRATION, slo=slo, find_rate=cut == "rate search")
    result = run(asked(timing, trace=trace, timed=cut == "rate search"), watch=stop)
    assert result.interrupted == cut
    assert not result.partial
    assert result.time is not None
    assert result.time.latencies is not None
    assert (result.time.worth, result.time.capacity) == (None, None)


def test_ctrl_c_in_the_replay_gives_the_times_of_what_ended() -> None:
    def stop(at: str, progress: Progress, total: int | None) -> None:
        if progress.finished == 20:
            raise KeyboardInterrupt

    result = run(asked(TimeAsk(CALIBRATION)), watch=stop)
    assert result.interrupted == "replay"
    assert result.time is not None
    assert result.time.latencies is not None
    # The outcome that was being handed over when it was stopped counts in the totals only.
    assert 0 <= result.requests - result.time.latencies.ttft.requests <= 1
    assert result.requests < 60
    assert result.time.worth is None


def test_nothing_hit_is_worth_nothing() -> None:
    result = run(asked(TimeAsk(CALIBRATION), trace=AZURE))
    assert result.hits.usable_tokens == 0
    assert result.time is not None
    assert result.time.worth is None


def test_hits_spare_their_own_prefill() -> None:
    result = run(asked(TimeAsk(CALIBRATION)))
    assert result.time is not None
    worth = result.time.worth
    assert worth is not None
    assert worth.baseline == "--no-prefix-caching"
    per_token = worth.prefill_gpu_s / result.hits.usable_tokens
    assert worth.ms_per_1000_hit_tokens == pytest.approx(1e6 * per_token)
    assert 0 < worth.prefill_gpu_s < worth.gpu_s
    assert worth.saved_ttft_s > 0


def test_ranks_multiply_gpu_time_only() -> None:
    times = []
    for tp in (1, 2):
        ask = asked(TimeAsk(CALIBRATION, baseline=False))
        engine = EngineAsk(ask.engine.spec, Deployment("vllm", "0.33", tp=tp), ask.engine.flags)
        result = run(SimulateAsk(engine, ask.trace, ask.arrival, advice="off", timing=ask.timing))
        assert result.time is not None
        assert result.time.utilisation is not None
        times.append(result.time.utilisation)
    one, two = times
    assert (one.ranks, two.ranks) == (1, 2)
    assert two.gpu_s == 2 * two.busy_s
    assert two.busy_s < one.busy_s


def test_a_faster_clock_is_the_same_trace_sooner() -> None:
    slow, fast = (
        run(asked(TimeAsk(CALIBRATION, rate=Rate(speed=s)), trace=AZURE, timed=True))
        for s in (0.25, 4.0)
    )
    assert slow.time is not None
    assert fast.time is not None
    assert fast.time.offered_per_s == pytest.approx(16 * (slow.time.offered_per_s or 0))
    assert slow.output_tokens == fast.output_tokens
    assert fast.time.span_s < slow.time.span_s


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0, "0"), (1.5e-7, "0.150 us"), (147e-6, "147 us"), (0.0123, "12.3 ms"),
        (0.09996, "100 ms"), (1.0, "1.00 s"), (1250.4, "1,250 s"),
    ],
)  # fmt: skip
def test_seconds_have_three_digits_and_a_unit(value: float, text: str) -> None:
    assert seconds(value) == text


def test_no_server_is_busy_for_longer_than_it_ran(tmp_path: Path) -> None:
    """Drafts end a request in a step after which the next is planned already and runs in vain."""
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"input_length": 50, "output_length": 4}) + "\n")
    engine = EngineAsk(
        hybridplan.load("qwen3.5-0.8b"),
        Deployment("vllm", "0.33", drafts=2),
        VllmFlags(num_blocks=2000, accepted_drafts=(2,)),
    )
    timing = TimeAsk(CALIBRATION, baseline=False)
    result = run(SimulateAsk(engine, open_trace(str(path)), advice="off", timing=timing))
    assert result.time is not None
    assert result.time.utilisation is not None
    assert result.time.utilisation.busy_s > result.time.span_s
    assert result.time.utilisation.busy_share == 1.0


@pytest.mark.parametrize("model, dtype", [("qwen3.5-0.8b", "bf16"), ("deepseek-v3", "fp8")])
def test_flop_are_a_share_of_the_rate_their_products_run_at(model: str, dtype: str) -> None:
    gpu = find_gpu("h200")
    engine = EngineAsk(
        hybridplan.load(model), Deployment("vllm", "0.33", tp=8), VllmFlags(num_blocks=12000)
    )
    timing = TimeAsk(preset(gpu, dtype), baseline=False)
    trace = open_trace(str(AZURE), limit=3)
    result = run(SimulateAsk(engine, trace, advice="off", bounds=False, timing=timing))
    assert result.time is not None
    used = result.time.utilisation
    assert used is not None
    assert used.flop_share == pytest.approx(used.flop_per_s / gpu.flops_per_s[dtype])


def test_pipeline_stages_share_the_bytes_and_keep_steps_in_flight() -> None:
    found = []
    for pp, async_scheduling in ((1, True), (2, True), (2, False)):
        engine = EngineAsk(
            hybridplan.load("qwen3.5-0.8b"),
            Deployment("vllm", "0.33", pp=pp),
            VllmFlags(num_blocks=2000, options=VllmOptions(async_scheduling=async_scheduling)),
        )
        timing = TimeAsk(CALIBRATION, baseline=False)
        trace = open_trace(str(AZURE), limit=3)
        found.append(run(SimulateAsk(engine, trace, advice="off", bounds=False, timing=timing)))
    used = [result.time.utilisation for result in found if result.time is not None]
    one, two, _ = used
    assert one is not None
    assert two is not None
    assert two.bytes == pytest.approx(one.bytes / 2, rel=0.03)
    assert (two.bandwidth_share or 1) < 0.52 * (one.bandwidth_share or 0)
    said = [" ".join(result.assumptions) for result in found]
    assert "async scheduling: an arrival is seen when the step after" in said[0]
    assert "steps in flight while one is planned: 2 (pipeline" in said[1]
    assert "steps in flight while one is planned: 1 (pipeline" in said[2]
