"""Published traces: every statistic computed outside this project comes out again."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hybridplan.sim.traces import Distribution, open_trace, trace_statistics
from hybridplan.sim.traces.statistics import PrefixIndex

DATA = Path(__file__).parents[2] / "data" / "traces"

# format, rows, span s, input p50/p90/p99/max, output p50/p90/p99/max, total in, total out,
# reuse, reuse with the block cap
PUBLISHED = {
    "azure_llm_2023_conv.csv.gz": (
        "azure", 19_366, 3_502, (1_020, 2_734, 4_142, 14_050), (129, 424, 601, 1_000),
        22_361_870, 4_088_665, None, None,
    ),
    "lmcache_agent_derived.jsonl.gz": (
        "mooncake", 1_148, None, (1_446, 10_228, 33_283, 48_258), (285, 435, 10_246, 10_806),
        4_238_148, 503_473, 0.900, 0.899,
    ),
    "mooncake_conversation.jsonl.gz": (
        "mooncake", 12_031, 3_537, (6_909, 27_367, 85_401, 126_195), (350, 597, 1_120, 2_000),
        144_793_823, 4_122_048, 0.374, 0.373,
    ),
    "servegen_deepseek-r1_generated.csv.gz": (
        "servegen", 14_354, 3_600, (366, 3_565, 27_968, 38_912), (510, 1_500, 12_412, 29_510),
        27_474_784, 14_503_544, None, None,
    ),
    "vllm_request_log_qwen3-30b-a3b.jsonl": (
        "llmservingsim", 300, 29, (729, 1_445, 2_767, 4_570), (641, 785, 1_000, 1_224),
        258_691, 199_486, None, None,
    ),
}  # fmt: skip


def _percentiles(found: Distribution) -> tuple[int, ...]:
    return found.p50, found.p90, found.p99, found.maximum


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_statistics_come_out(name: str) -> None:
    fmt, rows, span_s, inputs, outputs, total_in, total_out, reuse, capped = PUBLISHED[name]
    trace = open_trace(DATA / name)
    found = trace_statistics(trace)
    assert trace.info.format == fmt
    assert found.requests == trace.counts.requests == rows
    assert _percentiles(found.input) == inputs
    assert _percentiles(found.output) == outputs
    assert found.input.total == trace.counts.input_tokens == total_in
    assert found.output.total == trace.counts.output_tokens == total_out
    assert (None if found.duration_s is None else round(found.duration_s)) == span_s
    if reuse is None:
        assert found.reuse is None
    else:
        assert found.reuse is not None
        assert round(found.reuse.reusable_fraction, 3) == reuse
        assert round(found.reuse.capped_fraction, 3) == capped


def test_mooncake_settles_block_size_and_unit_and_says_how() -> None:
    info = open_trace(DATA / "mooncake_conversation.jsonl.gz").info
    assert (info.unit_tokens, info.unit.how, info.tail.value) == (512, "inferred", "ceil")
    assert (info.time_unit.value, info.time_unit.how) == ("ms", "format")
    assert "requests/s" in info.time_unit.why
    assert info.id_scope.value == "file"


def test_lmcache_derived_keeps_its_odd_rows_and_counts_them() -> None:
    trace = open_trace(DATA / "lmcache_agent_derived.jsonl.gz")
    requests = list(trace.requests())
    empty = [request for request in requests if not request.prompt.length_tokens]
    assert len(empty) == 53
    assert all(request.prompt.ids == () for request in empty)
    notices = {notice.code: notice.count for notice in trace.info.warnings}
    assert notices["empty-prompt"] == 53
    assert (trace.info.unit_tokens, trace.info.clock_scope.value) == (16, "session")


def test_lmcache_derived_parts() -> None:
    index = PrefixIndex()
    tokens: dict[str, int] = {"miniswe": 0, "magagent": 0}
    hits = dict(tokens)
    for request in open_trace(DATA / "lmcache_agent_derived.jsonl.gz").requests():
        part = str(request.session).split("/")[0]
        tokens[part] += request.prompt.length_tokens
        hits[part] += min(index.admit(request.prompt) * 16, request.prompt.length_tokens)
    assert round(hits["miniswe"] / tokens["miniswe"], 3) == 0.934
    assert round(hits["magagent"] / tokens["magagent"], 3) == 0.844


def test_weka_requests_equal_the_flattened_table_row_by_row() -> None:
    trace = open_trace(DATA / "weka_cc_traces_excerpt.jsonl.gz")
    assert (trace.info.unit_tokens, trace.info.unit.how) == (64, "read")
    assert (trace.info.tail.value, trace.info.id_scope.value) == ("floor", "session")
    index = PrefixIndex()
    found = [
        (
            request.session,
            round(request.arrival_s or 0.0, 3),
            request.prompt.length_tokens,
            request.output_tokens,
            index.admit(request.prompt) * 64,
            len(request.prompt.ids),
        )
        for request in trace.requests()
    ]
    with (DATA / "weka_cc_lengths_excerpt.csv").open() as stream:
        table = [
            (
                "/".join(filter(None, (row["session"], row["agent"]))),
                float(row["t_s"]),
                int(row["input_tokens"]),
                int(row["output_tokens"]),
                int(row["cached_prefix_tokens"]),
                int(row["n_hash_blocks"]),
            )
            for row in csv.DictReader(stream)
        ]
    assert [row[0] for row in found].count("trace_0291/agent_001") == 5
    assert sorted(found) == sorted(table), (
        "the table is in file order, sub-agents after their spawn"
    )


def test_weka_lengths_table_is_a_plain_trace_with_session_clocks() -> None:
    trace = open_trace(DATA / "weka_cc_lengths_excerpt.csv")
    requests = list(trace.requests())
    assert trace.info.format == "plain"
    assert (trace.info.time_unit.value, trace.info.time_unit.how) == ("s", "read")
    assert trace.info.clock_scope.value == "session"
    assert len(requests) == 43
    assert {request.session for request in requests} >= {"trace_0291", "trace_0291/agent_002"}


def test_vidur_lengths_have_no_clock() -> None:
    trace = open_trace(DATA / "arxiv_summarization_lengths_head.csv")
    requests = list(trace.requests())
    assert (trace.info.format, trace.info.has_clock) == ("vidur", False)
    assert len(requests) == 200
    assert (requests[0].prompt.length_tokens, requests[0].output_tokens) == (3772, 54)
    assert requests[0].arrival_s is None


def test_bench_log_takes_one_clock_only() -> None:
    requests = list(open_trace(DATA / "vllm_request_log_qwen3-30b-a3b.jsonl").requests())
    assert requests[0].arrival_s == 0.0
    assert requests[1].arrival_s == pytest.approx(1777144890.793941 - 1777144890.5122073)
    assert requests[0].request_id == "bench-0"
