"""``hybridplan plan``, ``fit`` and ``explain-log`` as a user meets them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hybridplan.cli import run
from hybridplan.errors import InputError

Capture = pytest.CaptureFixture[str]
HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
LOG = str(EXPECTED / "boot.log")
HEAVY = ("torch", "transformers", "pandas", "numpy", "matplotlib")
POOL = ("--kv-memory", "42GiB")

# Command lines, and their whole output in expected/.
SCREENS = {
    "plan-vllm": ["plan", "qwen3.8-27b", *POOL],
    "plan-vllm-drafts": ["plan", "qwen3.5-35b-a3b", *POOL, "--tp", "2", "--drafts", "2"],
    "plan-sglang": ["plan", "qwen3-next-80b-a3b-instruct", "--engine", "sglang", *POOL],
    "plan-lengths": ["plan", "qwen3.8-27b", *POOL, "--lengths", "lognormal:p50=2k,p99=60k"],
    "fit": ["fit", "qwen3.8-27b", "--gpu", "h100", "--max-num-seqs", "256"],
    "fit-not": ["fit", "qwen3.8-27b", "--gpu", "rtx4090"],
    "explain-log": ["explain-log", LOG],
}
EXIT_CODES = {"fit-not": 1}

# Command line -> exit code and what the one sentence must name.
BAD: dict[str, tuple[list[str], int, tuple[str, ...]]] = {
    "memory without a unit": (
        ["plan", "qwen3.8-27b", "--kv-memory", "42"],
        2,
        ("--kv-memory 42", "42GiB"),
    ),
    "memory too small for one block": (
        ["plan", "qwen3.8-27b", "--kv-memory", "40MiB"],
        1,
        ("41,943,040 bytes", "54,525,952 bytes", "109,051,904"),
    ),
    "one request does not fit": (
        ["plan", "qwen3.8-27b", "--kv-memory", "1GiB"],
        1,
        ("325 blocks", "--max-model-len 7488"),
    ),
    "tp divides no heads": (
        ["plan", "qwen3.8-27b", *POOL, "--tp", "5"],
        2,
        ("size 5", "16 key heads", "is 4"),
    ),
    "unknown card": (["plan", "qwen3.8-27b", "--gpu", "h201"], 2, ("'h201'", "h200")),
    "no memory": (["plan", "qwen3.8-27b"], 2, ("--gpu", "--kv-memory")),
    "another engine's flag": (
        ["plan", "qwen3.8-27b", *POOL, "--page-size", "4"],
        2,
        ("--page-size", "sglang", "drop it"),
    ),
    "two sizes of one tier": (
        [
            *("plan", "qwen3.8-27b", "--engine", "sglang", *POOL),
            *("--hicache-ratio", "2", "--hicache-size", "4GB"),
        ],
        2,
        ("--hicache-ratio", "--hicache-size"),
    ),
    "an engine without a plan": (
        ["plan", "qwen3.8-27b", "--engine", "llama.cpp", *POOL],
        2,
        ("llama.cpp", "vllm"),
    ),
    "an unknown version": (
        ["plan", "qwen3.8-27b", "--engine", "vllm@0.99", *POOL],
        2,
        ("0.99", "0.33"),
    ),
    "an unknown model": (["plan", "nosuchmodel", *POOL], 2, ("'nosuchmodel'", "closest")),
    "more sequences than states": (
        ["plan", "qwen3.8-27b", *POOL, "--max-num-seqs", "2000"],
        1,
        ("2,000", "827"),
    ),
    "longer than the model": (
        ["plan", "qwen3.8-27b", *POOL, "--max-model-len", "1000000"],
        1,
        ("1000000", "262144"),
    ),
    "negative drafts": (["plan", "qwen3.8-27b", *POOL, "--drafts", "-1"], 2, ("-1",)),
    "a cost of no tokens": (["plan", "qwen3.8-27b", *POOL, "--at", "0"], 2, ("--at 0",)),
    "lengths that are neither": (
        ["plan", "qwen3.8-27b", *POOL, "--lengths", "nofile"],
        2,
        ("'nofile'", "lognormal"),
    ),
    "more sequences than tokens of a step": (
        [
            *("plan", "qwen3.8-27b", *POOL),
            *("--max-num-seqs", "200", "--max-num-batched-tokens", "100"),
        ],
        1,
        ("100", "200", "--max-num-seqs 100"),
    ),
    "no sequences": (["plan", "qwen3.8-27b", *POOL, "--max-num-seqs", "0"], 2, ("is 0",)),
    "memory given and worked out": (
        ["plan", "qwen3.8-27b", *POOL, "--memory-utilization", "0.9"],
        2,
        ("--kv-memory 42GiB", "--memory-utilization 0.9", "drop one"),
    ),
    "more memory than the card has": (
        ["plan", "qwen3.8-27b", "--gpu", "rtx4090", *POOL],
        2,
        ("45,097,156,608", "25,757,220,864"),
    ),
    "graphs without graphs": (
        ["plan", "qwen3.8-27b", "--gpu", "h100", "--enforce-eager", "--graph-memory", "1GiB"],
        2,
        ("--enforce-eager", "--graph-memory 1GiB"),
    ),
    "two settings of the slots": (
        [
            *("plan", "qwen3.8-27b", "--engine", "sglang", *POOL),
            *("--max-mamba-cache-size", "90", "--mamba-full-memory-ratio", "2"),
        ],
        2,
        ("--max-mamba-cache-size 90", "--mamba-full-memory-ratio 2"),
    ),
    "a drafter that does not draft": (
        ["plan", "qwen3.8-27b", *POOL, "--draft-method", "mtp"],
        2,
        ("--draft-method", "--drafts 1"),
    ),
    "an unknown drafter": (
        ["plan", "qwen3.8-27b", *POOL, "--drafts", "1", "--draft-method", "medusa9"],
        2,
        ("'medusa9'", "eagle3"),
    ),
    "a drafter without layers": (
        ["plan", "qwen3.8-27b", *POOL, "--drafts", "1", "--draft-method", "eagle3"],
        2,
        ("eagle3", "--draft-layers"),
    ),
    "a drafter's layer without its width": (
        ["plan", "qwen3.8-27b", *POOL, "--drafts", "1", "--draft-layers", "kv-heads=8"],
        2,
        ("head-dim",),
    ),
    "a card and another kind of card": (
        ["plan", "qwen3.8-27b", "--gpu", "h100", "--generation", "sm80"],
        2,
        ("h100", "sm80"),
    ),
    "a cost beyond the longest request": (
        ["plan", "qwen3.8-27b", *POOL, "--at", "300000"],
        1,
        ("300000", "262144"),
    ),
    "a block its sparse layers cannot take": (
        ["plan", "minimax-m3", *POOL, "--tp", "8", "--block-size", "64"],
        1,
        ("MINIMAX_M3_SPARSE", "128", "64"),
    ),
    "a block that its kernel cannot cut": (
        ["plan", "qwen3.8-27b", *POOL, "--block-size", "64", "--kernel-block", "128"],
        2,
        ("64", "--kernel-block 128", "--block-size 128"),
    ),
    "stages of SGLang": (
        ["plan", "qwen3.8-27b", "--engine", "sglang", *POOL, "--pp", "2"],
        2,
        ("pp is 2", "--pp 1"),
    ),
    "an SGLang whose rules are not known": (
        ["plan", "qwen3.8-27b", "--engine", "sglang@0.3", *POOL],
        2,
        ("0.3", "0.5.23"),
    ),
    "fit of a model the engine does not serve": (
        ["fit", "rwkv7-2.9b", "--gpu", "h200"],
        1,
        ("RWKV7ForCausalLM", "no model class"),
    ),
    "fit of a pool that is not modelled": (
        ["fit", "deepseek-v4-flash", "--gpu", "h200", "--tp", "8"],
        1,
        ("not modelled",),
    ),
    "fit without memory": (["fit", "qwen3.8-27b"], 2, ("--gpu",)),
    "fit of another engine": (
        ["fit", "qwen3.8-27b", "--gpu", "h100", "--engine", "sglang"],
        2,
        ("sglang", "hybridplan plan"),
    ),
    "a log that is not there": (["explain-log", "/nonexistent.log"], 2, ("cannot be read",)),
    "a log of an unknown card": (["explain-log", LOG, "--gpu", "h201"], 2, ("'h201'",)),
}


@pytest.mark.parametrize("name", SCREENS)
def test_the_whole_screen(name: str, capsys: Capture) -> None:
    assert run(SCREENS[name]) == EXIT_CODES.get(name, 0)
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == (EXPECTED / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", SCREENS)
def test_two_runs_print_the_same_bytes(name: str, capsys: Capture) -> None:
    printed = []
    for _ in range(2):
        run([*SCREENS[name], "--json"])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    found = {}
    for command in ("plan", "fit", "explain-log"):
        printed = subprocess.run(
            [sys.executable, "-m", "hybridplan", "schema", command],
            capture_output=True,
            text=True,
            check=True,
        )
        found[command] = json.loads(printed.stdout)
        jsonschema.Draft202012Validator.check_schema(found[command])
    return found


@pytest.mark.parametrize("name", SCREENS)
def test_json_is_what_the_schema_says(
    name: str, schemas: dict[str, dict[str, Any]], capsys: Capture
) -> None:
    assert run([*SCREENS[name], "--json"]) == EXIT_CODES.get(name, 0)
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, schemas[SCREENS[name][0]])


@pytest.mark.parametrize(
    "arguments, exit_code, named", [pytest.param(*bad, id=name) for name, bad in BAD.items()]
)
def test_bad_input_is_one_sentence(
    arguments: list[str], exit_code: int, named: tuple[str, ...], capsys: Capture
) -> None:
    assert run(arguments) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hybridplan: ")
    assert captured.err.count("\n") == 1
    for part in named:
        assert part in captured.err
    assert run([*arguments, "--json"]) == exit_code
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == exit_code
    assert f"hybridplan: {error['message']}\n" == captured.err


@pytest.mark.parametrize(
    "content, named",
    [
        pytest.param(b"", "0 lines", id="empty"),
        pytest.param(b"hello\nworld\n", "2 lines", id="no known line"),
        pytest.param(b"\x7fELF\x00\x01\n" * 9, "NUL byte", id="binary"),
    ],
)
def test_a_log_without_a_known_line(
    content: bytes, named: str, tmp_path: Path, capsys: Capture
) -> None:
    log = tmp_path / "boot.log"
    log.write_bytes(content)
    assert run(["explain-log", str(log)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert named in captured.err


def test_a_log_from_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    piped = io.TextIOWrapper(io.BytesIO(Path(LOG).read_bytes()))
    monkeypatch.setattr(sys, "stdin", piped)
    assert run(["explain-log", "-"]) == 0
    assert capsys.readouterr().out == (EXPECTED / "explain-log.txt").read_text()


def test_a_log_that_disagrees_says_no(tmp_path: Path, capsys: Capture) -> None:
    log = tmp_path / "boot.log"
    log.write_text(Path(LOG).read_text().replace("302,921", "302,922"))
    assert run(["explain-log", str(log)]) == 1
    assert "DISAGREES" in capsys.readouterr().out


@pytest.mark.parametrize("gpu, rules", [("h100", "older"), ("rtx5090", "0.32")])
def test_the_card_decides_the_kernel_block(gpu: str, rules: str, capsys: Capture) -> None:
    """FlashInfer, which a 5090 gets for fp8, cut old releases' pages by 64: 1,568 is newer."""
    assert run(["explain-log", LOG, "--gpu", gpu]) == 0
    assert f"Inferred: rules {rules}," in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "fit", "explain-log"])
def test_an_interrupt_ends_quietly(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridplan.config.find.load", interrupted)
    monkeypatch.setattr("hybridplan.ledger.logs.explain.find_model", interrupted)
    arguments = {"plan": SCREENS["plan-vllm"], "fit": SCREENS["fit"]}
    assert run(arguments.get(command, SCREENS["explain-log"])) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("command", ["plan", "fit", "explain-log"])
def test_nothing_heavy_is_imported(command: str) -> None:
    arguments = next(line for line in SCREENS.values() if line[0] == command)
    code = (
        "import sys; from hybridplan.cli import run; "
        f"run({arguments!r}); "
        f"sys.exit(' '.join(m for m in {HEAVY!r} if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_size_keeps_its_unit() -> None:
    from hybridplan.cli.flags import size_or_none

    assert size_or_none("42GiB", "--kv-memory") == 42 << 30
    with pytest.raises(InputError, match="--kv-memory"):
        size_or_none("42", "--kv-memory")
