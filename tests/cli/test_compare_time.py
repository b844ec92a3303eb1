"""``compare`` on a clock: each policy's times are those of ``simulate``, judged by an SLO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridplan.cli import run

DATA = Path(__file__).parents[1] / "data" / "traces"
AGENTS = ("--trace", str(DATA / "lmcache_agent_derived.jsonl.gz"), "--limit", "60", "--drop-empty",
          "--gpu", "l4")  # fmt: skip
CALIBRATED = ("--calibration", "preset")
CLOSED = (*AGENTS, *CALIBRATED, "--arrival", "closed:4")
TIMED = (*AGENTS, *CALIBRATED, "--arrival", "timed", "--session-gap", "2", "--rate", "x1.5")
SLO = ("--slo", "ttft=100ms,tpot=20ms", "--slo-share", "0.9")
POLICIES = {
    "vllm@0.33": ("--engine", "vllm@0.33"),
    "vllm@0.32": ("--engine", "vllm@0.32"),
    "vllm@0.33:all": ("--engine", "vllm@0.33", "--policy", "all"),
    "sglang:no_buffer": ("--engine", "sglang", "--mamba-radix-cache-strategy", "no_buffer"),
    "sglang:extra_buffer": ("--engine", "sglang", "--mamba-radix-cache-strategy", "extra_buffer"),
}
Capture = pytest.CaptureFixture[str]


def compared(capsys: Capture, *words: str, code: int = 0) -> dict[str, Any]:
    assert run(["compare", "--no-bounds", *words, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def printed(capsys: Capture, *words: str, code: int = 0) -> str:
    assert run(["compare", "--no-bounds", *words]) == code
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("arrival", [CLOSED, TIMED], ids=["closed", "timed at a rate"])
def test_each_policy_has_the_time_that_simulate_gives(
    arrival: tuple[str, ...], capsys: Capture
) -> None:
    whole = compared(capsys, *arrival, *SLO, "--policies", ",".join(POLICIES))
    memory = f"{whole['memory_bytes']}B"
    for found, (policy, flags) in zip(whole["rows"], POLICIES.items(), strict=True):
        same = [*arrival, *SLO, *flags, "--kv-memory", memory, "--advice", "off", "--no-bounds"]
        code = run(["simulate", *same, "--json"])
        alone = json.loads(capsys.readouterr().out)["time"]
        assert found["policy"] == policy
        assert (alone["worth"] is None) is (found["row"]["hit_tokens"] == 0)
        assert found["time"] == alone
        assert code == (0 if found["time"]["attained"]["kept"] else 1)


def test_the_stand_ins_times_are_simulates_too(capsys: Capture) -> None:
    words = (*AGENTS, "--arrival", "timed", "--session-gap", "2", "--slo", "ttft=5s")
    (found,) = compared(capsys, *words, "--policies", "vllm")["rows"]
    run(["simulate", *words, "--advice", "off", "--no-bounds", "--json"])
    assert found["time"] == json.loads(capsys.readouterr().out)["time"]
    assert found["steps_ahead"] is None


def test_marconis_hits_are_judged_beside_prompts_that_are_all_unlike(capsys: Capture) -> None:
    (found,) = compared(capsys, *CLOSED, "--policies", "marconi")["rows"]
    worth, row = found["time"]["worth"], found["row"]
    assert worth["baseline"] == "no two prompts alike"
    assert worth["prefill_gpu_s"] == row["spared_s"]
    assert worth["ms_per_1000_hit_tokens"] == 1e6 * row["spared_s"] / row["hit_tokens"]
    assert worth["saved_ttft_s"] > 0
    assert found["time"]["utilisation"]["busy_s"] == row["busy_s"]


def test_processes_give_the_same_times(capsys: Capture) -> None:
    words = (*CLOSED, *SLO, "--policies", "vllm,marconi")
    assert compared(capsys, *words, code=0) == compared(capsys, *words, "--jobs", "2")


def test_screen_says_whose_scheduling_is_modelled(capsys: Capture) -> None:
    out = printed(capsys, *CLOSED, "--policies", "vllm,sglang:extra_buffer")
    for words in (
        "steps of NVIDIA L4, assumed",
        "TTFT p50 p99 TPOT p50 p99 e2e p99 queued p99 requests/s",
        "GPU time saved ms per 1,000 hit tokens TTFT mean without hits",
        "vLLM's steps in flight (async scheduling, pipeline stages) are modelled: arrivals are"
        " seen 1 step later",
        "SGLang's overlap is NOT modelled",
    ):
        assert words in out, words
    assert "SGLang" not in printed(capsys, *CLOSED, "--policies", "vllm")
    assert "Marconi's loop serves one request at a time" in printed(
        capsys, *CLOSED, "--policies", "marconi"
    )


def test_steps_of_another_card_than_the_memorys_are_said(capsys: Capture) -> None:
    words = (*AGENTS, "--policies", "vllm", "--calibration", "preset:h200", "--no-baseline")
    assert "the pool is sized for l4, the steps are those of NVIDIA H200" in printed(capsys, *words)


def test_exit_code_is_0_where_one_policy_keeps_the_slo(capsys: Capture) -> None:
    """Marconi serves one request at a time, so the others wait for minutes."""
    words = (*CLOSED, "--slo", "ttft=1s", "--policies")
    out = printed(capsys, *words, "vllm,marconi")
    assert "SLO ttft=1s for 0.99 of the requests" in out
    assert "goodput/s within SLO" in out
    assert "% kept" in out
    assert "% broken" in out
    assert "% broken" in printed(capsys, *words, "marconi", code=1)


def test_without_the_baseline_nothing_is_replayed_again(capsys: Capture) -> None:
    words = (*CLOSED, "--policies", "vllm", "--no-baseline")
    (found,) = compared(capsys, *words)["rows"]
    assert found["time"]["worth"] is None
    assert found["time"]["utilisation"]["busy_share"] > 0
    assert "without hits" not in printed(capsys, *words)


def test_no_clock_and_no_slo_have_no_time(capsys: Capture) -> None:
    (found,) = compared(capsys, *AGENTS, "--policies", "vllm")["rows"]
    assert (found["time"], found["steps_ahead"]) == (None, None)


@pytest.mark.parametrize(
    "more, words",
    [
        (("--slo", "ttft=2s"), "the replay has no clock; give --calibration"),
        (("--slo", "ttft=2"), "--slo 'ttft=2': 'ttft=2' is not one of"),
        (("--slo-share", "0.5"), "--slo-share 0.5 is of an SLO"),
        (("--slo", "ttft=2s", "--slo-share", "1.5", *CALIBRATED), "--slo-share 1.5 must be"),
        (("--rate", "x2", *CALIBRATED), "--rate scales the trace's clock"),
        (("--calibration", "nowhere.json"), "nowhere.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_time_cannot_answer_is_one_sentence(
    more: tuple[str, ...], words: str, capsys: Capture
) -> None:
    assert run(["compare", *AGENTS, *more]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
