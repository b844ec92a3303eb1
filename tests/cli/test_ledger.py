"""``hybridplan ledger`` and ``hybridplan schema`` as a user meets them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hybridplan import Deployment, ledger, load
from hybridplan.cli import run
from hybridplan.cli.common import PIPE_WIDTH
from hybridplan.config.catalogue import entries
from hybridplan.report.document import document

Capture = pytest.CaptureFixture[str]
HEAVY = ("torch", "transformers", "pandas", "numpy", "matplotlib")


def _out(capsys: Capture, *arguments: str) -> str:
    assert run(["ledger", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    printed = subprocess.run(
        [sys.executable, "-m", "hybridplan", "schema", "ledger"],
        capture_output=True,
        text=True,
        check=True,
    )
    parsed: dict[str, Any] = json.loads(printed.stdout)
    jsonschema.Draft202012Validator.check_schema(parsed)
    return parsed


def test_the_default_screen_answers(capsys: Capture) -> None:
    text = _out(capsys, "qwen3.5-0.8b")
    for said in (
        "24 layers: LLLF x 6",
        "12,288 B; its all-attention twin 49,152 B",
        "19,537,920 B (18.63 MiB): state 18,874,368 B (18.00 MiB), conv 663,552 B (648.0 KiB)",
        "530 tokens",
        "bf16 state 274",
        "checkpoint every",
        "262,144",
        "752,393,024 parameters without draft and vision",
    ):
        assert said in " ".join(text.split())
    lines = text.splitlines()
    assert len(lines) < 50
    assert all(line == line.rstrip() and len(line) <= PIPE_WIDTH for line in lines)


def test_a_model_without_weights_says_so(capsys: Capture) -> None:
    assert "not counted" in _out(capsys, "illustrative-48")


def test_ranks_show_what_is_replicated(capsys: Capture) -> None:
    text = _out(capsys, "qwen3.5-27b", "--tp", "8")
    assert "replicated: kv of 16 layers, 2 times over 8 ranks" in text
    assert "all ranks" in text


def test_stages_show_their_share(capsys: Capture) -> None:
    text = _out(capsys, "qwen3.5-0.8b", "--pp", "5")
    assert [
        line.split()[1:4] for line in text.splitlines() if " to " in line and line[0].isdigit()
    ] == [
        ["0", "to", "4"],
        ["5", "to", "9"],
        ["10", "to", "14"],
        ["15", "to", "19"],
        ["20", "to", "23"],
    ]


@pytest.mark.parametrize("name", list(entries()))
def test_json_is_what_the_schema_says(name: str, schema: dict[str, Any]) -> None:
    printed = json.loads(json.dumps(document(ledger(load(name)))))
    jsonschema.Draft202012Validator(schema).validate(printed)
    assert printed["schema_version"] == 1


def test_json_of_the_command(capsys: Capture, schema: dict[str, Any]) -> None:
    text = _out(capsys, "glm-5.3-flash", "--tp", "8", "--drafts", "2", "--json")
    printed = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(printed)
    expected = ledger(load("glm-5.3-flash"), Deployment(tp=8, drafts=2))
    assert printed == json.loads(json.dumps(document(expected)))
    assert printed["deployment"]["kv_dtype"] == "bfloat16"


def test_json_of_a_comparison(capsys: Capture, schema: dict[str, Any]) -> None:
    printed = json.loads(_out(capsys, "--compare", "qwen3.5-0.8b", "kimi-linear", "--json"))
    jsonschema.Draft202012Validator(schema).validate(printed)
    assert [each["model"]["layers"] for each in printed["ledgers"]] == [24, 27]


def test_bytes_are_whole_numbers(capsys: Capture) -> None:
    printed = json.loads(_out(capsys, "kimi-linear", "--tp", "4", "--json"))

    def walk(value: object, key: str) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                walk(item, name)
        elif isinstance(value, list):
            for item in value:
                walk(item, key)
        elif key.endswith(("bytes", "tokens")):
            assert value is None or isinstance(value, int), (key, value)

    walk(printed, "")


def test_comparison_uses_contexts_that_all_reach(capsys: Capture) -> None:
    text = _out(capsys, "--compare", "qwen3.5-0.8b", "nemotron-nano-9b-v2")
    assert "request of 131,072" in text
    assert "request of 262,144" not in text


@pytest.mark.parametrize(
    "figure, said",
    [
        ("crossover_tokens", "crossover_tokens = 530 tokens"),
        ("all", "weight_bytes = "),
    ],
)
def test_explain(figure: str, said: str, capsys: Capture) -> None:
    text = _out(capsys, "qwen3.5-0.8b", "--explain", figure)
    assert said in text
    assert "text_config.linear_num_value_heads" in text


def test_explain_as_json(capsys: Capture) -> None:
    printed = json.loads(_out(capsys, "qwen3.5-0.8b", "--explain", "conv_bytes", "--json"))
    assert [figure["value"] for figure in printed["figures"]] == [663_552]


def test_contexts_and_spacings_are_the_ones_asked_for(capsys: Capture) -> None:
    text = _out(
        capsys,
        "illustrative-48",
        "--context",
        "512",
        "--context",
        "256k",
        "--checkpoint-every",
        "528",
    )
    assert "84.00 MiB" in text
    assert "262,144" in text
    assert "528" in text
    assert not [line for line in text.splitlines() if line.startswith("2,048")]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_plot(suffix: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"memory{suffix}"
    _out(capsys, "qwen3.5-0.8b", "--plot", str(path))
    first = path.read_bytes()
    assert first[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    if suffix == ".svg":
        assert b"530" in first
    _out(capsys, "qwen3.5-0.8b", "--plot", str(path))
    assert path.read_bytes() == first


def test_same_question_same_bytes() -> None:
    command = [sys.executable, "-m", "hybridplan", "ledger", "kimi-k3", "--tp", "4"]
    outputs = {
        subprocess.run(
            command, capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["ledger", "qwen3.5-0.8b"], id="ledger"),
        pytest.param(["ledger", "qwen3.5-0.8b", "--json"], id="ledger-json"),
        pytest.param(["--help"], id="help"),
        pytest.param(["ledger", "--help"], id="ledger-help"),
    ],
)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    code = (
        "import sys; from hybridplan.cli import run; run(sys.argv[1:]); "
        f"sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import hybridplan; "
        "print(sorted(m for m in set(sys.modules) - before if m.startswith('hybridplan')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['hybridplan']"


BAD = [
    (["qwen3.5-0.8b", "--tp", "3"], "tensor parallel size 3 does not divide the 16", "tp-heads"),
    (["qwen3.5-0.8b", "--tp", "0"], "tp is 0", "tp-zero"),
    (["falcon-mamba", "--tp", str(10**18)], "the most that is accepted is 65,536", "tp-absurd"),
    (["qwen3.5-0.8b", "--drafts", str(10**14)], "drafts is 100,000,000,000,000", "drafts-absurd"),
    (["qwen3.5-0.8b", "--kv-dtype", "fp3"], "dtype 'fp3' is not known", "kv-dtype"),
    (["qwen3.5-0.8b", "--kv-dtype", "fp8_ds_mla"], "packs an MLA latent", "kv-needs-mla"),
    (["kimi-linear", "--kv-dtype", "nvfp4"], "needs K and V heads", "kv-needs-heads"),
    (["qwen3.5-0.8b", "--kv-dtype", "q8_0"], "format of llama.cpp", "kv-of-another-engine"),
    (["kimi-linear", "--state-dtype", "fp16"], "refused by vLLM for KDA", "kda-state"),
    (["qwen3.5-0.8b", "--state-dtype", "int8"], "use float32, bfloat16 or float16", "int8-state"),
    (["qwen3.5-0.8b", "--conv-dtype", "fp8"], "use float32, bfloat16 or float16", "fp8-conv"),
    (["qwen3.5-0.8b", "--engine", "trt"], "engine 'trt' is not known", "engine"),
    (["qwen3.5-0.8b", "--engine", "vllm@0.1"], "rules of vLLM 0.1 are not known", "version"),
    (["qwen3.5-0.8b", "--engine", "mlx", "--tp", "2"], "use --tp 1 with --pp 2", "mlx-tp"),
    (["qwen3.5-0.8b", "--tp", "4", "--dcp", "4"], "dcp 4 needs each KV head on 4 ranks", "dcp"),
    (["qwen3.5-0.8b", "--pp", "25"], "larger than the 24 layers", "pp"),
    (["qwen3.5-0.8b", "--drafts", "-1"], "drafts is -1", "drafts"),
    (["qwen3.5-0.8b", "--context", "many"], "write 4096 or 128k", "context"),
    (["qwen3.5-0.8b", "--checkpoint-every", "0"], "write 4096 or 128k", "spacing"),
    (["qwen3.5-0.8b", "--explain", "magic"], "no figure is called 'magic'", "figure"),
    (["qwen3.5-0.8b", "--plot", "memory.gif"], "must end in .png, .svg, .pdf", "plot-suffix"),
    (["qwen3.5-0.8b", "--plot", "/none/x.png"], "folder /none does not exist", "plot-folder"),
    (["qwen3.5-0.8b", "kimi-linear"], "add --compare", "two-models"),
    (["qwen3.5-0.7b"], "closest names are", "unknown-model"),
]


@pytest.mark.parametrize("arguments, said, name", BAD, ids=[row[2] for row in BAD])
def test_bad_input_is_one_sentence(
    arguments: list[str], said: str, name: str, capsys: Capture
) -> None:
    assert run(["ledger", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.startswith("hybridplan: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert run(["ledger", *arguments, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert said in error["message"]
    assert error["exit_code"] == 2


def test_plot_without_matplotlib_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["ledger", "qwen3.5-0.8b", "--plot", str(tmp_path / "x.png")]) == 2
    assert 'pip install "hybridplan[report]"' in capsys.readouterr().err


def test_schema_of_nothing(capsys: Capture) -> None:
    assert run(["schema", "nothing"]) == 2
    assert re.search("there is one for .*ledger", capsys.readouterr().err)


def test_the_program_without_a_command(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hybridplan ")
    assert run([]) == 0
    assert "  ledger  " in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--help", "--json"])
def test_a_reader_that_leaves_is_neither_yes_nor_no(flag: str) -> None:
    command = [sys.executable, "-m", "hybridplan", "ledger", "qwen3.5-0.8b", flag]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence() -> None:
    command = [sys.executable, "-m", "hybridplan", "ledger", "qwen3.5-0.8b"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_a_closed_output_is_one_sentence() -> None:
    command = f"exec {shlex.quote(sys.executable)} -m hybridplan models >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "hybridplan: the output is closed\n")


@pytest.mark.parametrize("arguments", [["models"], ["help", "units"], ["models", "--json"]])
def test_an_output_that_knows_ascii_only(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "hybridplan", *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    printed = done.stdout.decode("ascii")
    if "--json" in arguments:
        told = subprocess.run(command, capture_output=True, check=True).stdout
        assert json.loads(printed) == json.loads(told)


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_terminal_cuts_no_figure_of_the_catalogue(columns: int) -> None:
    from rich.console import Console

    from hybridplan.ledger.catalogue import catalogue
    from hybridplan.report.models import screen

    parts = screen(catalogue())
    printed = []
    for width in (PIPE_WIDTH, columns):
        console = Console(file=StringIO(), width=width)
        with console.capture() as captured:
            console.print(*parts)
        printed.append(captured.get())
    wide, narrow = printed
    assert narrow.count("…") == wide.count("…")
