"""``hybridplan simulate``: what it prints, writes and returns."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hybridplan.cli import run
from hybridplan.sim.replay import Progress
from hybridplan.sim.timeline import Timeline

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "traces"
AGENTS = str(DATA / "lmcache_agent_derived.jsonl.gz")
SESSIONS = str(DATA / "weka_cc_traces_excerpt.jsonl.gz")
MOONCAKE = str(DATA / "mooncake_conversation.jsonl.gz")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["simulate", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def screen(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["simulate", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_the_first_screen_answers(capsys: pytest.CaptureFixture[str]) -> None:
    out = screen(capsys, "--trace", AGENTS, "--limit", "300")
    for words in (
        "qwen3.5-0.8b  vllm 0.33, tp 1; lmcache_agent_derived.jsonl.gz",
        "unlimited (no --gpu, --kv-memory or --num-blocks given); 6.75 MiB a block of 576 tokens",
        "Usable hit",
        "KV-only hit",
        "an infinite cache, at the trace's 16 tokens",
        "Where the rest went",
        "ceiling less usable hit",
        "What would help",
        "--prefix-match-unit 16",
        "useless",
        "nothing is ever evicted",
    ):
        assert words in out, words
    assert screen(capsys, "--trace", AGENTS, "--limit", "300") == out


def test_json_holds_the_screen_and_answers_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found = answer(capsys, "--trace", SESSIONS, "--kv-memory", "20GiB", "--tp", "2")
    assert found["setup"]["deployment"]["tp"] == 2
    assert found["setup"]["memory"]["available_bytes"] == 20 << 30
    lost = sum(loss["tokens"] for loss in found["losses"])
    assert lost == found["hits"]["ceiling_tokens"] - found["hits"]["usable_tokens"]
    assert run(["schema", "simulate"]) == 0
    jsonschema.validate(found, json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    "model, engine",
    [
        ("qwen3.5-0.8b", "vllm@0.32"),
        ("kimi-linear-48b-a3b-instruct", "vllm"),
        ("qwen3.5-0.8b", "sglang"),
    ],
)
def test_engines_and_models(capsys: pytest.CaptureFixture[str], model: str, engine: str) -> None:
    chosen = ("--model", model, "--engine", engine, "--advice", "off")
    found = answer(capsys, "--trace", SESSIONS, "--arrival", "closed:3", *chosen)
    assert found["requests"] == 43
    assert 0.5 < found["hits"]["usable_rate"] <= found["hits"]["kv_rate"]
    assert found["hits"]["kv_rate"] <= found["hits"]["ceiling_rate"]
    assert found["advice"] is None


def test_every_flag_of_sglangs_cache_reaches_it(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {
        "chunked_prefill_size": 1024,
        "mamba_max_states_per_path": 2,
        "page_size": 16,
        "max_running_requests": 3,
    }
    words = [word for k, v in asked.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    words += ["--mamba-track-interval", "512", "--hicache-ratio", "1.5", "--kv-memory", "4GiB"]
    settings = answer(capsys, "--trace", SESSIONS, "--engine", "sglang", "--advice", "off", *words)[
        "setup"
    ]["settings"]
    assert {name: settings[name] for name in asked} == asked
    assert settings["state_every_tokens_in_decode"] == 512


@pytest.mark.slow
def test_pure_attention_reaches_the_ceiling(capsys: pytest.CaptureFixture[str]) -> None:
    """Unlimited pool, block 512: 0.374 of the input tokens, 0.373 with the last token computed."""
    chosen = ("--model", "llama-3.1-8b", "--block-size", "512", "--advice", "off")
    hits = answer(capsys, "--trace", MOONCAKE, *chosen)["hits"]
    assert round(hits["ceiling_rate"], 3) == 0.374
    assert round(hits["usable_rate"], 3) == 0.373
    assert hits["exact"]


def test_lengths_alone_have_no_hit_rate(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = str(DATA / "azure_llm_2023_conv.csv.gz")
    out = screen(capsys, "--trace", lengths, "--limit", "50", "--arrival", "timed")
    assert "unknown: the trace has no prefix ids" in out
    assert "0.0%" not in out
    assert "every prompt counts as new" in out


def test_all_refused_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    out = screen(capsys, "--trace", SESSIONS, "--max-model-len", "4096")
    assert "none: not one request was replayed, 43 requests refused" in out
    assert "leaves no room in max_model_len=4096" in out


def test_without_causes(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--trace", SESSIONS, "--no-causes")
    with_causes = answer(capsys, "--trace", SESSIONS)
    assert found["hits"]["usable_tokens"] == with_causes["hits"]["usable_tokens"]
    assert found["hits"]["ceiling_tokens"] is None
    assert found["losses"] == []
    assert found["advice"] is None
    assert "not followed" in screen(capsys, "--trace", SESSIONS, "--no-causes")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_outcomes_of_every_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"requests.{suffix}"
    gap = ("--arrival", "timed", "--session-gap", "60", "--advice", "off")
    found = answer(capsys, "--trace", SESSIONS, *gap, "--per-request", str(path))
    if suffix == "csv":
        with path.open() as file:
            rows = [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(file)]
    elif suffix == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    assert len(rows) == found["requests"] == 43
    for name, total in (
        ("hit_tokens", found["hits"]["usable_tokens"]),
        ("prompt_tokens", found["prompt_tokens"]),
        ("ceiling_tokens", found["hits"]["ceiling_tokens"]),
    ):
        assert sum(row[name] for row in rows) == total
    for row in rows:
        lost = sum(value for name, value in row.items() if name.startswith("lost_"))
        assert lost == row["ceiling_tokens"] - row["hit_tokens"]
        assert row["finish_s"] > row["arrival_s"]


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def test_events(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    small = ("--num-blocks", "120", "--max-model-len", "40000", "--max-num-seqs", "16")
    chosen = (*small, "--advice", "off", "--events", str(path))
    found = answer(capsys, "--trace", AGENTS, "--limit", "200", *chosen)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = {event["kind"] for event in events}
    assert {"allocate", "publish", "hit", "evict", "finish"} <= kinds
    hits = {
        (event["request_id"], event["position_tokens"])
        for event in events
        if event["kind"] == "hit"
    }
    assert sum(tokens for _, tokens in hits) == found["hits"]["usable_tokens"]
    assert sum(event["kind"] == "evict" for event in events) == found["evictions"]


def test_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        screen(capsys, "--trace", SESSIONS, "--kv-memory", "20GiB", "--plot", str(path))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    text = paths[0].read_text()
    for words in ("hit rate, % of prompt tokens", "blocks", "lost tokens, millions", "pool"):
        assert words in text


@pytest.mark.parametrize("as_json", [False, True])
def test_interrupted_is_partial_and_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    def stop(self: Timeline, progress: Progress) -> None:
        if progress.finished == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(Timeline, "see", stop)
    json_flag = ["--json"] if as_json else []
    assert run(["simulate", "--trace", SESSIONS, *json_flag]) == 130
    captured = capsys.readouterr()
    assert captured.err == "hybridplan: warning: interrupted during the replay\n"
    if as_json:
        found = json.loads(captured.out)
        assert found["partial"]
        assert found["interrupted"] == "replay"
        assert found["requests"] == 20
    else:
        assert "PARTIAL: stopped after 20 requests" in captured.out


def test_interrupted_advice_keeps_the_replay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridplan.sim.advice._Search._try", stop)
    assert run(["simulate", "--trace", AGENTS, "--limit", "100", "--json"]) == 130
    found = json.loads(capsys.readouterr().out)
    assert not found["partial"]
    assert found["interrupted"] == "advice"
    assert found["advice"]["suggestions"] == []


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        ("", 2, "Missing option '--trace'"),
        ("--trace /no/such", 2, "does not exist"),
        (f"--trace {DATA / 'README.md'}", 2, "is no"),
        ("--trace X --num-blocks 0", 2, "--num-blocks 0 leaves nothing beside the null block"),
        ("--trace X --num-blocks 9 --kv-memory 1GiB", 2, "both size the pool; give one"),
        ("--trace X --num-blocks 90", 1, "max_model_len 262,144 takes"),
        ("--trace X --gpu gtx480", 2, "gtx480"),
        ("--trace X --kv-memory 42", 2, "has no unit"),
        ("--trace X --memory-utilization 0.9", 2, "name the card with --gpu"),
        ("--trace X --arrival poisson", 2, "use sequential, closed:N, timed"),
        ("--trace X --arrival closed:0", 2, "at least 1"),
        ("--trace X --arrival timed", 2, "--session-gap SECONDS"),
        ("--trace X --arrival timed --session-gap -1", 2, "must be 0 s or more"),
        ("--trace X --session-gap 1", 2, "drop it"),
        ("--trace X --model nosuch", 2, "'nosuch' is no file"),
        ("--trace X --model falcon-mamba-7b --max-model-len 4096", 2, "without prefix caching"),
        ("--trace X --engine vllm@0.31", 2, "replayed are 0.32, 0.33"),
        ("--trace X --engine mlx", 2, "--engine mlx has no replay"),
        ("--trace X --engine sglang --num-blocks 10", 2, "--num-blocks is a setting of vllm"),
        ("--trace X --page-size 4", 2, "--page-size is a setting of sglang"),
        ("--trace X --advice maybe", 2, "use auto, full or off"),
        ("--trace X --prefix-cache-retention-interval x", 2, "must be none, 0 or a number"),
        ("--trace X --accepted-drafts x", 2, "must be whole numbers"),
        ("--trace X --per-request a.xls", 2, "must end in .csv, .jsonl, .parquet"),
        ("--trace X --events a.csv", 2, "must end in .jsonl"),
        ("--trace X --per-request /no/such/a.csv", 2, "cannot be written"),
        ("--trace X --plot a.gif", 2, "must end in .png, .svg, .pdf"),
        ("--trace X --engine sglang --events {tmp}/a.jsonl", 2, "recorded for vllm only"),
    ],
)  # fmt: skip
def test_bad_use_is_one_sentence(
    arguments: str, code: int, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words_given = arguments.replace("{tmp}", str(tmp_path)).split()
    given = [AGENTS if word == "X" else word for word in words_given]
    assert run(["simulate", *given]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert words in captured.err


def test_it_is_light() -> None:
    script = (
        "import sys; from hybridplan.cli import run;"
        f"assert run(['simulate', '--trace', {SESSIONS!r}]) == 0;"
        "heavy = {'torch', 'numpy', 'pandas', 'matplotlib', 'transformers', 'pyarrow'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_has_it_too() -> None:
    import hybridplan
    from hybridplan.sim.setup import EngineAsk, VllmFlags, build
    from hybridplan.sim.traces import open_trace

    spec = hybridplan.load("qwen3.5-0.8b")
    ask = EngineAsk(spec, hybridplan.Deployment("vllm", "0.33"), VllmFlags(num_blocks=2000))
    summary = hybridplan.simulate(open_trace(SESSIONS).requests(), build(ask).engine())
    assert summary.requests == 43
    assert summary.lost_tokens == (summary.ceiling_tokens or 0) - summary.hit_tokens
