"""One small file per format and dialect: units, block sizes, scopes, sessions, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridplan.errors import InputError
from hybridplan.sim.request import Prompt
from hybridplan.sim.traces import FORMATS, Trace

Opened = Callable[..., Trace]


def mooncake(length: int, first: int = 0, unit: int = 512, **more: Any) -> dict[str, Any]:
    ids = list(range(first, first + -(-length // unit)))
    return {"timestamp": 0, "input_length": length, "output_length": 3, "hash_ids": ids, **more}


def lengths(trace: Trace) -> list[tuple[Any, ...]]:
    return [(r.arrival_s, r.prompt.length_tokens, r.output_tokens) for r in trace.requests()]


def notices(trace: Trace) -> dict[str, int]:
    return {notice.code: notice.count for notice in trace.info.warnings}


@pytest.mark.parametrize("unit", [16, 64, 512])
def test_mooncake_block_size_follows_from_the_lengths(opened: Opened, unit: int) -> None:
    trace = opened([mooncake(length, unit=unit) for length in range(1, 4000, 7)])
    assert (trace.info.unit_tokens, trace.info.unit.how) == (unit, "inferred")
    assert "no other" in trace.info.unit.why
    assert all(r.prompt.unit_tokens == unit and r.prompt.chained for r in trace.requests())


def test_ids_that_follow_different_ones_name_their_unit_only(opened: Opened) -> None:
    rows = [mooncake(n) for n in range(500, 2000, 3)]
    trace = opened(rows)
    assert (trace.info.ids.value, next(iter(trace.requests())).prompt.chained) == ("prefix", True)
    rows[40]["hash_ids"] = list(reversed(rows[40]["hash_ids"]))
    trace = opened(rows)
    assert (trace.info.ids.value, trace.info.ids.how) == ("unit", "inferred")
    assert "line 41" in trace.info.ids.why
    assert not any(request.prompt.chained for request in trace.requests())


def test_given_block_size_settles_the_tail(opened: Opened) -> None:
    rows = [{"input_length": 1000, "hash_ids": list(range(15)), "output_length": 1}]
    assert opened(rows, block_tokens=64).info.tail.value == "floor"
    assert opened(rows, block_tokens=70).info.tail.value == "ceil"


def test_mooncake_block_size_left_open_is_asked_for(opened: Opened) -> None:
    rows = [mooncake(300), mooncake(100, first=1)]
    with pytest.raises(InputError, match=r"300 or more tokens per id.*--block-tokens.*512"):
        opened(rows)
    trace = opened(rows, block_tokens=512)
    assert (trace.info.unit_tokens, trace.info.unit.how) == (512, "given")


def test_mooncake_only_power_of_two_is_named_as_such(opened: Opened) -> None:
    trace = opened([mooncake(2000), mooncake(1025, first=9)])
    assert trace.info.unit_tokens == 512
    assert trace.info.unit.why.endswith("only power of two among them")
    assert "500 to 512" in trace.info.unit.why


def test_block_size_that_contradicts_the_lengths_is_refused(opened: Opened) -> None:
    rows = [mooncake(length) for length in (6758, 7322, 7236, 2290)]
    with pytest.raises(InputError, match=r"--block-tokens 16 disagrees.*allow 489 to 516"):
        opened(rows, block_tokens=16)


def test_row_whose_ids_do_not_fit_is_bad(opened: Opened) -> None:
    rows = [mooncake(length) for length in range(1, 3000)]
    rows[2500]["hash_ids"] = [1]
    trace = opened(rows)
    with pytest.raises(InputError, match=r"line 2501: it has 1 hash_ids for 2501 tokens"):
        list(trace.requests())
    assert len(list(opened(rows, skip_bad=1).requests())) == 2998


def test_floor_tail(opened: Opened) -> None:
    rows = [
        {"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": list(range(n // 64))}
        for n in range(64, 1500, 37)
    ]
    trace = opened(rows)
    assert (trace.info.unit_tokens, trace.info.tail.value) == (64, "floor")
    last = list(trace.requests())[-1].prompt
    assert (last.length_tokens, last.known_tokens) == (1470, 1470 // 64 * 64)


def timed(*stamps: float) -> list[dict[str, Any]]:
    return [mooncake(1025, timestamp=stamp) for stamp in stamps]


def test_mooncake_stamps_are_ms_unless_said(opened: Opened) -> None:
    rows = timed(0, 3000, 6500)
    assert [r.arrival_s for r in opened(rows).requests()] == [0.0, 3.0, 6.5]
    assert [r.arrival_s for r in opened(rows, time_unit="s").requests()] == [0.0, 3000.0, 6500.0]
    assert opened(rows, time_unit="s").info.time_unit.how == "given"


def test_mooncake_seconds_read_as_ms_are_refused_where_absurd(opened: Opened) -> None:
    with pytest.raises(InputError, match=r"in ms would mean 3,333 requests/s, in s 3.33"):
        opened(timed(*[i * 0.3 for i in range(100)]))


def test_mooncake_epoch_in_another_unit_is_asked_for(opened: Opened) -> None:
    with pytest.raises(InputError, match=r"a date in s, but the format counts in ms"):
        opened(timed(1_700_000_000, 1_700_000_002))
    trace = opened(timed(1_700_000_000, 1_700_000_002), time_unit="s")
    assert [r.arrival_s for r in trace.requests()] == [0.0, 2.0]


def test_aiperf_sessions_with_delays(opened: Opened) -> None:
    rows = [
        mooncake(1025, timestamp=1000, session_id="a"),
        mooncake(2000, session_id="a", delay=500),
        mooncake(1025, first=50, timestamp=1200, session_id="b"),
    ]
    del rows[1]["timestamp"]
    trace = opened(rows)
    found = [(r.session, r.turn, r.arrival_s) for r in trace.requests()]
    assert found == [("a", 1, 1.0), ("a", 2, 1.5), ("b", 1, 1.2)]
    assert notices(trace)["delay"] == 1


def test_scopes(opened: Opened) -> None:
    rows = [mooncake(1025, session_id="a"), mooncake(1025, session_id="b")]
    default = [r.prompt.scope for r in opened(rows).requests()]
    other = [r.prompt.scope for r in opened([*rows, rows[0]], name="other").requests()]
    assert default[0] == default[1] != other[0]
    assert {r.prompt.scope for r in opened(rows, id_scope="global").requests()} == {""}
    by_session = [r.prompt.scope for r in opened(rows, id_scope="session").requests()]
    assert by_session[0].endswith("/a")
    assert by_session[1].endswith("/b")


def test_missing_output_is_asked_for(opened: Opened) -> None:
    rows = [mooncake(1025)]
    del rows[0]["output_length"]
    with pytest.raises(InputError, match=r"--output-tokens"):
        list(opened(rows).requests())
    trace = opened(rows, output_tokens=40)
    assert lengths(trace) == [(0.0, 1025, 40)]
    assert notices(trace) == {"output-given": 1}


def bailian(chat: int, parent: int | None, stamp: float, length: int, turn: int) -> dict[str, Any]:
    return {
        "chat_id": chat, "parent_chat_id": parent, "timestamp": stamp, "input_length": length,
        "output_length": 20, "type": "text", "turn": turn,
        "hash_ids": list(range(-(-length // 16))),
    }  # fmt: skip


def test_bailian_is_seconds_sixteen_and_parents(opened: Opened) -> None:
    trace = opened([
        bailian(7, -1, 0.5, 100, 1),
        bailian(8, 7, 9.25, 300, 2),
        bailian(9, 8, 12.0, 500, 3),
        bailian(10, 4, 13.0, 40, 2),
        bailian(11, None, 14.0, 17, 1),
    ])  # fmt: skip
    found = [(r.request_id, r.session, r.turn, r.arrival_s) for r in trace.requests()]
    assert found == [
        ("7", "7", 1, 0.5), ("8", "7", 2, 9.25), ("9", "7", 3, 12.0), ("10", "4", 2, 13.0),
        ("11", "11", 1, 14.0),
    ]  # fmt: skip
    info = trace.info
    assert (info.format, info.unit_tokens, info.unit.how) == ("bailian", 16, "format")
    assert not any(request.prompt.chained for request in trace.requests())
    assert notices(trace) == {"parent-outside": 1}


def test_bailian_with_other_blocks_is_refused(opened: Opened) -> None:
    rows = [{**bailian(1, -1, 0, 100, 1), "hash_ids": [1, 2]}]
    with pytest.raises(InputError, match=r"blocks hold 16 tokens, but .* allow 50 to 99"):
        opened(rows)


def test_azure_2023_keeps_seven_digits(opened: Opened) -> None:
    trace = opened(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109"
    )
    assert lengths(trace) == [(0.0, 374, 44), (4.314579, 396, 109)]
    assert trace.info.dialect == "azure 2023"


@pytest.mark.parametrize(
    "stamps, dialect",
    [
        (("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.509930+00:00"), "azure 2024"),
        (("2024-05-10T02:00:00+02:00", "2024-05-10T00:00:01.5Z"), "azure 2024"),
        (("2024-05-10 00:00:00", "2024-05-10 00:00:01.500000000"), "azure 2023"),
    ],
)
def test_azure_2024_stamps(opened: Opened, stamps: tuple[str, str], dialect: str) -> None:
    rows = "".join(f"{stamp},10,2\n" for stamp in stamps)
    trace = opened("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    assert lengths(trace) == [(0.0, 10, 2), (1.5, 10, 2)]
    assert trace.info.dialect == dialect


def test_azure_multimodal(opened: Opened) -> None:
    trace = opened(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-10 00:00:00.5,2,2090,7\n"
    )
    assert trace.info.dialect == "azure multimodal"
    assert "image tokens" in trace.info.inputs.why
    assert lengths(trace) == [(0.0, 2090, 7)]


def test_burstgpt_v1_and_v3(opened: Opened) -> None:
    v1 = opened(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n5,GPT-4,10,0,10,API log\n"
    )
    assert lengths(v1) == [(5.0, 472, 18), (5.0, 10, 0)]
    assert (v1.info.dialect, notices(v1)) == ("burstgpt v1/v2", {"empty-output": 1})
    v3 = opened(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n19440110.0,1722ac82-0a46,43,ChatGPT,472,18,490,Conversation log\n"
        "19440161.5,,1,GPT-4,9,1,10,API log\n"
    )
    found = [(r.session, r.arrival_s) for r in v3.requests()]
    assert found == [("1722ac82-0a46", 19440110.0), (None, 19440161.5)]
    assert v3.info.dialect == "burstgpt v3"
    dropped = opened(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,x\n5,GPT-4,10,0,10,x\n",
        drop_empty=True,
    )
    assert len(lengths(dropped)) == 1
    assert dropped.counts.empty_dropped == 1


def test_vidur_with_arrivals_and_floats(opened: Opened) -> None:
    trace = opened("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,12.0,3.0\n1.25,7,2\n")
    assert lengths(trace) == [(0.0, 12, 3), (1.25, 7, 2)]


def test_llmservingsim_flat_and_agentic_rows(opened: Opened) -> None:
    trace = opened([
        {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0, "input_tok_ids": [5, 6, 7],
         "output_tok_ids": [8, 9]},
        {"session_id": "s0", "arrival_time_ns": 1_500_000_000, "sub_requests": [
            {"input_toks": 2, "output_toks": 1, "tool_duration_ns": 250_000_000},
            {"input_toks": 4, "output_toks": 1, "tool_duration_ns": 0}]},
    ])  # fmt: skip
    first, second, third = trace.requests()
    assert first.prompt.ids == (5, 6, 7)
    assert first.sequence == Prompt(5, 1, (5, 6, 7, 8, 9), False, first.prompt.scope)
    assert (second.session, second.turn, second.arrival_s) == ("s0", 1, 1.5)
    assert (third.session, third.turn, third.arrival_s) == ("s0", 2, 1.75)
    assert notices(trace) == {"delay": 1}


def test_llmservingsim_ids_must_match_the_length(opened: Opened) -> None:
    row = {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0, "input_tok_ids": [5, 6]}
    with pytest.raises(InputError, match=r"line 1: it has 2 input_tok_ids for 3"):
        list(opened([row]).requests())


def weka(name: str) -> dict[str, Any]:
    def call(t: float, size: int, first: int = 0) -> dict[str, Any]:
        ids = list(range(first, first + size // 64))
        return {"t": t, "type": "n", "model": "m", "in": size, "out": 9, "hash_ids": ids}

    nested = {"t": 1.0, "type": "subagent", "agent_id": "deep", "requests": [call(0.5, 70, 900)]}
    agent = {
        "t": 10.0, "type": "subagent", "agent_id": "agent_001",
        "requests": [call(0.0, 640, 100), call(4.0, 700, 100), nested],
    }  # fmt: skip
    requests = [call(0.0, 1000), agent, call(12.0, 1300), call(20.0, 130)]
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": requests}


def test_weka_sub_agents_count_from_their_spawn(opened: Opened) -> None:
    found = [(r.session, r.turn, r.arrival_s) for r in opened([weka("x")]).requests()]
    assert found == [
        ("x", 1, 0.0), ("x/agent_001", 1, 10.0), ("x/agent_001/deep", 1, 11.5), ("x", 2, 12.0),
        ("x/agent_001", 2, 14.0), ("x", 3, 20.0),
    ]  # fmt: skip


def test_weka_sessions_share_no_namespace_and_agents_share_their_session_s(opened: Opened) -> None:
    trace = opened([weka("x"), weka("y")])
    scopes = {(str(r.session).split("/")[0], r.prompt.scope) for r in trace.requests()}
    assert len(scopes) == 2
    assert {scope.rsplit("/", 1)[1] for _, scope in scopes} == {"x", "y"}
    assert trace.info.clock_scope.value == "session"
    without = opened([weka("x")], subagents=False)
    assert len(list(without.requests())) == 3
    assert notices(without) == {"subagent": 1}


def test_weka_pretty_printed_object(opened: Opened) -> None:
    import json

    trace = opened(json.dumps(weka("x"), indent=2), name="session.json")
    assert len(list(trace.requests())) == 6


def test_weka_without_block_size_asks(opened: Opened) -> None:
    session = weka("x")
    del session["block_size"]
    with pytest.raises(InputError, match=r"say --block-tokens"):
        opened([session])
    assert opened([session], block_tokens=64).info.unit.how == "given"


def test_usage_exports_add_what_anthropic_leaves_out(opened: Opened) -> None:
    anthropic = opened([
        {"id": "m1", "usage": {"input_tokens": 10, "cache_read_input_tokens": 1000,
                               "cache_creation_input_tokens": 90, "output_tokens": 5}},
    ])  # fmt: skip
    assert lengths(anthropic) == [(None, 1100, 5)]
    openai = opened([
        {"id": "r", "usage": {"prompt_tokens": 1100, "completion_tokens": 5,
                              "prompt_tokens_details": {"cached_tokens": 1000}}},
    ])  # fmt: skip
    assert lengths(openai) == [(None, 1100, 5)]
    assert (anthropic.info.dialect, openai.info.dialect) == ("anthropic", "openai")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("input_length,output_length\n5,6\n", [(None, 5, 6)]),
        ("Prompt Tokens,Completion Tokens\n5,6\n", None),
        ("prompt_tokens,completion_tokens,timestamp_ms\n5,6,1500\n", [(1.5, 5, 6)]),
        ("arrival_s;input_tokens;output_tokens\n2.5;5;6\n", [(2.5, 5, 6)]),
        ('{"isl": 5, "osl": 6}\n', [(None, 5, 6)]),
        ("timestamp,input_tokens,output_tokens\n1700000000000,5,6\n", [(0.0, 5, 6)]),
        ("time,input_tokens,output_tokens\n2024-01-01 00:00:00,5,6\n", [(0.0, 5, 6)]),
    ],
)
def test_plain_tables(opened: Opened, text: str, expected: list[Any] | None) -> None:
    if expected is None:
        with pytest.raises(InputError, match=r"no known trace"):
            opened(text)
    else:
        assert lengths(opened(text)) == expected


def test_plain_relative_stamps_need_a_unit(opened: Opened) -> None:
    text = "time,input_tokens,output_tokens\n0,5,6\n1000,5,6\n"
    with pytest.raises(InputError, match=r"unit of time .*--time-unit"):
        opened(text)
    assert lengths(opened(text, time_unit="ms"))[1][0] == 1.0


def test_ambiguous_file_names_the_candidates(opened: Opened) -> None:
    rows = [{"timestamp": 0, "input_length": 5, "output_length": 6}]
    with pytest.raises(InputError, match=r"--format mooncake or --format plain"):
        opened(rows)
    assert opened(rows, format="mooncake").info.chosen == "given"
    assert lengths(opened(rows, format="plain", time_unit="s")) == [(0.0, 5, 6)]


def test_servegen_parameters_are_no_requests(opened: Opened) -> None:
    with pytest.raises(InputError, match=r"ServeGen parameter file .*rate windows"):
        opened("0,22.46,173.81,Weibull,0.0575,0.000573\n", name="chunk-0-trace.csv")
    distribution = {"0": {"input_tokens": "{256: 1.0}", "output_tokens": "{100: 1.0}"}}
    with pytest.raises(InputError, match=r"ServeGen parameter file .*distributions"):
        opened([distribution], name="chunk-0-dataset.json")


def test_hash_traces_without_arrivals_or_outputs(opened: Opened) -> None:
    rows = [
        {"request_id": i, "type": "text", "input_length": n, "hash_ids": list(range(-(-n // 16)))}
        for i, n in enumerate(range(250, 900, 3), 7)
    ]
    with pytest.raises(InputError, match=r"--output-tokens"):
        list(opened(rows).requests())
    trace = opened(rows, output_tokens=8, id_scope="global")
    first = next(iter(trace.requests()))
    assert (first.request_id, first.arrival_s, first.prompt.scope) == ("7", None, "")
    assert (trace.info.unit_tokens, trace.info.has_clock) == (16, False)


UNREAD = {
    "OpenTelemetry": [{"resourceSpans": []}],
    "TraceLab": [{"session_id": 1, "newly_append_tokens": 2, "prefix_tokens": 3}],
    "SGLang agentic": [{"metadata": {}, "conversations": [[{"messages": [], "prompt_tokens": 1}]]}],
    "aibrix": [{"timestamp": 0, "requests": [{"Prompt Length": 1, "Output Length": 2}]}],
    "SageMaker": [{"captureData": {}}],
}


@pytest.mark.parametrize("name", UNREAD)
def test_known_formats_without_reader_are_refused_by_name(opened: Opened, name: str) -> None:
    with pytest.raises(InputError, match=name):
        opened(UNREAD[name])


def test_forced_format_that_cannot_be(opened: Opened) -> None:
    with pytest.raises(InputError, match=r"is csv, but --format weka is read from json"):
        opened("input_length,output_length\n1,2\n", format="weka")
    with pytest.raises(InputError, match=r"--format nonsense is unknown; there are hybridplan"):
        opened("input_length,output_length\n1,2\n", format="nonsense")


def test_every_format_has_a_name_of_its_own() -> None:
    assert len({fmt.name for fmt in FORMATS}) == len(FORMATS)
