"""From flags to a replayed engine: pools, policies, clocks, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan import load, simulate
from hybridplan.errors import HybridplanError, InputError, RefusalError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.planning.ask import MemoryAsk, VllmAsk
from hybridplan.ledger.planning.vllm import plan
from hybridplan.ledger.sglang.options import SglangOptions
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.sim import Closed, LossCause, Progress, Prompt, Request, Timed
from hybridplan.sim.placing import place_sessions
from hybridplan.sim.replay import Replay
from hybridplan.sim.run import SimulateAsk, run
from hybridplan.sim.setup import EngineAsk, SglangFlags, VllmFlags, build
from hybridplan.sim.timeline import MOST_POINTS, Timeline
from hybridplan.sim.traces import open_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
AGENTS = DATA / "lmcache_agent_derived.jsonl.gz"
MODEL = "qwen3.5-0.8b"


def ask(model: str = MODEL, memory: MemoryAsk | None = None, **flags: Any) -> EngineAsk:
    return EngineAsk(load(model), Deployment("vllm", "0.33"), VllmFlags(**flags), memory)


def prompt(length: int, start: int = 0) -> Prompt:
    return Prompt(length, 1, range(start, start + length))


def request(name: str, length: int, start: int = 0, output: int = 4) -> Request:
    return Request(name, prompt(length, start), output)


@pytest.mark.parametrize("gpu", ["l4", "h200"])
@pytest.mark.parametrize("model", [MODEL, "nemotron-3-nano-30b-a3b-nvfp4", "llama-3.1-8b"])
def test_the_pool_is_that_of_the_plan(model: str, gpu: str) -> None:
    memory = MemoryAsk(gpu=find_gpu(gpu))
    question = VllmAsk(
        load(model),
        Deployment("vllm", "0.33"),
        VllmOptions(max_model_len=16_384),
        memory,
        max_num_seqs=64,
    )
    try:
        planned = plan(question)
    except RefusalError:
        planned = None
    wanted = ask(model, memory, options=VllmOptions(max_model_len=16_384), max_num_seqs=64)
    if planned is None:
        with pytest.raises(RefusalError):
            build(wanted)
        return
    setup = build(wanted).setup
    assert setup.num_blocks == planned.num_blocks
    assert setup.memory == planned.memory
    assert setup.bytes_per_block == planned.bytes_per_block
    assert setup.hit_alignment_tokens == planned.hit_alignment_tokens
    assert setup.settings["max_num_batched_tokens"] == planned.max_num_batched_tokens


def test_without_memory_the_pool_is_unlimited_and_says_so() -> None:
    setup = build(ask()).setup
    assert setup.num_blocks is None
    assert setup.memory is None
    assert "unlimited" in setup.assumptions[0]
    assert "max_num_batched_tokens 2,048, max_num_seqs 256" in setup.assumptions[1]
    given_all = build(ask(num_blocks=900, max_num_seqs=8, max_num_batched_tokens=4096)).setup
    assert given_all.assumptions == ()
    assert given_all.num_blocks == 900


def test_the_published_example() -> None:
    """Block 640: A of 2,000 tokens, B and C share its first 1,300; hits 0, 0, 1,280."""
    wanted = ask(options=VllmOptions(block_tokens=640), max_num_batched_tokens=8192)
    engine = build(wanted).engine()
    requests = [
        request("A", 2000),
        Request("B", Prompt(2000, 1, [*range(1300), *range(5000, 5700)]), 4),
        Request("C", Prompt(2000, 1, [*range(1300), *range(6000, 6700)]), 4),
    ]
    hits: dict[str, int] = {}
    simulate(requests, engine, on_outcome=lambda o: hits.update({o.request_id: o.hit_tokens}))
    assert hits == {"A": 0, "B": 0, "C": 1280}


def test_policy_all_keeps_a_state_at_every_block() -> None:
    wanted = ask(policy="all", num_blocks=2000)
    built = build(wanted)
    assert built.setup.policy == "all"
    assert any("no longer has" in said for said in built.setup.assumptions)
    shared = [
        request("A", 3000),
        Request("B", Prompt(3000, 1, [*range(1300), *range(9000, 10700)]), 2),
    ]
    summary = simulate(shared, built.engine())
    assert summary.hit_tokens == 1152  # two whole blocks of 576
    assert simulate(shared, build(ask(num_blocks=2000)).engine()).hit_tokens == 0


@pytest.mark.parametrize(
    "wanted, words",
    [
        (lambda: ask(num_blocks=0), "--num-blocks 0 leaves nothing"),
        (lambda: ask(num_blocks=300), "max.model.len 167040"),
        (lambda: ask(policy="none"), "use engine or all"),
        (lambda: ask("llama-3.1-8b", policy="all"), "no prefix-cached state"),
        (lambda: ask(watermark=1.0), "--watermark 1"),
        (lambda: ask(accepted_drafts=(1,)), "between 0 and the 0 drafts"),
        (lambda: ask(retention_interval=100), "multiple of the scheduler block of 576"),
        (
            lambda: ask("falcon-mamba-7b", options=VllmOptions(max_model_len=4096)),
            "without prefix caching",
        ),
        (lambda: replace(ask(), deployment=Deployment("vllm", "0.31")), "replayed are 0.32, 0.33"),
        (
            lambda: EngineAsk(load("llama-3.1-8b"), Deployment("sglang"), SglangFlags()),
            "no recurrent state",
        ),
        (
            lambda: EngineAsk(load("falcon-mamba-7b"), Deployment("sglang"), SglangFlags()),
            "--max-model-len",
        ),
        (
            lambda: EngineAsk(load("rwkv7-2.9b"), Deployment("sglang"), SglangFlags()),
            "has no attention",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_and_why(wanted: Any, words: str) -> None:
    with pytest.raises(HybridplanError, match=words):
        build(wanted())


def test_prefix_caching_off_is_replayed_when_asked_for() -> None:
    wanted = ask(options=VllmOptions(prefix_caching=False))
    summary = simulate([request("A", 2000), request("B", 2000)], build(wanted).engine())
    assert summary.hit_tokens == 0
    assert dict(summary.lost) == {LossCause.OUTSIDE_CACHE: 2000}


def test_too_long_requests_are_counted() -> None:
    trace = open_trace(DATA / "weka_cc_traces_excerpt.jsonl.gz")
    wanted = ask(options=VllmOptions(max_model_len=32_768))
    result = run(SimulateAsk(wanted, trace, advice="off"))
    (refused,) = result.refused
    assert refused.requests + result.requests == 43
    long = sum(found.prompt.length_tokens >= 32_768 for found in trace.requests())
    assert refused.requests == long > 0
    assert "max_model_len=32768" in refused.reason


def test_sglang_pools_and_strategy() -> None:
    wanted = EngineAsk(
        load(MODEL), Deployment("sglang"), SglangFlags(), MemoryAsk(gpu=find_gpu("l4"))
    )
    setup = build(wanted).setup
    assert setup.policy == "extra_buffer"
    assert [group.layers for group in setup.groups] == [6, 18]
    result = run(SimulateAsk(wanted, open_trace(AGENTS), advice="off"))
    no_buffer = replace(wanted, flags=SglangFlags(SglangOptions(strategy="no_buffer")))
    worse = run(SimulateAsk(no_buffer, open_trace(AGENTS), advice="off"))
    assert result.hits.usable_tokens > worse.hits.usable_tokens
    assert sum(loss.tokens for loss in result.losses) == (
        (result.hits.ceiling_tokens or 0) - result.hits.usable_tokens
    )


@pytest.mark.parametrize(
    "model, strategy, gpu, hits, step",
    [
        ("granite-4.0-h-tiny", "extra_buffer", "h100", 256, 8192),
        ("nemotron-h-8b-base-8k", "extra_buffer", "l40s", 128, 4096),
        (MODEL, "extra_buffer", "b200", 64, 16384),
        (MODEL, "no_buffer", "h100", 1, 8192),
    ],
)
def test_sglang_takes_chunks_of_the_model_and_the_card(
    model: str, strategy: str, gpu: str, hits: int, step: int
) -> None:
    flags = SglangFlags(SglangOptions(strategy=strategy))
    memory = MemoryAsk(gpu=find_gpu(gpu))
    setup = build(EngineAsk(load(model), Deployment("sglang"), flags, memory)).setup
    assert setup.hit_alignment_tokens == hits
    assert setup.settings["chunked_prefill_size"] == step


def test_sglang_refuses_what_the_context_does_not_hold() -> None:
    wanted = EngineAsk(load("nemotron-h-8b-base-8k"), Deployment("sglang"), SglangFlags())
    trace = [request("fits", 8185), request("long", 8186), request("cut", 8180, output=100)]
    fits, long, cut = Replay(trace, build(wanted).engine())
    assert (fits.refused, fits.output_tokens) == (None, 4)
    assert "8186 tokens is too long for a context of 8192: the most are 8185" in str(long.refused)
    assert cut.output_tokens == 10


@pytest.mark.parametrize("arrival", [Closed(1), Closed(8), Timed()])
@pytest.mark.parametrize("blocks", [None, 700])
def test_causes_sum_to_the_loss_and_points_to_the_total(arrival: Any, blocks: int | None) -> None:
    gap = 5.0 if isinstance(arrival, Timed) else None
    result = run(
        SimulateAsk(ask(num_blocks=blocks), open_trace(AGENTS), arrival, gap, advice="off")
    )
    assert result.requests == 1095
    assert sum(loss.tokens for loss in result.losses) == result.lost_tokens
    assert result.lost_tokens == (result.hits.ceiling_tokens or 0) - result.hits.usable_tokens
    assert sum(point.hit_tokens for point in result.timeline) == result.hits.usable_tokens
    assert sum(point.prompt_tokens for point in result.timeline) == result.prompt_tokens
    assert sum(point.evictions for point in result.timeline) == result.evictions
    assert result.timeline[-1].finished == 1148  # the 53 refused ones too
    if blocks is None:
        assert result.evictions == 0


def test_both_readings_where_the_trace_is_coarse() -> None:
    trace = open_trace(DATA / "mooncake_conversation.jsonl.gz", limit=400)
    result = run(SimulateAsk(ask(), trace, advice="off"))
    assert not result.hits.exact
    assert result.hits.upper_tokens is not None
    assert result.hits.usable_tokens < result.hits.upper_tokens
    assert result.hits.upper_tokens <= (result.hits.ceiling_tokens or 0)
    exact = run(SimulateAsk(ask(), open_trace(AGENTS), advice="off"))
    assert exact.hits.exact
    assert exact.hits.upper_tokens is None


def test_a_clock_per_session_needs_a_gap() -> None:
    with pytest.raises(InputError, match="--session-gap SECONDS"):
        run(SimulateAsk(ask(), open_trace(AGENTS), Timed()))
    with pytest.raises(InputError, match="drop it"):
        run(SimulateAsk(ask(), open_trace(AGENTS), Closed(1), 5.0))
    lengths = open_trace(DATA / "arxiv_summarization_lengths_head.csv")
    with pytest.raises(InputError, match="has none"):
        run(SimulateAsk(ask(), lengths, Timed()))


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 100)), max_size=20), st.floats(0, 50))
def test_placed_sessions_keep_their_own_times(rows: list[tuple[int, float]], gap: float) -> None:
    requests = [
        Request(str(index), prompt(1), 1, arrival_s=at, session=str(session))
        for index, (session, at) in enumerate(rows)
    ]
    placed = place_sessions(requests, gap)
    order = list(dict.fromkeys(session for session, _ in rows))
    expected = sorted(
        ((order.index(session) * gap + at, index) for index, (session, at) in enumerate(rows)),
        key=lambda pair: pair[0],
    )
    assert [(r.arrival_s, int(r.request_id)) for r in placed] == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=900))
def test_a_timeline_is_bounded_and_loses_nothing(hits: list[int]) -> None:
    engine = build(ask()).engine()
    timeline = Timeline(engine)
    total = 0
    for number, hit in enumerate(hits, 1):
        total += hit
        last = Progress(number, 0, 0, 10 * number, total, number)
        timeline.see(last)
    points = timeline.points(last)
    assert len(points) <= MOST_POINTS + 1
    assert sum(point.hit_tokens for point in points) == total
    assert sum(point.prompt_tokens for point in points) == 10 * len(hits)
    assert [point.finished for point in points] == sorted({point.finished for point in points})
