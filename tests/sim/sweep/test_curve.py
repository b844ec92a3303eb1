"""Curves: one pass where it is exact, samples where it is not, both against full replays."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random

import pytest

from hybridplan.errors import InputError
from hybridplan.report.curve import screen
from hybridplan.sim.cell import run_cell
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.settings import canonical
from hybridplan.sim.sweep.curve import memory_curve
from hybridplan.sim.sweep.shards import estimate, sample, sampling_depth

DATA = Path(__file__).parents[2] / "data" / "traces"
MOONCAKE = DATA / "mooncake_conversation.jsonl.gz"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    with gzip.open(MOONCAKE, "rt") as file:
        rows = [line for line, _ in zip(file, range(400), strict=False)]
    path = tmp_path_factory.mktemp("curve") / "trace.jsonl"
    path.write_text("".join(rows))
    return str(path)


def asked(trace: str, **more: object) -> dict[str, object]:
    return {"trace": trace, "model": "qwen3-8b", "block_tokens": 512, **more}


def test_one_pass_is_every_full_replay(trace: str) -> None:
    sizes = ["20GiB", "40GiB", "90GiB", "200GiB", "500GiB"]
    curve = memory_curve(asked(trace, kv_memory=sizes, block_size=512), checks=0)
    assert curve.exact
    assert "all full attention" in curve.why
    for size, point in zip(sizes, curve.points, strict=True):
        settings, _ = canonical(asked(trace, kv_memory=size, block_size=512, max_model_len=40960))
        assert point.how == "one pass"
        assert point.hit_rate == run_cell(settings, losses=False).hit_rate
    rates = [point.hit_rate or 0.0 for point in curve.points]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] == curve.ceiling


def test_hybrid_curve_is_sampled_and_checked(trace: str) -> None:
    sizes = ["60GiB", "120GiB", "250GiB"]
    curve = memory_curve(asked(trace, model="qwen3.5-0.8b", kv_memory=sizes, limit=400), checks=3)
    assert not curve.exact
    assert "no stack" in curve.why
    assert {point.how for point in curve.points} >= {"sampled"}
    assert curve.worst_error is not None
    assert curve.worst_error < 0.03
    for point in curve.points:
        assert (point.low or 0) <= (point.hit_rate or 0) <= (point.high or 0)


@pytest.mark.parametrize("engine", ["sglang:extra_buffer", "marconi:paper", "vllm@0.33"])
def test_default_memories_reach_the_unlimited_rate(engine: str) -> None:
    short = {"trace": str(DATA / "sample_lmcache_agent_miniswe.jsonl"), "tokens_per_char": 0.25}
    curve = memory_curve({**short, "model": "qwen3.5-0.8b", "engine": engine}, checks=0)
    answered = [point.hit_rate for point in curve.points if point.hit_rate is not None]
    assert answered[-1] == pytest.approx(curve.ceiling, abs=1e-12)


def test_a_short_trace_is_run_in_full(trace: str) -> None:
    curve = memory_curve(asked(trace, model="qwen3.5-0.8b", kv_memory="250GiB", limit=399))
    assert [point.how for point in curve.points] == ["full run"]
    assert curve.why == "full replays: the pools or the trace are too small for samples"


def marconi(trace: str, *sizes: str) -> dict[str, object]:
    return asked(trace, model="qwen3.5-0.8b", engine="marconi:paper", kv_memory=list(sizes))


def test_full_runs_outside_the_interval_are_counted(trace: str) -> None:
    curve = memory_curve(marconi(trace, "2GiB", "16GiB"), checks=2)
    small, large = curve.points
    assert small.how == large.how == "sampled"
    assert (small.high or 0) < (small.full_hit_rate or 0) - 0.0005
    assert large.full_hit_rate == pytest.approx(large.hit_rate, abs=0.0005)
    assert (curve.checked, curve.outside) == (2, 1)
    assert any("outside their interval: 1 of those" in str(part) for part in screen(curve))


def test_a_copy_of_the_trace_gives_the_same_samples(trace: str, tmp_path: Path) -> None:
    copy = tmp_path / "another-name.jsonl"
    copy.write_bytes(Path(trace).read_bytes())
    here, there = (
        memory_curve(marconi(path, "2GiB"), checks=0).points for path in (trace, str(copy))
    )
    assert here[0].how == "sampled"
    assert here == there


def test_samples_are_disjoint_and_keep_trees_whole() -> None:
    random = Random(7)
    requests = [
        Request(str(n), Prompt(64, 16, (1, random.randrange(40), n, n)), 1) for n in range(600)
    ]
    depth = sampling_depth(requests)
    assert depth == 4, "40 trees of 1/40 each are above the largest share at depth 2"
    parts = [[r.request_id for r in sample(requests, 2, 8, number)] for number in range(8)]
    assert sorted(name for part in parts for name in part) == sorted(r.request_id for r in requests)
    trees = [{requests[int(name)].prompt.ids[1] for name in part} for part in parts]
    assert sum(map(len, trees)) == len(set.union(*trees))


def test_requests_without_ids_are_trees_of_their_own() -> None:
    requests = [Request(str(n), Prompt(100), 1) for n in range(400)]
    assert sampling_depth(requests) == 1
    found = [len(list(sample(requests, 1, 4, number))) for number in range(4)]
    assert sum(found) == 400
    assert min(found) > 60


def test_equal_samples_leave_no_doubt() -> None:
    found = estimate(0.5, [(10, 100)] * 4, 32)
    assert found.hit_rate == pytest.approx(0.4)
    assert found.half_width == 0
    assert estimate(0.5, [(10, 100), (30, 100)] * 2, 32).half_width > 0.1


@pytest.mark.parametrize(
    "change, words",
    [
        ({"engine": ["vllm", "sglang"]}, "2 were given"),
        ({"arrival": "closed:4"}, "one at a time"),
        ({"gpu": "h200"}, "drop cells and gpu"),
    ],
    ids=["engines", "arrival", "gpu"],
)
def test_what_has_no_curve(trace: str, change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        memory_curve(asked(trace, **change))
