"""``compare``, ``sweep`` and ``recommend``: what they print, write and return."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from hybridplan.cli import run
from hybridplan.report.schema import json_schema

DATA = Path(__file__).parents[1] / "data" / "traces"
DERIVED = str(DATA / "lmcache_agent_derived.jsonl.gz")
QWEN = str(DATA / "vllm_request_log_qwen3-30b-a3b.jsonl")
COMPARE = ["compare", "--trace", DERIVED, "--kv-memory", "4GiB", "--limit", "40", "--drop-empty"]
SWEEP = ["sweep", "--trace", DERIVED, "--model", "qwen3.5-0.8b", "--limit", "10", "--set",
         "drop_empty=true", "--engine", "vllm", "--engine", "marconi:paper"]  # fmt: skip
FEW = ["--policies", "vllm,sglang:extra_buffer,marconi:paper"]
Capture = pytest.CaptureFixture[str]


def schema_of(module: str, name: str) -> dict[str, object]:
    return json_schema([getattr(import_module(module), name)])


def checked(text: str, module: str, name: str) -> dict[str, object]:
    validate = pytest.importorskip("jsonschema").validate
    document: dict[str, object] = json.loads(text)
    validate(document, schema_of(module, name))
    return document


def test_compare_lines_policies_up_with_bounds_and_causes(capsys: Capture) -> None:
    assert run([*COMPARE, *FEW]) == 0
    out = capsys.readouterr().out
    for words in (
        "4.00 GiB a rank for every policy",
        "vllm@0.33",
        "sglang:extra_buffer",
        "marconi:paper",
        "Best possible",
        "State slots",
        "below a block",
        "no state made",
        "Checkpoints on one sequence",
    ):
        assert words in out


def test_compare_json_and_jobs(capsys: Capture) -> None:
    assert run([*COMPARE, *FEW, "--json"]) == 0
    alone = capsys.readouterr().out
    document = checked(alone, "hybridplan.sim.compare", "CompareResult")
    assert len(document["rows"]) == 3  # type: ignore[arg-type]
    assert run([*COMPARE, *FEW, "--json", "--jobs", "2"]) == 0
    assert capsys.readouterr().out == alone


def test_compare_takes_settings_some_engines_have(capsys: Capture) -> None:
    assert run([*COMPARE, *FEW, "--set", "unit=16", "--json"]) == 0
    rows = {row["policy"]: row["row"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["vllm@0.33"]["hit_alignment_tokens"] == 16


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures(tmp_path: Path, capsys: Capture, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    for name, command in (
        ("compare", [*COMPARE, *FEW]),
        ("sweep", [*SWEEP, "--kv-memory", "4GiB", "--kv-memory", "8GiB", "--jobs", "1",
                   "--store", str(tmp_path / "s.jsonl")]),
        ("curve", [*SWEEP[:-4], "--curve", "memory", "--kv-memory", "4GiB", "--kv-memory", "8GiB"]),
    ):  # fmt: skip
        first, second = tmp_path / f"{name}{suffix}", tmp_path / f"{name}2{suffix}"
        assert run([*command, "--plot", str(first)]) == 0
        assert run([*command, "--plot", str(second)]) == 0
        assert first.read_bytes() == second.read_bytes()


def test_sweep_prints_stores_and_exports(tmp_path: Path, capsys: Capture) -> None:
    store, table = tmp_path / "store.jsonl", tmp_path / "cells.csv"
    command = [*SWEEP, "--kv-memory", "4GiB", "--kv-memory", "8GiB", "--store", str(store),
               "--jobs", "2", "--export", str(table)]  # fmt: skip
    assert run(command) == 0
    assert "4 cells  4 answered" in capsys.readouterr().out
    assert len(table.read_text().splitlines()) == 5
    before = store.read_bytes()
    assert run([*command, "--json"]) == 0
    checked(capsys.readouterr().out, "hybridplan.sim.sweep.sweep", "SweepResult")
    assert store.read_bytes() == before


def test_sweep_reads_a_grid_and_lays_flags_over_it(tmp_path: Path, capsys: Capture) -> None:
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps({"trace": QWEN, "model": "qwen3-8b", "kv_memory": ["9GiB"]}))
    command = ["sweep", str(grid), "--limit", "3", "--tp", "1", "--tp", "2", "--jobs", "1",
               "--store", str(tmp_path / "s.jsonl"), "--json"]  # fmt: skip
    assert run(command) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert {cell["settings"]["tp"] for cell in cells} == {1, 2}


def test_curve_names_what_it_rests_on(capsys: Capture) -> None:
    command = ["sweep", "--curve", "memory", "--trace", QWEN, "--limit", "40", "--model"]
    assert run([*command, "qwen3-8b"]) == 0
    assert "one pass" in capsys.readouterr().out
    assert run([*command, "qwen3.5-0.8b", "--json", "--checks", "0"]) == 0
    checked(capsys.readouterr().out, "hybridplan.sim.sweep.curve", "Curve")


def test_recommend(capsys: Capture) -> None:
    command = ["recommend", "--trace", DERIVED, "--gpu", "h200", "--limit", "25", "--drop-empty"]
    assert run(command) == 0
    out = capsys.readouterr().out
    assert "vllm serve Qwen/Qwen3.5-0.8B" in out
    assert "python -m sglang.launch_server --model-path Qwen/Qwen3.5-0.8B" in out
    assert "To do better" in out
    assert run([*command, "--engines", "vllm", "--json"]) == 0
    checked(capsys.readouterr().out, "hybridplan.sim.recommend", "RecommendResult")


@pytest.mark.parametrize(
    "command, words",
    [
        ([*COMPARE, "--policies", "vllm@9"], "policy 'vllm@9' is not known"),
        ([*COMPARE, "--jobs", "0"], "--jobs is 0"),
        ([*COMPARE, "--plot", "x.bmp"], "must end in"),
        ([*COMPARE, "--set", "engine=vllm"], "without its own flag"),
        (["sweep"], "nothing to sweep"),
        ([*SWEEP, "--curve", "time"], "use memory"),
        ([*SWEEP, "--scheduler", "http://x"], "neither tcp"),
        ([*SWEEP, "--scheduler", "tcp://x:1", "--jobs", "2"], "drop it beside --scheduler"),
        ([*SWEEP, "--export", "cells.txt"], "must end in"),
        (["recommend", "--trace", DERIVED], "needs a memory"),
        (["recommend", "--trace", DERIVED, "--gpu", "h20000"], "GPU 'h20000' is not known"),
    ],
    ids=lambda value: " ".join(value[-2:])[-30:] if isinstance(value, list) else "",
)
def test_bad_questions_get_one_sentence(
    command: list[str], words: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(command) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_no_policy_that_starts_is_a_no(capsys: Capture) -> None:
    tiny = ["compare", "--trace", QWEN, "--limit", "2", "--kv-memory", "1MiB"]
    assert run([*tiny, "--policies", "vllm,sglang"]) == 1
    assert "refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    "more",
    [["--export", "x.csv"], ["--store", "x.jsonl"], ["--jobs", "2"], ["--no-losses"]],
    ids=lambda words: words[0],
)
def test_flags_of_a_grid_are_not_ignored_beside_a_curve(more: list[str], capsys: Capture) -> None:
    one = ["sweep", "--trace", DERIVED, "--model", "qwen3.5-0.8b", "--curve", "memory"]
    assert run([*one, *more]) == 2
    assert f"{more[0]} is of a grid's cells" in capsys.readouterr().err


def test_equal_cells_stand_in_the_order_of_their_settings(tmp_path: Path, capsys: Capture) -> None:
    sizes = [word for size in (64, 8, 16) for word in ("--kv-memory", f"{size}GiB")]
    words = ["sweep", "--trace", DERIVED, "--model", "qwen3.5-0.8b", "--limit", "3", *sizes]
    assert run([*words, "--set", "drop_empty=true", "--store", str(tmp_path / "s.jsonl")]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if " GiB " in line]
    assert shown == ["8.00", "16.00", "64.00"]
