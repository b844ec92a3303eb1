"""JSON output: documents answer their schemas, and schemas change with their version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import pytest

from hybridplan.cli import COMMANDS, run
from hybridplan.cli.schema import RESULTS, schema_of, version_of

sys.path.insert(0, str(Path(__file__).parent))
from schemas import FOLDER, file_of, shape_of

ROOT = Path(__file__).parents[2]
LOG = str(ROOT / "docs" / "examples" / "boot.log")
SHARED = str(ROOT / "docs" / "examples" / "shared_prompt.jsonl")
AGENTS = str(ROOT / "tests" / "data" / "traces" / "lmcache_agent_derived.jsonl.gz")
SERVED = ROOT / "tests" / "data" / "traces" / "vllm_request_log_qwen3-30b-a3b.jsonl"
QWEN = ("--model", "qwen3.8-27b")
POOL = ("--kv-memory", "42GiB")
FLEET = ("--trace", AGENTS, "--limit", "20", "--drop-empty", "--gpu", "l4", "--arrival", "timed",
         "--session-gap", "1", "--calibration", "preset")  # fmt: skip
NO_JSON = {"explore", "report", "schema"}

# Schema -> command lines whose documents answer it.
LINES: dict[str, list[list[str]]] = {
    "calibrate": [["calibrate", "log.jsonl", "--model", "qwen3-30b-a3b", "--gpu", "rtx-pro-6000"]],
    "compare": [["compare", "--trace", SHARED, *QWEN, *POOL]],
    "curve": [["sweep", "--curve", "memory", "--trace", SHARED, *QWEN]],
    "error": [["ledger", "nobody"], ["plan", "qwen3.8-27b"], ["fit"]],
    "explain-log": [["explain-log", LOG, *QWEN, "--tp", "2", "--kv-dtype", "fp8"],
                    ["explain-log", LOG]],
    "fit": [["fit", "qwen3.8-27b", "--gpu", "h100", "--max-num-seqs", "256"],
            ["fit", "qwen3.8-27b", "--gpu", "rtx4090"]],
    "fleet": [["simulate", *FLEET, "--replicas", "2", "--router", "prefix-aware"],
              ["simulate", *FLEET, "--replicas", "2", "--router", "all"],
              ["simulate", *FLEET, "--find-replicas", "--slo", "ttft=20s"],
              ["simulate", *FLEET, "--prefill-replicas", "1", "--decode-replicas", "1",
               "--host-gib", "1"]],
    "help": [["help"], ["help", "units"]],
    "ledger": [["ledger", "glm-5.3-flash", "--tp", "4", "--drafts", "2"],
               ["ledger", "qwen3.5-0.8b", "--explain", "all"],
               ["ledger", "--compare", "qwen3.5-0.8b", "deepseek-v3"]],
    "measure": [["measure", "--cpu", "--only", "bytes"]],
    "models": [["models"]],
    "plan": [["plan", "qwen3.8-27b", *POOL, "--lengths", "fixed:4096"],
             ["plan", "glm-5.3-flash", "--gpu", "h200", "--tp", "8"],
             ["plan", "qwen3.8-27b", "--engine", "sglang", *POOL]],
    "recommend": [["recommend", "--trace", SHARED, *QWEN, *POOL]],
    "simulate": [["simulate", "--trace", AGENTS, "--limit", "40", "--gpu", "l4"],
                 ["simulate", "--trace", SHARED, *QWEN, "--engine", "sglang", *POOL]],
    "sweep": [["sweep", "--trace", SHARED, *QWEN, *POOL, "--engine", "vllm", "--jobs", "1"]],
    "trace": [["trace", AGENTS, "--limit", "50"],
              ["trace", "convert", SHARED, "out.jsonl"]],
}  # fmt: skip
CASES = [(name, line) for name, lines in LINES.items() for line in lines]


@pytest.mark.parametrize(
    "name, line", CASES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(CASES)]
)
def test_documents_answer_their_schema(
    name: str,
    line: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "measure":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    if name == "calibrate":
        served = SERVED.read_text(encoding="utf-8").splitlines(keepends=True)
        Path("log.jsonl").write_text("".join(served[:30]), encoding="utf-8")
    assert (run([*line, "--json"]) == 2) is (name == "error")
    document = json.loads(capsys.readouterr().out)
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)
    assert document["schema_version"] == version_of(name)


def test_every_schema_has_a_document() -> None:
    assert set(LINES) == set(RESULTS)
    assert set(RESULTS) - {"curve", "error", "fleet"} == set(COMMANDS) - NO_JSON


@pytest.mark.parametrize("name", RESULTS)
def test_a_schema_changes_with_its_version(name: str) -> None:
    path = file_of(name)
    assert path.exists(), "run python tests/release/schemas.py"
    assert json.loads(path.read_text(encoding="utf-8")) == shape_of(name), (
        f"the JSON of {name} changed: raise SCHEMA_VERSION in {RESULTS[name][0]} and run "
        "python tests/release/schemas.py"
    )


def test_stored_schemas_belong_to_a_command() -> None:
    stored = {path.name.split(".v")[0] for path in FOLDER.glob("*.json")}
    assert stored == set(RESULTS)


def test_the_schema_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "error"]) == 0
    assert json.loads(capsys.readouterr().out) == schema_of("error")
