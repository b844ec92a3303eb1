"""``hybridplan trace``: what it prints, writes and returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridplan.cli import run
from hybridplan.sim.traces import open_trace

DATA = Path(__file__).parents[1] / "data" / "traces"


def test_file_alone_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", str(DATA / "mooncake_conversation.jsonl.gz")]) == 0
    out = capsys.readouterr().out
    for words in (
        "mooncake, by its fields",
        "512 tokens each, inferred",
        "in ms, by the format: it implies",
        "144,793,823",
        "3.40 requests/s",
        "37.4% of the input tokens (54,098,411)",
        "37.3%",
        "182,790 distinct units",
    ):
        assert words in out


def test_the_documented_rows_can_be_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
    rows = [line.strip() for line in text.splitlines() if line.startswith('{"')]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(rows))
    requests = list(open_trace(path).requests())
    assert [len(request.prompt.ids) for request in requests] == [14, 15]


@pytest.mark.parametrize("before", [True, False])
def test_json(capsys: pytest.CaptureFixture[str], before: bool) -> None:
    path = str(DATA / "lmcache_agent_derived.jsonl.gz")
    arguments = ["--json", path] if before else [path, "--json"]
    assert run(["trace", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unit_tokens"] == 16
    assert found["statistics"]["sessions"] == 45
    assert found["statistics"]["duration_s"] is None
    assert {notice["code"] for notice in found["info"]["warnings"]} == {"unsorted", "empty-prompt"}


def test_text_trace_prints_its_estimate_and_its_warnings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(DATA / "sample_lmcache_agent_miniswe.jsonl")
    assert run(["trace", path]) == 2
    assert "--tokens-per-char" in capsys.readouterr().err
    assert run(["trace", path, "--tokens-per-char", "0.25"]) == 0
    out = capsys.readouterr().out
    assert "estimated: 0.25 tokens per character" in out
    assert "warning: a request arrives before the one above it" in out
    assert run(["trace", path, "--tokens-per-char", "0.25", "--order", "time"]) == 0


def test_brackets_in_names_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "[bold] trace.csv"
    path.write_text("input_length,output_length\n1,2\n")
    assert run(["trace", str(path)]) == 0
    assert "[bold] trace.csv" in capsys.readouterr().out
    path.write_text('{"hybridplan_trace": 1, "facts": {"sessions": "[/x]", "inputs": "[red]"}}\n'
                    '{"request_id": "a", "input_tokens": 1, "output_tokens": 1}\n')  # fmt: skip
    assert run(["trace", str(path)]) == 0
    assert "[/x]" in capsys.readouterr().out


def test_convert_then_describe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.jsonl.gz"
    source = str(DATA / "weka_cc_traces_excerpt.jsonl.gz")
    assert run(["trace", "convert", source, str(target), "--link-sessions"]) == 0
    assert "43 requests from weka" in capsys.readouterr().out
    assert run(["trace", "convert", source, str(target)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(["trace", str(target)]) == 0
    out = capsys.readouterr().out
    assert "hybridplan (weka)" in out
    assert "Linked outputs" in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["/no/such/file"], "does not exist"),
        ([], "FILE"),
        (["--time-unit", "h", "x"], "--time-unit must be s or ms or us or ns"),
        (["--skip-bad", "-1", "x"], "--skip-bad must be at least 0"),
        (["--format", "nonsense", str(DATA / "README.md")], "is no trace|no row"),
    ],
)
def test_bad_use_is_one_sentence_and_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert any(word in captured.err for word in words.split("|"))


def test_help_lists_both_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "--help"]) == 0
    out = capsys.readouterr().out
    assert "describe" in out
    assert "convert" in out


def test_json_answers_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert run(["schema", "trace"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert run(["trace", str(DATA / "weka_cc_traces_excerpt.jsonl.gz"), "--json"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), schema)
