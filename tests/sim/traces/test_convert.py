"""Our own JSONL reads back as the same requests; damaged rows give requests or a sentence."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import HybridplanError, InputError
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces import Trace, convert_trace, open_trace, trace_statistics
from hybridplan.sim.traces.convert import lines_of
from hybridplan.sim.traces.own import pack_ids, unpack_ids

Opened = Callable[..., Trace]

DATA = Path(__file__).parents[2] / "data" / "traces"
SAMPLES: dict[str, dict[str, Any]] = {
    "arxiv_summarization_lengths_head.csv": {},
    "azure_llm_2023_conv.csv.gz": {"limit": 500},
    "lmcache_agent_derived.jsonl.gz": {"link_sessions": True},
    "mooncake_conversation.jsonl.gz": {"limit": 500},
    "sample_lmcache_agent_miniswe.jsonl": {"tokens_per_char": 0.25},
    "servegen_deepseek-r1_generated.csv.gz": {"limit": 500},
    "vllm_request_log_qwen3-30b-a3b.jsonl": {},
    "weka_cc_lengths_excerpt.csv": {},
    "weka_cc_traces_excerpt.jsonl.gz": {"link_sessions": True},
}


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
@pytest.mark.parametrize("name", SAMPLES)
def test_converted_traces_read_back_as_the_same_requests(
    tmp_path: Path, name: str, suffix: str
) -> None:
    if suffix.endswith(".zst"):
        pytest.importorskip("zstandard")
    trace = open_trace(DATA / name, **SAMPLES[name])
    target = tmp_path / f"converted{suffix}"
    count = convert_trace(trace, target)
    again = open_trace(target)
    requests = list(trace.requests())
    assert len(requests) == count
    assert list(again.requests()) == requests
    assert again.info.format == "hybridplan"
    assert again.info.dialect == trace.info.format
    assert again.info.time_unit.value == ("s" if trace.info.has_clock else "none")
    for fact in ("unit", "clock_scope", "id_scope"):
        assert getattr(again.info, fact).value == getattr(trace.info, fact).value
    assert trace_statistics(again) == trace_statistics(trace)


def test_writing_is_reproducible_and_never_half_done(tmp_path: Path) -> None:
    trace = open_trace(DATA / "weka_cc_traces_excerpt.jsonl.gz")
    one, two = tmp_path / "one.gz", tmp_path / "two.gz"
    convert_trace(trace, one)
    convert_trace(trace, two)
    assert one.read_bytes() == two.read_bytes()
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"input_length": 1, "output_length": 1}\n{"input_length": -1}\n')
    with pytest.raises(InputError, match="line 2"):
        convert_trace(open_trace(bad), tmp_path / "out.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "one.gz", "two.gz"]


def test_targets_are_guarded(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("input_length,output_length\n1,2\n")
    trace = open_trace(source)
    with pytest.raises(InputError, match="is the trace itself"):
        convert_trace(trace, source, overwrite=True)
    target = tmp_path / "b.jsonl"
    target.write_text("precious")
    with pytest.raises(InputError, match="--overwrite"):
        convert_trace(trace, target)
    assert convert_trace(trace, target, overwrite=True) == 1
    with pytest.raises(InputError, match="cannot be written: No such file"):
        convert_trace(trace, tmp_path / "no" / "such" / "folder.jsonl")


def test_a_newer_version_is_refused(opened: Opened) -> None:
    with pytest.raises(InputError, match="its version is 2, this program reads 1"):
        opened([{"hybridplan_trace": 2}])


IDS = st.lists(st.one_of(st.integers(-5, 20), st.integers(-(2**70), 2**70)), max_size=20)


@given(IDS, st.integers(0, 9))
def test_packed_ids(ids: list[int], run: int) -> None:
    ids = ids + list(range(run))
    assert unpack_ids(pack_ids(ids)) == tuple(ids)


def prompts(length: st.SearchStrategy[int]) -> st.SearchStrategy[Prompt]:
    return length.flatmap(
        lambda tokens: st.integers(1, 9).flatmap(
            lambda unit: st.builds(
                Prompt,
                st.just(tokens),
                st.just(unit),
                st.lists(st.integers(0, 9), max_size=-(-tokens // unit)).map(tuple),
                st.booleans(),
                st.text(max_size=3),
            )
        )
    )


@st.composite
def any_request(draw: st.DrawFn) -> Request:
    prompt = draw(prompts(st.integers(0, 30)))
    out = draw(st.integers(0, 9))
    sequence = draw(st.none() | prompts(st.just(prompt.length_tokens + out)))
    finite = st.floats(-1e9, 1e9)
    return Request(
        draw(st.text(max_size=4)),
        prompt,
        out,
        draw(st.none() | finite),
        draw(st.none() | st.text(max_size=3)),
        draw(st.none() | st.integers(0, 99)),
        sequence,
    )


@given(st.lists(any_request(), min_size=1, max_size=6))
def test_any_requests_survive_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, requests: list[Request]
) -> None:
    path = tmp_path_factory.mktemp("own") / "trace.jsonl"
    info = open_trace(DATA / "vllm_request_log_qwen3-30b-a3b.jsonl").info
    path.write_text("\n".join(lines_of(info, requests)) + "\n")
    assert list(open_trace(path).requests()) == requests


ROWS = {
    "mooncake": [
        {"timestamp": i * 100, "input_length": 700 + i, "output_length": 3, "hash_ids": [1, i]}
        for i in range(8)
    ],
    "weka": [
        {"id": "a", "block_size": 4, "requests": [{"t": 0.5, "in": 9, "out": 1, "hash_ids": [1, 2]},
         {"t": 1, "type": "subagent", "requests": [{"t": 0, "in": 4, "out": 1, "hash_ids": [1]}]}]}
    ],
    "llmservingsim": [
        {"input_toks": 2, "output_toks": 1, "arrival_time_ns": 5, "input_tok_ids": [1, 2],
         "sub_requests": [{"input_toks": 2, "output_toks": 1, "tool_duration_ns": 3}]}
    ],
    "lmcache": [{"timestamp": 1760428258635837, "input": "a", "output": "b", "session_id": "s"}],
    "chat": [{"messages": [{"role": "user", "content": "x"},
                           {"role": "assistant", "content": [{"text": "y"}]}], "max_tokens": 4}],
    "sharegpt": [{"conversations": [{"from": "human", "value": "x"},
                                    {"from": "gpt", "value": "y"}]}],
    "bailian": [{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 17,
                 "output_length": 3, "turn": 1, "hash_ids": [1, 2]}],
    "usage": [{"usage": {"input_tokens": 1, "cache_read_input_tokens": 2, "output_tokens": 3}}],
    "plain": [{"input_tokens": 1, "output_tokens": 2, "arrival_s": 3.5, "session": "x", "turn": 1}],
    "hybridplan": [
        {"hybridplan_trace": 1, "facts": {"unit": "4"}, "defaults": {"unit_tokens": 4}},
        {"request_id": "a", "input_tokens": 40, "output_tokens": 4, "ids": [[1, 5], 9],
         "sequence": {"ids": [[1, 11]]}, "arrival_s": 0.5, "session": "s", "turn": 2},
    ],
}  # fmt: skip

WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(10**9, 10**400), st.floats(),
    st.text(max_size=4), st.lists(st.integers(-1, 2) | st.none() | st.text(max_size=2), max_size=3),
    st.dictionaries(st.sampled_from(["t", "in", "requests"]), st.integers(-1, 1), max_size=2),
)  # fmt: skip


def mutated(value: Any, path: list[int], wrong: Any) -> Any:
    """A copy of a JSON value with one place, chosen by the path, replaced."""
    if path and isinstance(value, dict) and value:
        key = list(value)[path[0] % len(value)]
        return {**value, key: mutated(value[key], path[1:], wrong)}
    if path and isinstance(value, list) and value:
        at = path[0] % len(value)
        return [*value[:at], mutated(value[at], path[1:], wrong), *value[at + 1 :]]
    return wrong


@pytest.mark.parametrize("name", ROWS)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), WRONG, st.integers(0, 2))
def test_a_mutated_row_gives_requests_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, name: str, path: list[int], wrong: Any, skip: int
) -> None:
    file = tmp_path_factory.mktemp("mutated") / "trace.jsonl"
    rows = mutated(ROWS[name], path, wrong)
    rows = rows if isinstance(rows, list) else [rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"tokens_per_char": 0.5} if name in ("lmcache", "chat", "sharegpt") else {}
    for fmt in (None, name):
        with contextlib.suppress(HybridplanError):
            trace = open_trace(file, format=fmt, skip_bad=skip, **options)
            for request in trace.requests():
                assert request.prompt.length_tokens >= 0
                assert request.output_tokens >= 0
                assert len(request.prompt.ids) * request.prompt.unit_tokens <= max(
                    0, request.prompt.length_tokens + request.prompt.unit_tokens - 1
                )
                assert request.arrival_s is None or abs(request.arrival_s) <= 1e11


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=4))
def test_damaged_bytes_give_requests_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes
) -> None:
    whole = "".join(json.dumps(row) + "\n" for row in ROWS["mooncake"]).encode()
    folder = tmp_path_factory.mktemp("damaged")
    files = {
        "plain": whole,
        "packed": gzip.compress(whole, mtime=0),
        "array": json.dumps(ROWS["mooncake"], indent=1).encode(),
        "table": b'Timestamp,Request tokens,Response tokens\n5,472,18\n6.5,"10",0\n7,9,9\n',
        "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
        "log": b"INFO 01-02 10:00:00 Received request a: prompt: 'x', params: P(max_tokens=3), "
        b"prompt_token_ids: [1, 2]\nINFO 01-02 10:00:01 Generated response a: output: 'y', "
        b"output_token_ids: [4], finish_reason: stop\n",
    }
    for name, data in files.items():
        place = at % len(data)
        file = folder / name
        file.write_bytes(data[:place] + junk + data[place + len(junk) :])
        with contextlib.suppress(HybridplanError):
            list(open_trace(file, skip_bad=1, block_tokens=512).requests())
