"""Advice: what is suggested holds when it is really run, and nothing is suggested for nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan import load
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.planning.ask import MemoryAsk
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.sim import Arrival, Closed, LossCause, Prompt, Request, simulate
from hybridplan.sim.advice import HEAD_WORK, MOST_SHOWN, MOST_TRIED, Head, advise
from hybridplan.sim.result import Advice, SimulateResult
from hybridplan.sim.run import SimulateAsk, run
from hybridplan.sim.setup import EngineAsk, SglangFlags, VllmFlags, build
from hybridplan.sim.traces import open_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
AGENTS = DATA / "lmcache_agent_derived.jsonl.gz"
SEQUENTIAL = Closed(1)


def answer(
    trace: Path = AGENTS,
    model: str = "qwen3.5-0.8b",
    arrival: Arrival = SEQUENTIAL,
    memory: MemoryAsk | None = None,
    limit: int | None = None,
    advice: Any = "auto",
    drafts: int = 0,
    **flags: Any,
) -> SimulateResult:
    deployment = Deployment("vllm", "0.33", drafts=drafts)
    wanted = EngineAsk(load(model), deployment, VllmFlags(**flags), memory)
    return run(SimulateAsk(wanted, open_trace(trace, limit=limit), arrival, advice=advice))


def advised(result: SimulateResult) -> Advice:
    assert result.advice is not None
    return result.advice


def test_a_suggestion_gives_what_it_says() -> None:
    result = answer(limit=400)
    advice = advised(result)
    assert advice.whole_trace
    assert advice.requests == result.requests
    best = {found.flags: found for found in advice.tried}["--prefix-match-unit 16",]
    again = answer(options=VllmOptions(prefix_match_unit=16), advice="off", limit=400)
    assert best.hit_rate == again.hits.usable_rate
    assert best.base_rate == result.hits.usable_rate
    assert best.gained_tokens == again.hits.usable_tokens - result.hits.usable_tokens
    assert best.recovered == best.gained_tokens / result.lost_tokens


def test_retention_is_suggested_where_states_were_dropped() -> None:
    tried = {found.flags: found for found in advised(answer(limit=400)).tried}
    budget = tried["--prefix-cache-retention-interval None", "--max-num-batched-tokens 1152"]
    again = answer(retention_interval=None, max_num_batched_tokens=1152, advice="off", limit=400)
    assert budget.hit_rate == again.hits.usable_rate > budget.base_rate


def test_memory_is_suggested_where_blocks_were_evicted() -> None:
    gib = 1 << 30
    memory = MemoryAsk(kv_memory_bytes=gib)
    options = VllmOptions(max_model_len=50_000)
    result = answer(memory=memory, arrival=Closed(24), options=options, max_num_seqs=32, limit=500)
    assert result.evictions
    found = {f.flags: f for f in advised(result).tried}["--kv-memory 2048MiB",]
    more = replace(memory, kv_memory_bytes=2 * gib)
    again = answer(
        memory=more, arrival=Closed(24), options=options, max_num_seqs=32, limit=500, advice="off"
    )
    assert found.hit_rate == again.hits.usable_rate > result.hits.usable_rate
    assert found.price == "1.00 GiB more a rank"


def test_states_in_a_pool_that_evicts_are_not_judged_on_a_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hybridplan.sim.advice.HEAD_WORK", 3_000)
    small: dict[str, Any] = {
        "num_blocks": 160,
        "options": VllmOptions(max_model_len=50_000),
        "max_num_seqs": 32,
        "limit": 300,
        "arrival": Closed(24),
    }
    advice = advised(answer(**small))
    assert not advice.whole_trace
    assert "--advice full tells" in advice.note
    assert {found.flags for found in advice.tried} & {("--num-gpu-blocks-override 320",)}
    full = advised(answer(**small, advice="full"))
    tried = {flag for found in full.tried for flag in found.flags}
    assert "--prefix-cache-retention-interval None" in tried


def test_drafts_are_named_when_they_cost_hits() -> None:
    result = answer(DATA / "weka_cc_traces_excerpt.jsonl.gz", drafts=3)
    flags = {flag for found in advised(result).tried for flag in found.flags}
    lost = {loss.cause.value: loss.share for loss in result.losses}
    assert ("--drafts 0" in flags) == (lost.get("draft_drop", 0) > 0.02)


VLLM_033_FLAGS = {
    "--block-size", "--enable-mamba-shared-prefix-checkpoint", "--enable-prefix-caching",
    "--kv-cache-dtype", "--kv-cache-memory-bytes", "--mamba-ssm-cache-dtype",
    "--max-num-batched-tokens", "--max-num-seqs", "--num-gpu-blocks-override",
    "--prefix-cache-retention-interval", "--prefix-match-unit",
}  # fmt: skip
"""Of vLLM 0.33's ``EngineArgs.add_cli_args``."""
OURS = {"--drafts", "--kv-memory"}
"""Explained beside the suggestion: vLLM has --speculative-config and bytes."""


@pytest.mark.parametrize("drafts", [0, 3])
def test_flags_are_those_of_the_engine(drafts: int) -> None:
    memory = MemoryAsk(kv_memory_bytes=1 << 30)
    options = VllmOptions(max_model_len=50_000)
    tight = answer(
        memory=memory, arrival=Closed(24), options=options, limit=200, drafts=drafts,
        max_num_seqs=32,
    )  # fmt: skip
    named = {flag.split()[0] for found in advised(tight).tried for flag in found.flags}
    assert named <= VLLM_033_FLAGS | OURS
    assert {"--mamba-ssm-cache-dtype", "--kv-cache-dtype", "--kv-memory"} <= named
    twice = next(f for f in advised(tight).tried if f.flags[0].startswith("--kv-memory"))
    assert twice.why.endswith("(vLLM: --kv-cache-memory-bytes 2048M)")


@pytest.mark.parametrize("num_blocks", [None, 160])
def test_one_at_a_time_a_head_needs_no_replay_of_its_own(
    monkeypatch: pytest.MonkeyPatch, num_blocks: int | None
) -> None:
    monkeypatch.setattr("hybridplan.sim.advice.HEAD_WORK", 3_000)
    options = VllmOptions(max_model_len=50_000)
    seen = advised(answer(limit=200, num_blocks=num_blocks, options=options, max_num_seqs=32))
    monkeypatch.setattr(Head, "seen", None)
    assert not seen.whole_trace
    assert (
        advised(answer(limit=200, num_blocks=num_blocks, options=options, max_num_seqs=32)) == seen
    )


def test_a_long_trace_is_advised_on_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridplan.sim.advice.HEAD_WORK", 6_000)
    trace = DATA / "mooncake_conversation.jsonl.gz"
    advice = advised(answer(trace, limit=200))
    assert not advice.whole_trace
    assert 100 < advice.requests < 200
    head = answer(trace, limit=advice.requests, advice="off")
    assert {found.base_rate for found in advice.tried} == {head.hits.usable_rate}
    assert "too coarse" in advice.note
    whole = advised(answer(trace, limit=200, advice="full"))
    assert whole.whole_trace
    assert {found.requests for found in whole.tried} == {200}


def test_nothing_is_suggested_where_nothing_is_lost() -> None:
    advice = advised(answer(model="llama-3.1-8b", limit=400))
    assert advice.tried == advice.suggestions == ()


def test_a_cache_switched_off_is_switched_on() -> None:
    advice = advised(answer(options=VllmOptions(prefix_caching=False), limit=100))
    assert [found.flags for found in advice.suggestions] == [("--enable-prefix-caching",)]


def test_without_reuse_there_is_no_advice() -> None:
    result = answer(DATA / "azure_llm_2023_conv.csv.gz", limit=200)
    assert result.hits.ceiling_tokens == 0
    assert result.advice is None


def test_waiting_for_the_first_of_its_kind_is_no_flags_fault() -> None:
    wanted = EngineAsk(load("qwen3.5-0.8b"), Deployment("vllm", "0.33"), VllmFlags())
    requests = [Request("a", Prompt(1000), 1)]
    summary = simulate(requests, build(wanted).engine())
    waiting = replace(summary, ceiling_tokens=900, lost=((LossCause.NOT_COMPUTED_YET, 900),))
    advice, complete = advise(wanted, SEQUENTIAL, waiting, Head(576), None, lambda: requests)
    assert complete
    assert advice.suggestions == ()
    assert "no cache flag helps" in advice.note


def test_sglang_tries_the_other_strategies() -> None:
    wanted = EngineAsk(load("qwen3.5-0.8b"), Deployment("sglang"), SglangFlags())
    advice = advised(run(SimulateAsk(wanted, open_trace(AGENTS))))
    assert [found.flags for found in advice.tried] == [
        ("--mamba-radix-cache-strategy no_buffer",),
        ("--mamba-radix-cache-strategy extra_buffer_lazy",),
    ]


@pytest.mark.parametrize("policy", ["engine", "all"])
def test_work_is_bounded_and_order_is_by_gain(policy: str) -> None:
    advice = advised(answer(policy=policy, num_blocks=700, limit=300))
    assert len(advice.tried) + len(advice.refused) <= MOST_TRIED + 1
    assert len(advice.suggestions) <= MOST_SHOWN
    gains = [found.hit_rate - found.base_rate for found in advice.suggestions]
    assert gains == sorted(gains, reverse=True)
    assert all(gain >= 0.001 for gain in gains)
    assert advised(answer(policy=policy, num_blocks=700, limit=300)) == advice


@given(st.lists(st.integers(1, 2_000_000), min_size=1, max_size=30), st.booleans())
def test_a_head_is_a_prefix_within_its_work(lengths: list[int], whole: bool) -> None:
    requests = [Request(str(i), Prompt(n), 0) for i, n in enumerate(lengths)]
    head = Head(64, whole=whole)
    assert list(head.filled(requests)) == requests
    assert head.requests == requests[: len(head.requests)]
    assert head.is_whole == (len(head.requests) == len(requests))
    work = sum(n // 64 + 20 for n in lengths[: len(head.requests)])
    assert whole or work <= HEAD_WORK or len(head.requests) == 1
    if whole:
        assert head.is_whole
