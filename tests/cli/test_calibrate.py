"""``hybridplan calibrate``: fits a log, judges it, and leaves a file that simulate reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridplan.cli import run
from hybridplan.ledger.calibration import load

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests" / "data" / "traces" / "vllm_request_log_qwen3-30b-a3b.jsonl"
FLAGS = ("--model", "qwen3.5-0.8b", "--max-num-batched-tokens", "2048")


@pytest.fixture(scope="module")
def own_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a replay of 60 requests of the real log gave them, slower than a made card would."""
    path = tmp_path_factory.mktemp("calibrate") / "outcomes.csv"
    trace = ("--trace", str(LOG), "--limit", "60", "--order", "time")
    clock = ("--arrival", "timed", "--calibration", "preset:l4", "--no-baseline")
    assert run(["simulate", *trace, *clock, *FLAGS, "--per-request", str(path)]) == 0
    return path


def answer(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["calibrate", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_calibration_is_judged_saved_and_used(
    own_log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    saved = tmp_path / "calibration.json"
    asked = (str(own_log), *FLAGS, "--save", str(saved), "--card", "made-up card")
    found = answer(capsys, 0, *asked)
    assert found["holds"] is True
    assert (found["fitted_requests"], found["judged_requests"]) == (30, 30)
    assert run(["schema", "calibrate"]) == 0
    jsonschema.validate(found, json.loads(capsys.readouterr().out))

    calibration = load(saved)
    assert calibration.card == "made-up card"
    assert calibration.model == "qwen3.5-0.8b"
    assert not calibration.assumed
    replay = ("--trace", str(LOG), "--limit", "60", "--order", "time", "--arrival", "timed")
    used = ("--calibration", str(saved), "--no-baseline", "--json")
    assert run(["simulate", *replay, *FLAGS, *used]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 60
    shown = ["simulate", *replay, *FLAGS, "--calibration", str(saved), "--no-baseline"]
    assert run(shown) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "steps of made-up card, fitted to a log of requests (TPOT of requests it had not" in said
    assert "on steps" not in said


def test_the_screen_says_what_was_judged(own_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    asked = ["calibrate", str(own_log), *FLAGS, "--split", "alternate"]
    assert run(asked) == 0
    out = capsys.readouterr().out
    for words in (
        "qwen3.5-0.8b  vllm 0.33, tp 1; outcomes.csv",
        "Fitted to 30 requests (spread over the log), judged on the other 30",
        "TTFT p50",
        "TPOT p99",
        "within",
        "step.bytes",
        "on a rank",
        "TTFT and TPOT of the requests left out are predicted within the tolerances.",
        "arrivals and tokens are on one clock",
        "the stamps of their",
    ):
        assert words in out, words
    assert run(asked) == 0
    assert capsys.readouterr().out == out


def test_a_run_of_other_flags_is_told_from_its_times(
    own_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, 1, str(own_log), *FLAGS, "--max-num-seqs", "2")
    assert found["holds"] is False
    assert any(not judged["within"] for judged in found["judged"])


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--split", "random"), "--split 'random' is not known; use time or alternate"),
        (("--fit-share", "1"), "--fit-share 1 must lie between 0 and 1"),
        (("--max-model-len", "300"), "would refuse it: a prompt of"),
        (("--save", "/nowhere/c.json"), "--save /nowhere/c.json: cannot be written"),
    ],
    ids=["split", "share", "limits", "save"],
)
def test_what_cannot_be_fitted_is_refused_in_a_sentence(
    own_log: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    capsys.readouterr()
    assert run(["calibrate", str(own_log), *FLAGS, *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_trace_without_times_is_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "tests" / "data" / "traces" / "azure_llm_2023_conv.csv.gz"
    assert run(["calibrate", str(path), *FLAGS]) == 2
    assert "a calibration needs tokens, an arrival or" in capsys.readouterr().err


def _log(path: Path, ttft_s: float, e2e_s: float, *, judged_only: bool = False) -> str:
    """60 requests; with ``judged_only`` the fitted ones take a second more."""
    rows = []
    for n in range(60):
        more = 1.0 if judged_only and n < 30 else 0.0
        times = {"ttft_s": ttft_s + more, "e2e_s": e2e_s + more}
        rows.append({"arrival_s": n, "input_tokens": 100 + n, "output_tokens": 4, **times})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "judged_only, words",
    [
        (False, "0 intervals of the log's fitted requests take any time"),
        (True, "have neither a TTFT nor a TPOT above zero in the log"),
    ],
    ids=["none takes time", "none that is judged takes time"],
)
def test_a_log_that_shows_no_time_proves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], judged_only: bool, words: str
) -> None:
    log = _log(tmp_path / "log.jsonl", 0.0, 0.0, judged_only=judged_only)
    assert run(["calibrate", log, *FLAGS]) == 2
    assert words in capsys.readouterr().err


def test_only_what_was_judged_is_called_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = _log(tmp_path / "log.jsonl", 0.0, 0.06)
    assert run(["calibrate", log, *FLAGS]) == 0
    out = capsys.readouterr().out
    assert "\nTPOT of the requests left out is predicted within the tolerances." in out
    assert "TTFT" not in out
