"""Formats that hold text, and engines' request logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridplan.errors import InputError
from hybridplan.sim.request import Prompt
from hybridplan.sim.traces import Trace, request_statistics

Opened = Callable[..., Trace]


def words(text: str) -> list[int]:
    """A tokenizer: one id per word, the same word the same id."""
    return [int.from_bytes(word.encode()[:6], "big") for word in text.split()]


def notices(trace: Trace) -> dict[str, int]:
    return {notice.code: notice.count for notice in trace.info.warnings}


AGENT = [
    {"timestamp": 1760428258635837, "input": "a b c", "output": " d e", "session_id": "s"},
    {"timestamp": 1760428259135837, "input": "a b c d e f", "output": " g", "session_id": "s"},
]


def test_text_needs_a_tokenizer_or_an_estimate(opened: Opened) -> None:
    with pytest.raises(InputError, match=r"--tokenizer FOLDER .* or --tokens-per-char"):
        opened(AGENT)
    with pytest.raises(InputError, match=r"either --tokenizer or --tokens-per-char, not both"):
        opened(AGENT, tokenizer=words, tokens_per_char=0.25)
    with pytest.raises(InputError, match=r"--tokens-per-char must lie"):
        opened(AGENT, tokens_per_char=0)
    with pytest.raises(InputError, match=r"--tokenizer /nowhere/at/all is no folder"):
        opened(AGENT, tokenizer="/nowhere/at/all")


def test_lmcache_tokens_and_sequences(opened: Opened) -> None:
    trace = opened(AGENT, tokenizer=words)
    first, second = trace.requests()
    assert trace.info.unit_tokens == 1
    assert (first.prompt.length_tokens, first.output_tokens, first.arrival_s) == (3, 2, 0.0)
    assert (second.arrival_s, second.turn) == (0.5, 2)
    assert first.sequence is not None
    assert second.prompt.ids[:5] == first.sequence.ids
    assert request_statistics([first, second]).reuse is not None


def test_lmcache_deltas_are_put_together(opened: Opened) -> None:
    rows = [{**AGENT[0]}, {**AGENT[1], "input": " f"}]
    plain = opened(rows, tokenizer=words)
    assert [r.prompt.length_tokens for r in plain.requests()] == [3, 1]
    assert notices(plain)["shorter-turn"] == 1
    whole = opened(rows, tokenizer=words, inputs="delta")
    assert [r.prompt.length_tokens for r in whole.requests()] == [3, 6]
    assert whole.info.inputs.how == "given"


@pytest.mark.parametrize("rate", [0.25, 0.3, 1.0, 2.0])
def test_estimated_prompts_share_exactly_their_common_text(opened: Opened, rate: float) -> None:
    base = "".join(chr(97 + i % 26) for i in range(1000))
    rows = [
        {"timestamp": 10**15 * 2, "input": base, "output": "x" * 200, "session_id": "s"},
        {"timestamp": 10**15 * 2, "input": base[:777] + "!" * 99, "output": "", "session_id": "s"},
    ]
    first, second = opened(rows, tokens_per_char=rate).requests()
    assert first.prompt.length_tokens == -(-1000 * rate // 1)
    shared = 0
    for left, right in zip(first.prompt.ids, second.prompt.ids, strict=False):
        if left != right:
            break
        shared += 16
    assert 777 * rate - 17 <= shared <= 777 * rate
    assert first.sequence is not None
    assert first.sequence.length_tokens == first.prompt.length_tokens + first.output_tokens
    whole = first.prompt.length_tokens // 16
    assert first.sequence.ids[:whole] == first.prompt.ids[:whole]


MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image_url"}]},
    {"role": "assistant", "content": "well hello there"},
    {"role": "user", "content": "bye"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "wave"}]},
]


def test_chat_takes_the_last_answer_or_all(opened: Opened) -> None:
    rows = [{"id": "c", "messages": MESSAGES}]
    trace = opened(rows, tokenizer=words)
    (only,) = trace.requests()
    assert only.output_tokens == 2
    assert notices(trace) == {"no-text-part": 1}
    every = list(opened(rows, tokenizer=words, turns="all").requests())
    assert [(r.session, r.turn, r.output_tokens) for r in every] == [("c", 1, 3), ("c", 2, 2)]
    assert every[1].prompt.ids[: len(every[0].prompt.ids)] == every[0].prompt.ids


def test_chat_without_answer_takes_the_cap_or_asks(opened: Opened) -> None:
    row = {"messages": MESSAGES[:2]}
    with pytest.raises(InputError, match=r"--output-tokens"):
        list(opened([row], tokenizer=words).requests())
    batch = {"custom_id": "q1", "body": {**row, "max_tokens": 77}}
    trace = opened([batch], tokenizer=words)
    assert [(r.request_id, r.output_tokens) for r in trace.requests()] == [("q1", 77)]
    assert notices(trace)["output-cap"] == 1


def test_vllm_custom_prompts(opened: Opened) -> None:
    rows = [{"prompt": "one two", "output_tokens": 9}, {"prompt": "three"}]
    found = [(r.prompt.length_tokens, r.output_tokens) for r in
             opened(rows, tokenizer=words, output_tokens=4).requests()]  # fmt: skip
    assert found == [(2, 9), (1, 4)]


def test_aiperf_text_rows(opened: Opened) -> None:
    rows = [
        {"timestamp": 500, "text_input": "a b", "output_length": 5, "session_id": "s"},
        {"delay": 250, "text_input": "a b c", "output_length": 6, "session_id": "s"},
    ]
    trace = opened(rows, tokenizer=words)
    found = [
        (r.arrival_s, r.prompt.length_tokens, r.output_tokens, r.turn) for r in trace.requests()
    ]
    assert found == [(0.5, 2, 5, 1), (0.75, 3, 6, 2)]
    assert trace.info.format == "aiperf"


SHARE = [
    {"id": "x", "conversations": [
        {"from": "human", "value": "one two"}, {"from": "gpt", "value": "three"},
        {"from": "human", "value": "four"}, {"from": "gpt", "value": "five six"}]},
    {"id": "y", "conversations": [{"from": "gpt", "value": "hi"}]},
    {"id": "z", "conversations": []},
]  # fmt: skip


@pytest.mark.parametrize("turns, ids", [("all", ["x#1", "x#2"]), ("first", ["x"])])
def test_sharegpt(opened: Opened, turns: str, ids: list[str]) -> None:
    trace = opened(json.dumps(SHARE), tokenizer=words, turns=turns)
    assert [r.request_id for r in trace.requests()] == ids
    assert notices(trace)["no-answer"] == 2
    assert trace.info.format == "sharegpt"


def test_sharegpt_unknown_speaker(opened: Opened) -> None:
    rows = [{"conversations": [{"from": "martian", "value": "x"}]}]
    with pytest.raises(InputError, match=r"unknown speaker"):
        list(opened(rows, tokenizer=words).requests())


def old_line(clock: str, name: str, ids: list[int], cap: int = 64) -> str:
    return (
        f"INFO {clock} logger.py:43] Received request {name}: prompt: 'it\\'s {name}', params: "
        f"SamplingParams(n=1, temperature=0.0, max_tokens={cap}), prompt_token_ids: {ids}, "
        "lora_request: None, prompt_adapter_request: None.\n"
    )


def test_vllm_log_with_ids_and_responses(opened: Opened) -> None:
    log = (
        "INFO 12-31 23:59:58 api_server.py:1] starting\n"
        + old_line("12-31 23:59:58", "cmpl-1", [1, 2, 3])
        + old_line("01-01 00:00:01", "cmpl-2", [1, 2])
        + "INFO 01-01 00:00:02 logger.py:80] Generated response cmpl-2 (streaming delta): "
        "output: 'x', output_token_ids: [9], finish_reason: None\n"
        + "INFO 01-01 00:00:02 logger.py:80] Generated response cmpl-2 (streaming complete): "
        "output: 'x y', output_token_ids: [9, 8], finish_reason: stop\n"
        + "INFO 01-01 00:00:03 logger.py:80] Generated response cmpl-1: "
        'output: "it\'s", output_token_ids: [7], finish_reason: stop\n'
        + old_line("01-01 00:00:09", "cmpl-3", [5], cap=12)
    )
    trace = opened(log, name="server.log")
    found = list(trace.requests())
    assert [(r.request_id, r.arrival_s, r.output_tokens) for r in found] == [
        ("cmpl-1", 0.0, 1), ("cmpl-2", 3.0, 2), ("cmpl-3", 11.0, 12),
    ]  # fmt: skip
    assert found[0].prompt.ids == (1, 2, 3)
    assert found[1].sequence == Prompt(4, 1, (1, 2, 9, 8), False, found[1].prompt.scope)
    assert trace.info.format == "vllm-log"


def test_vllm_log_of_streamed_answers_adds_up_their_deltas(opened: Opened) -> None:
    def answer(kind: str, ids: object) -> str:
        return (
            f"(APIServer pid=7) INFO 11-07 04:35:27 [logger.py:71] Generated response x ({kind}): "
            f"output: 'it\\'s', output_token_ids: {ids}, finish_reason: None\n"
        )

    log = old_line("11-07 04:35:26", "x", [5, 6]) + answer("streaming delta", [151657])
    log += answer("streaming delta", [198, 199]) + answer("streaming complete", None)
    (request,) = opened(log).requests()
    assert request.output_tokens == 3
    assert request.sequence is not None
    assert request.sequence.ids == (5, 6, 151657, 198, 199)


def test_vllm_log_of_newer_versions(opened: Opened) -> None:
    received = "INFO 11-25 10:00:00 [r.py:1] Received request chatcmpl-1: params: SamplingParams("
    received += "max_tokens=5), lora_request: None.\n"
    with pytest.raises(InputError, match=r"VLLM_LOGGING_LEVEL=DEBUG"):
        list(opened(received).requests())
    details = (
        "DEBUG 11-25 10:00:00 [r.py:1] Request chatcmpl-1 details: prompt: \"a, params: 'b'\", "
        "prompt_token_ids: [4, 5, 6], prompt_embeds shape: None.\n"
    )
    (request,) = opened(details + received).requests()
    assert (request.prompt.ids, request.output_tokens) == ((4, 5, 6), 5)
    no_ids = details.replace("[4, 5, 6]", "None")
    (request,) = opened(no_ids + received, tokenizer=words).requests()
    assert request.prompt.length_tokens == 3


def test_text_about_logs_is_no_log(opened: Opened) -> None:
    row = {**AGENT[0], "input": "why does it say 'Received request cmpl-1: prompt: x'?"}
    assert opened([row], tokenizer=words).info.format == "lmcache"


def test_forcing_a_log_whose_requests_come_late(opened: Opened) -> None:
    preamble = "starting, please wait\n" * 60_000
    log = preamble + old_line("12-31 23:59:58", "cmpl-1", [1, 2, 3])
    with pytest.raises(InputError, match=r"no known trace"):
        opened(log)
    assert len(list(opened(log, format="vllm-log").requests())) == 1


def test_a_request_id_used_twice_is_pointed_out(opened: Opened) -> None:
    log = old_line("12-31 23:59:58", "x", [1]) + old_line("12-31 23:59:59", "x", [1, 2])
    with pytest.raises(InputError, match=r"line 2: request x is received again"):
        list(opened(log).requests())


def event(kind: str, rid: str, clock: str, **more: Any) -> str:
    return json.dumps({
        "timestamp": f"2026-01-01T{clock}", "event": f"request.{kind}", "rid": rid, **more,
    }) + "\n"  # fmt: skip


def finished(rid: str, clock: str, prompt: int, out: int, **obj: Any) -> str:
    meta = {"prompt_tokens": prompt, "completion_tokens": out, "e2e_latency": 1.5}
    return event("finished", rid, clock, obj=obj, out={"meta_info": meta})


def test_sglang_events_come_in_order_of_receipt(opened: Opened) -> None:
    log = (
        "[2026-01-01 00:00:00] server is ready\n"
        + event("received", "a", "00:00:01", obj={})
        + event("received", "b", "00:00:02.250000", obj={})
        + finished("b", "00:00:03", 20, 2, input_ids=list(range(20)))
        + finished("a", "00:00:09", 10, 1)
        + finished("c", "00:00:11.5", 30, 3)
        + event("received", "never", "00:00:12", obj={})
    )
    trace = opened(log)
    found = list(trace.requests())
    assert [
        (r.request_id, r.arrival_s, r.prompt.length_tokens, r.output_tokens) for r in found
    ] == [
        ("a", 0.0, 10, 1), ("b", 1.25, 20, 2), ("c", 9.0, 30, 3),
    ]  # fmt: skip
    assert found[1].prompt.ids == tuple(range(20))
    assert notices(trace) == {"unfinished": 1}


def test_sglang_text_lines(opened: Opened) -> None:
    log = (
        "[2026-01-01 00:00:05] Finish: obj=GenerateReqInput(rid='r1', stream=False), "
        "out={'meta_info': {'id': 'r1', 'prompt_tokens': 17, 'completion_tokens': 128, "
        "'cached_tokens': 1, 'e2e_latency': 0.5}}\n"
    )
    (request,) = opened(log).requests()
    assert (request.prompt.length_tokens, request.output_tokens) == (17, 128)


@pytest.mark.slow
def test_a_local_tokenizer_folder_with_its_chat_template(tmp_path: Path, opened: Opened) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    vocabulary = {word: i for i, word in enumerate(["?", "user", "bot", "hi", "there", "bye"])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=model, unk_token="?")
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}bot{% endif %}"
    )
    fast.save_pretrained(tmp_path / "tokenizer")
    chat = [
        {"role": "user", "content": "hi there"},
        {"role": "assistant", "content": "bye bye"},
    ]
    trace = opened([{"messages": chat}], tokenizer=str(tmp_path / "tokenizer"))
    (request,) = trace.requests()
    assert request.prompt.ids == (1, 3, 4, 2)
    assert request.output_tokens == 2
    assert request.prompt.scope == "tokens:tokenizer"
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"cannot be loaded locally"):
        opened([{"messages": chat}], tokenizer=tmp_path / "empty")
