"""``hybridplan simulate`` on a clock: what it prints, its exit codes and its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hybridplan.cli import run
from hybridplan.ledger.calibration import Constant, preset, save
from hybridplan.ledger.gpu import find_gpu

DATA = Path(__file__).parents[1] / "data" / "traces"
AGENTS = str(DATA / "lmcache_agent_derived.jsonl.gz")
AZURE = str(DATA / "azure_llm_2023_conv.csv.gz")
MOONCAKE = str(DATA / "mooncake_conversation.jsonl.gz")
CLOSED = ("--trace", AGENTS, "--limit", "80", "--arrival", "closed:4", "--advice", "off")
TIMED = ("--trace", MOONCAKE, "--limit", "60", "--model", "qwen3-next", "--gpu", "h200",
         "--tp", "2", "--arrival", "timed", "--advice", "off", "--no-bounds")  # fmt: skip
CHATS = ("--trace", AZURE, "--limit", "100", "--model", "qwen3.5-27b", "--gpu", "h200",
         "--arrival", "timed", "--advice", "off", "--calibration", "preset")  # fmt: skip


def answer(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> dict[str, Any]:  # fmt: skip
    assert run(["simulate", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["simulate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_the_screen_tells_latencies_and_what_hits_gave(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*CLOSED, "--calibration", "preset:l4")
    assert run(["simulate", *arguments]) == 0
    out = capsys.readouterr().out
    for words in (
        "Time  steps of NVIDIA L4, assumed",
        "TTFT without hits",
        "queueing",
        "requests/s",
        "than with --no-prefix-caching",
        "of the time in steps",
        "nothing was measured: 1 ms of host work between steps",
        "tokenisation, HTTP, the network",
    ):
        assert words in out, words
    assert run(["simulate", *arguments]) == 0
    assert capsys.readouterr().out == out


def test_json_holds_the_times_and_where_they_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *CLOSED, "--calibration", "preset:l4", "--slo", "ttft=5s")
    time = found["time"]
    assert time["clock"]["how"] == "assumed"
    assert time["clock"]["constants"]["step.bytes"]["how"].startswith(
        "assumed: 80% of the 0.3 TB/s"
    )
    assert sum(time["utilisation"]["step_shares"].values()) == pytest.approx(1.0)
    assert time["attained"]["kept"] is True
    assert time["attained"]["requests"] == found["requests"]
    assert time["worth"]["latencies"]["ttft"]["mean_s"] > time["latencies"]["ttft"]["mean_s"]
    assert time["latencies"]["ttft"]["p50_s"] <= time["latencies"]["ttft"]["p99_s"]
    assert time["offered_per_s"] is None


def test_json_answers_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from hybridplan.cli.schema import schema_of

    slo = ("--slo", "ttft=1s", "--slo-share", "0.5", "--find-rate", "--rate-tolerance", "0.9")
    found = answer(capsys, *CHATS, "--limit", "30", *slo)
    assert found["time"]["capacity"]["probes"]
    jsonschema.Draft202012Validator(schema_of("simulate")).validate(found)


def test_exit_code_is_1_where_the_slo_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*CLOSED, "--calibration", "preset:l4", "--no-baseline", "--slo", "tpot=1us")
    assert run(["simulate", *arguments]) == 1
    assert "NOT kept: 0.00% of the requests within TPOT 1.00 us" in capsys.readouterr().out
    assert run(["simulate", *arguments, "--slo-share", "0.00001"]) == 1


def test_highest_rate_is_bracketed_and_each_probe_told(capsys: pytest.CaptureFixture[str]) -> None:
    slo = ("--slo", "ttft=1s,tpot=50ms", "--slo-share", "0.9")
    found = answer(capsys, *CHATS, *slo, "--find-rate", "--rate-tolerance", "0.2")
    capacity = found["time"]["capacity"]
    best, worst = capacity["best"], capacity["next"]
    assert best["share_met"] >= 0.9 > worst["share_met"]
    assert best["speed"] < worst["speed"] <= 1.2 * best["speed"]
    assert capacity["probes"][0]["speed"] == 1.0
    found = answer(capsys, *CHATS, *slo, "--rate", f"x{best['speed']}")
    assert found["time"]["attained"]["share_met"] == best["share_met"]


def test_no_figure_stands_where_no_request_was_served(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*CHATS, "--max-model-len", "2", "--slo", "ttft=1s", "--find-rate")
    probes = answer(capsys, *words, code=1)["time"]["capacity"]["probes"]
    assert {probe["ttft_p99_s"] for probe in probes} == {None}
    assert run(["simulate", *words]) == 1
    assert "no request was served at all" in " ".join(capsys.readouterr().out.split())


def test_rate_a_second_is_what_arrives(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys, *TIMED, "--calibration", "preset", "--no-baseline", "--rate", "0.25/s"
    )  # fmt: skip
    assert found["time"]["offered_per_s"] == pytest.approx(0.25)
    assert found["arrival"] == f"timed, trace clock x{found['time']['speed']:g}"


def test_plain_timed_arrival_keeps_its_stand_in_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer(capsys, *TIMED)
    assert found["time"] is None
    assert found["arrival"] == "timed: 0.005 s a step + 20000 tokens/s"
    assert any("stand in for a device" in line for line in found["assumptions"])


def test_the_stand_in_can_be_asked_for_an_slo(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--trace", AZURE, "--limit", "100", "--advice", "off")
    found = answer(
        capsys, *arguments, "--arrival", "timed:1000000:0.001", "--slo", "ttft=10s"
    )  # fmt: skip
    assert found["time"]["attained"]["kept"] is True
    assert found["time"]["utilisation"] is None


def test_sglang_is_timed_against_prompts_that_share_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer(capsys, *CLOSED, "--engine", "sglang", "--calibration", "preset:h100")
    assert found["time"]["worth"]["baseline"] == "no two prompts alike"
    assert found["time"]["worth"]["saved_ttft_s"] > 0


def test_a_measured_calibration_of_another_model_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = preset(find_gpu("h200"))
    measured = {n: Constant(c.value, c.unit, 0.0, "fitted") for n, c in made.constants.items()}
    from dataclasses import replace

    path = tmp_path / "calibration.json"
    save(replace(made, model="other", fitted_points=9, constants=measured, mean_error=0.04), path)
    found = answer(capsys, *CLOSED, "--calibration", str(path), "--no-baseline")
    assert found["time"]["clock"]["how"] == "measured"
    said = "the constants were measured with other and are used for qwen3.5-0.8b"
    assert any(said in line for line in found["assumptions"])


def test_per_request_rows_have_the_times(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    more = ("--calibration", "preset:l4", "--no-baseline", "--per-request", str(path))
    answer(capsys, *CLOSED, *more)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    served = [row for row in rows if row["refused"] is None]
    assert all(row["e2e_s"] >= row["ttft_s"] > row["queued_s"] >= 0 for row in served)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--calibration", "missing.json"), "the calibration missing.json cannot be read"),
        (("--calibration", "preset:b9000"), "GPU 'b9000' is not known"),
        (("--calibration", "preset"), "is the datasheet's of --gpu"),
        (("--slo", "ttft=2s"), "the replay has no clock; give --calibration"),
        (("--slo", "ttft=2"), "is not one of ttft=, tpot= or e2e="),
        (("--slo-share", "0.9"), "--slo-share 0.9 is of an SLO"),
        (("--rate", "x2"), "--rate scales the trace's clock"),
        (("--find-rate",), "--find-rate varies the rate of arrivals"),
        (("--rate-tolerance", "0.1"), "--rate-tolerance is of a search"),
        (
            ("--arrival", "timed", "--find-rate", "--slo", "ttft=1s", "--rate-tolerance", "0"),
            "--rate-tolerance 0 must be at least 0.001",
        ),
    ],
)
def test_what_cannot_be_timed_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert words in refusal(capsys, "--trace", AGENTS, *arguments)


def test_a_curve_knows_no_times(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--model", "qwen3.5-0.8b", "--set", "calibration=preset:h200")
    arguments = ("--curve", "memory", "--trace", AGENTS, *more)
    assert run(["sweep", *arguments]) == 2
    assert "knows no times; drop calibration preset:h200" in capsys.readouterr().err


def test_two_step_times_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--arrival", "timed:1000:0.1", "--calibration", "preset:l4")
    assert "both say what a step takes" in refusal(capsys, "--trace", MOONCAKE, *arguments)


def test_a_clock_needs_neither_numpy_nor_torch() -> None:
    code = (
        "import sys\n"
        "from hybridplan.cli import run\n"
        f"run(['simulate', *{list(CLOSED)!r}, '--calibration', 'preset:l4', '--json'])\n"
        "bad = {'torch', 'numpy', 'pandas', 'transformers'} & set(sys.modules)\n"
        "sys.exit(len(bad))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
