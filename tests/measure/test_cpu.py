"""The whole command without a GPU, and with one where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import validate

import hybridplan.cli as cli
from hybridplan.measure.runner import CHECKS


@pytest.mark.slow
def test_every_check_of_bytes_and_mathematics_holds_on_a_cpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["measure", "--cpu", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert cli.run(["schema", "measure"]) == 0
    validate(result, json.loads(capsys.readouterr().out))
    families = {c["check"] for c in result["checks"] if c["verdict"] == "within"}
    assert len(families) == len(CHECKS)  # break-even needs times; the kernels' gates have their own
    assert not [c for c in result["checks"] if c["verdict"] in ("outside", "failed")]
    named = {c["name"]: c for c in result["checks"]}
    assert named["memory"]["measured"] == 530
    assert result["complete"]
    assert result["seconds"] < 120


@pytest.mark.parametrize(
    "model,checks",
    [
        ("nemotron-nano-9b-v2", ("checkpoints", "crossovers", "precision")),
        ("kimi-linear-48b-a3b-instruct", ("checkpoints", "crossovers")),
    ],
    ids=["Mamba-2", "KDA and MLA"],
)
def test_other_recurrent_layers_run_too(
    model: str, checks: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    only = [f"--only={name}" for name in checks]
    assert cli.run(["measure", model, "--cpu", *only]) == 0
    shown = capsys.readouterr().out
    assert "shared state" in shown
    assert "outside" not in shown


@pytest.mark.parametrize(
    "model",
    ["nemotron-h-8b-base-8k", "granite-4.0-h-micro", "kimi-linear-48b-a3b-instruct"],
    ids=["a pattern of letters", "a list of layer types", "lists of layer numbers"],
)
def test_a_small_model_of_every_way_to_say_layers_holds_what_the_ledger_counts(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["measure", model, "--cpu", "--only=real_cache", "--only=three_ways"]) == 0
    shown = capsys.readouterr().out
    for figure in ("KV a token", "state at 37 tokens", "three segments"):
        assert figure in shown


def test_a_model_that_transformers_does_not_know_is_not_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["measure", "minimax-m1", "--cpu", "--only=real_cache", "--only=bytes"]) == 0
    assert "has no class for minimax-m1" in " ".join(capsys.readouterr().out.split())


def test_a_log_that_disagrees_makes_the_answer_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "boot.log"
    log.write_text(
        "GPU KV cache size: 1,000,003 tokens, Maximum concurrency for 262,144 tokens per request: "
        "77.77x\n",
        encoding="utf-8",
    )
    code = cli.run(["measure", "--cpu", "--only", "crossovers", "--against-log", str(log)])
    assert "Boot log against the plan" in capsys.readouterr().out
    assert code == 1


@pytest.mark.gpu
def test_a_quick_run_saves_plots_and_agrees_on_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration, picture = tmp_path / "calibration.json", tmp_path / "decode.png"
    cli.run(
        ["measure", "--quick", "--json", "--save", str(calibration), "--plot", str(picture)]
    )  # fmt: skip
    result = json.loads(capsys.readouterr().out)
    assert not [c for c in result["checks"] if c["verdict"] == "failed"]
    assert all(c["verdict"] == "within" for c in result["checks"] if c["check"] == "bytes")
    assert picture.stat().st_size > 0
    assert "step.bytes" in json.loads(calibration.read_text())["constants"]
