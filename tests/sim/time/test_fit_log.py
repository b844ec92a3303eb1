"""Reading request logs with stamps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridplan.errors import InputError
from hybridplan.sim.time.fit_log import read_log

LOG = Path(__file__).parents[2] / "data" / "traces" / "vllm_request_log_qwen3-30b-a3b.jsonl"
ROW: dict[str, Any] = {
    "input_toks": 100,
    "output_toks": 11,
    "arrival_time": 1_777_144_890.5,
    "queued_ts": 500.0,
    "first_token_ts": 500.25,
    "last_token_ts": 501.25,
}


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_real_log_has_two_clocks_joined_at_the_least_delay() -> None:
    log = read_log(LOG)
    assert len(log.requests) == 300
    assert log.clock.startswith("two clocks")
    rows = [json.loads(line) for line in LOG.read_text().splitlines()]
    offset = min(row["queued_ts"] - row["arrival_time"] for row in rows)
    start = min(row["arrival_time"] for row in rows) + offset
    by_name = {logged.request.request_id: logged for logged in log.requests}
    for row in rows:
        logged = by_name[row["request_id"]]
        assert logged.first_token_s == pytest.approx(row["first_token_ts"] - start, abs=1e-6)
        assert logged.ttft_s >= row["first_token_ts"] - row["queued_ts"] - 1e-6
    arrivals = [logged.arrival_s for logged in log.requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0.0


def test_times_of_a_request(tmp_path: Path) -> None:
    late = {**ROW, "arrival_time": ROW["arrival_time"] + 0.2, "queued_ts": 500.3,
            "first_token_ts": 500.5, "output_toks": 1, "last_token_ts": 500.5}  # fmt: skip
    first, second = read_log(written(tmp_path / "log.jsonl", ROW, late)).requests
    assert first.ttft_s == pytest.approx(0.25)
    assert first.tpot_s == pytest.approx(0.1)
    assert first.e2e_s == pytest.approx(1.25)
    assert second.arrival_s == pytest.approx(0.2)
    assert second.ttft_s == pytest.approx(0.3)
    assert second.tpot_s is None


def test_one_clock_and_no_arrival(tmp_path: Path) -> None:
    one = {**ROW, "arrival_time": 499.9}
    log = read_log(written(tmp_path / "one.jsonl", one))
    assert log.clock == "arrivals and tokens are on one clock"
    assert log.requests[0].ttft_s == pytest.approx(0.35)
    queued = {key: value for key, value in ROW.items() if key != "arrival_time"}
    log = read_log(written(tmp_path / "queued.jsonl", queued))
    assert "queues it" in log.clock
    assert log.requests[0].ttft_s == pytest.approx(0.25)


def test_a_replay_s_own_file_is_a_log(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.csv"
    path.write_text(
        "request_id,prompt_tokens,output_tokens,arrival_s,queued_s,ttft_s,e2e_s\n"
        "a,7,3,1.5,0.1,0.5,2.5\n"
    )
    log = read_log(path)
    assert log.clock == "arrivals and tokens are on one clock"
    (logged,) = log.requests
    assert (logged.request.prompt.length_tokens, logged.request.output_tokens) == (7, 3)
    assert (logged.ttft_s, logged.tpot_s, logged.e2e_s) == (0.5, 1.0, 2.5)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"first_token_ts": None}, "line 1: first_token_ts is missing or null"),
        ({"output_toks": 0}, "line 1: its prompt or output has no token"),
        ({"arrival_time": None, "queued_ts": None}, "neither arrival_time nor queued_ts"),
        ({"last_token_ts": 500.0}, "line 1: its arrival, first and last token are not in this"),
        (
            {"queued_ts": None, "arrival_time": 5.0, "first_token_ts": 9e3, "last_token_ts": 9e3},
            "one clock",
        ),
        ({"queued_ts": None}, "not in this order"),
        ({"input_tok_ids": [1, 2]}, "2 input_tok_ids for 100 tokens"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_what_is_no_log_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = written(tmp_path / "log.jsonl", {**ROW, **change})
    with pytest.raises(InputError, match=words):
        read_log(path)
