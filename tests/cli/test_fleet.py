"""``hybridplan simulate`` for fleets: what it prints, refuses and returns."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hybridplan import Deployment, load
from hybridplan.cli import run
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.transfer import prefill_to_decode
from hybridplan.report.fleet import size_screen
from hybridplan.sim.arrival import Timed
from hybridplan.sim.fleet.ask import FleetAsk
from hybridplan.sim.fleet.find import find_replicas
from hybridplan.sim.fleet.routers import ROUTERS
from hybridplan.sim.run import SimulateAsk
from hybridplan.sim.setup import EngineAsk, VllmFlags
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.slo import parse_slo
from hybridplan.sim.traces import open_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
AGENTS = ("--trace", str(DATA / "lmcache_agent_derived.jsonl.gz"), "--limit", "60", "--gpu", "l4")
TIMED = (*AGENTS, "--arrival", "timed", "--session-gap", "1")
Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *arguments: str, code: int = 0) -> str:
    assert run(["simulate", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def answer(capsys: Capture, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(capsys, *arguments, "--json"))
    return found


@pytest.mark.parametrize("router", ROUTERS)
def test_one_replica_prints_what_simulate_prints(router: str, capsys: Capture) -> None:
    plain = printed(capsys, *TIMED, "--advice", "off")
    one = printed(capsys, *TIMED, "--advice", "off", "--replicas", "1", "--router", router)
    assert one == plain


def test_the_screen_answers(capsys: Capture) -> None:
    out = printed(capsys, *TIMED, "--replicas", "3", "--router", "prefix-aware")
    for words in (
        "3 replicas, prefix-aware routing",
        "One pool",
        "Ceiling",
        "Router saw",
        "replica-2",
        "all ",
        "the busiest replica over the mean",
        "TTFT",
        "a stand-in for a device",
        "the router's index holds what was sent",
    ):
        assert words in out, words
    assert all(len(line) <= 110 for line in out.splitlines())
    assert printed(capsys, *TIMED, "--replicas", "3", "--router", "prefix-aware") == out


def test_every_router_in_one_table(capsys: Capture) -> None:
    out = printed(capsys, *TIMED, "--replicas", "3", "--router", "all", "--slo", "ttft=9s")
    assert all(router in out for router in ROUTERS)
    assert "…" not in out
    compared = answer(capsys, *AGENTS, "--replicas", "3", "--router", "all")
    assert [one["router"]["kind"] for one in compared["answers"]] == list(ROUTERS)
    assert [len(one["references"]) for one in compared["answers"]] == [1, 0, 0, 0]


def test_prefill_and_decode_apart(capsys: Capture) -> None:
    apart = ("--prefill-replicas", "2", "--decode-replicas", "1", "--transfer-gb-s", "10")
    out = printed(capsys, *TIMED, *apart)
    for words in ("2 prefill and 1 decode instances", "decode-0", "Transfer", "10 GB/s", "state"):
        assert words in out, words
    found = answer(capsys, *TIMED, *apart)
    assert found["transfer"]["bytes_per_s"] == 10_000_000_000
    assert found["transfer"]["moved_bytes"] > 0


def test_a_host_tier(capsys: Capture) -> None:
    out = printed(capsys, *TIMED, "--num-blocks", "600", "--host-gib", "8", "--host-gb-s", "20")
    assert "from the host" in out
    assert "an assumed policy" in out


def test_a_host_tier_takes_the_link_that_measure_found(capsys: Capture, tmp_path: Path) -> None:
    stored = Path(__file__).parents[2] / "benchmarks/results/calibration-h200-qwen3.5-0.8b.json"
    raw = json.loads(stored.read_text(encoding="utf-8"))
    raw["constants"]["link.in_bytes_per_s"]["value"] = 20e9
    raw["constants"]["link.in_floor_s"]["value"] = 0
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    asked = (*TIMED, "--num-blocks", "600", "--host-gib", "8", "--calibration", str(path))
    assert "measured (on steps it had not seen 2.5% off" in printed(capsys, *asked)
    measured, given = answer(capsys, *asked), answer(capsys, *asked, "--host-gb-s", "20")
    said = "loads from the host go at 20 GB/s after 0 us each, as measured on NVIDIA H200"
    assert set(measured["assumptions"]) - set(given["assumptions"]) == {said}
    for found in (measured, given):
        del found["assumptions"]
    assert measured == given


def test_an_slo_that_is_not_kept_is_a_no(capsys: Capture) -> None:
    slow = (*TIMED[:-4], "--arrival", "timed:500:0.01", "--session-gap", "1")
    assert "NOT kept" in printed(capsys, *slow, "--replicas", "2", "--slo", "ttft=1ms", code=1)
    out = printed(
        capsys, *slow, "--find-replicas", "--slo", "ttft=1ms", "--most-replicas", "2", code=1
    )
    assert "not kept by 2 replicas" in out


def test_the_search_names_a_number(capsys: Capture) -> None:
    out = printed(capsys, *TIMED, "--find-replicas", "--slo", "ttft=9s")
    assert "1 replica" in out
    assert "kept" in out


def test_processes_print_what_one_process_prints(capsys: Capture) -> None:
    fleet = (*TIMED, "--replicas", "3", "--router", "session")
    assert printed(capsys, *fleet, "--jobs", "2") == printed(capsys, *fleet)


def test_a_larger_fleet_that_fails_is_owned_up_to() -> None:
    ask = SimulateAsk(
        EngineAsk(load("qwen3.5-0.8b"), Deployment("vllm", "0.33"), VllmFlags(num_blocks=600)),
        open_trace(AGENTS[1], limit=5),
        Timed(),
        1.0,
        timing=TimeAsk(slo=parse_slo("ttft=9s")),
    )
    size = find_replicas(FleetAsk(ask))
    assert size.monotonic
    for monotonic in (True, False):
        text = StringIO()
        Console(file=text, width=110).print(*size_screen(replace(size, monotonic=monotonic)))
        said = "a larger fleet that was tried does not keep it" in text.getvalue()
        assert said is not monotonic


def test_no_prefix_ids_are_no_hit_rate_of_zero(capsys: Capture) -> None:
    lengths = str(DATA / "arxiv_summarization_lengths_head.csv")
    asked = ("--trace", lengths, "--limit", "6", "--num-blocks", "2000", "--replicas", "2")
    out = printed(capsys, *asked, "--router", "prefix-aware")
    assert "0.0%" not in out
    assert "prefix-aware routing finds no prefixes, so it goes by load" in out
    compared = printed(capsys, *asked, "--router", "all").splitlines()
    assert [line.split()[1] for line in compared if line.split()[:1] == ["session"]] == ["-"]


def test_replicas_without_requests_and_rows_left_out_are_said(capsys: Capture) -> None:
    lines = printed(capsys, *AGENTS, "--limit", "2", "--replicas", "5").splitlines()
    assert next(line for line in lines if line.startswith("replica-4")).split()[3] == "-"
    apart = ("--prefill-replicas", "1", "--decode-replicas", "20")
    lines = printed(capsys, *AGENTS, "--limit", "2", *apart).splitlines()
    assert sum(line.startswith("decode-") for line in lines) == 16
    assert any(line.startswith("and 4 more") for line in lines)


def test_peaks_of_replicas_are_not_added_up(capsys: Capture) -> None:
    """One request at a time is never two, however many replicas took turns."""
    lines = printed(capsys, *AGENTS, "--replicas", "2").splitlines()
    whole = next(line for line in lines if line.startswith("all "))
    assert whole.split()[-1] == "-"


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_outcomes_name_their_replica(
    router: str, suffix: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / f"out{suffix}"
    fleet = (*TIMED, "--replicas", "3", "--router", router)
    plain = answer(capsys, *fleet)
    assert answer(capsys, *fleet, "--per-request", str(path)) == plain
    if suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = parquet.read_table(path).to_pylist()
    for replica in plain["replicas"]:
        mine = [row for row in rows if row["replica"] == replica["name"]]
        served = [row for row in mine if not row["refused"]]
        assert (len(served), len(mine) - len(served)) == (replica["requests"], replica["refused"])
        for name in ("prompt_tokens", "hit_tokens", "ceiling_tokens"):
            assert sum(int(row[name]) for row in served) == replica[name]
    assert len(rows) == plain["total"]["requests"] + plain["total"]["refused"]


@pytest.mark.parametrize("scheduling", ["--async-scheduling", "--no-async-scheduling"])
def test_prefill_transfer_and_decode_add_up_by_hand(
    scheduling: str, tmp_path: Path, capsys: Capture
) -> None:
    """10 ms a step and 10 tokens a millisecond; 1 GB/s and 2 ms a transfer. The first step has
    1,000 tokens of the first prompt and one block of 576 of the second, the next one the rest."""
    trace, path = tmp_path / "three.jsonl", tmp_path / "out.csv"
    rows = [(0, 1001, [1, 2]), (0, 2001, [3, 4, 5, 6]), (5000, 501, [7])]
    trace.write_text(
        "".join(
            json.dumps({"timestamp": ms, "input_length": n, "output_length": 3, "hash_ids": ids})
            + "\n"
            for ms, n, ids in rows
        ),
        encoding="utf-8",
    )
    printed(
        capsys, "--trace", str(trace), "--num-blocks", "1000", "--arrival", "timed:10000:0.01",
        "--prefill-replicas", "1", "--decode-replicas", "1", "--transfer-gb-s", "1",
        "--transfer-latency-ms", "2", "--per-request", str(path), scheduling,
    )  # fmt: skip
    layers = model_caches(load("qwen3.5-0.8b"), Deployment("vllm", "0.33"))
    sent = [0.002 + prefill_to_decode(layers, n).total_bytes / 1e9 for _, n, _ in rows]
    prefilled = [0.01 + 0.1576, 0.02 + 0.3, 0.01 + 0.05]
    with path.open(encoding="utf-8", newline="") as file:
        found = [float(row["ttft_s"]) for row in csv.DictReader(file)]
    decode_step_s = 0.01 + 1 / 10_000
    expected = [a + b + decode_step_s for a, b in zip(prefilled, sent, strict=True)]
    assert found == pytest.approx(expected, abs=1e-8)


def test_a_load_is_taken_up_to_the_link_that_breaks_even(tmp_path: Path, capsys: Capture) -> None:
    """Three blocks of 6.75 MiB and the three states at their end against 10 ms and 1,728 tokens at
    10 a millisecond: 42,467,328 B in 0.1828 s."""
    trace, path = tmp_path / "again.jsonl", tmp_path / "out.csv"
    names = (0, 1, 2, 3, 4, 5, 6, 0)
    trace.write_text(
        "".join(
            json.dumps({
                "timestamp": 10_000 * at, "input_length": 3 * 576 + 1, "output_length": 2,
                "hash_ids": [4 * name + unit for unit in range(4)],
            }) + "\n"
            for at, name in enumerate(names)
        ),
        encoding="utf-8",
    )  # fmt: skip
    small = ("--num-blocks", "16", "--max-model-len", "3000", "--max-num-seqs", "4")
    asked = (
        "--trace", str(trace), "--block-tokens", "576", *small, "--arrival", "timed:10000:0.01",
        "--no-async-scheduling", "--host-gib", "4", "--per-request", str(path),
    )  # fmt: skip
    break_even = 6 * 6.75 * 2**20 / 0.1828 / 1e9
    for speed, hit in ((break_even * 1.001, 1728), (break_even * 0.999, 0)):
        out = printed(capsys, *asked, "--host-gb-s", f"{speed:.9f}")
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["hit_tokens"]) for row in rows] == [0] * 7 + [hit]
        if hit:
            assert "1 load of 40.50 MiB gave 1,728 tokens, 0 would" in out
            loaded_s = 6 * 6.75 * 2**20 / speed / 1e9
            assert float(rows[-1]["ttft_s"]) == pytest.approx(loaded_s + 0.0101, abs=1e-6)
        else:
            assert "1 would have been slower than computing" in " ".join(out.split())
            assert "or was slower\n" in out


WRONG = {
    "router alone": (("--router", "session"), "--replicas N"),
    "parameter alone": (("--router-balance-abs", "3"), "--replicas N"),
    "no replicas": (("--replicas", "0"), "0 replicas"),
    "unknown router": (("--replicas", "3", "--router", "random"), "round-robin"),
    "parameter of another router": (
        ("--replicas", "3", "--router-load", "tokens"), "least-loaded or prefix-aware",
    ),
    "balance without end": (
        ("--replicas", "2", "--router", "prefix-aware", "--router-balance-rel", "inf", "--json"),
        "finite ratio",
    ),
    "jobs of dependent replicas": (
        ("--replicas", "3", "--jobs", "2", "--arrival", "closed:4"), "depend on each other",
    ),
    "cluster of dependent replicas": (
        ("--replicas", "3", "--scheduler", "tcp://h:1", "--arrival", "closed:4"),
        "drop --scheduler",
    ),
    "no jobs": (("--replicas", "3", "--jobs", "0"), "1 or more"),
    "prefill alone": (("--prefill-replicas", "2"), "--decode-replicas"),
    "decode alone": (("--decode-replicas", "2"), "--prefill-replicas"),
    "both kinds": (
        ("--replicas", "2", "--prefill-replicas", "2", "--decode-replicas", "1"), "give one",
    ),
    "search without slo": (("--find-replicas",), "--slo"),
    "search without clock": (("--find-replicas", "--slo", "ttft=1s"), "--arrival timed"),
    "search of a given size": (
        ("--find-replicas", "--replicas", "2", "--slo", "ttft=1s"), "drop --replicas",
    ),
    "search with all routers": (
        ("--find-replicas", "--router", "all", "--slo", "ttft=1s"), "name one",
    ),
    "rate search of a fleet": (
        ("--replicas", "2", "--find-rate", "--slo", "ttft=1s"), "--find-replicas",
    ),
    "link alone": (("--transfer-gb-s", "5"), "--prefill-replicas"),
    "link of a fleet": (("--replicas", "2", "--transfer-gb-s", "5"), "--prefill-replicas"),
    "link without speed": (
        ("--prefill-replicas", "1", "--decode-replicas", "1", "--transfer-gb-s", "0"), "above 0",
    ),
    "latency without link": (
        ("--prefill-replicas", "1", "--decode-replicas", "1", "--transfer-latency-ms", "1"),
        "--transfer-gb-s",
    ),
    "latency that never ends": (
        ("--prefill-replicas", "1", "--decode-replicas", "1", "--transfer-gb-s", "1",
         "--transfer-latency-ms", "nan"),
        "latency of nan ms",
    ),
    "host link alone": (("--host-gb-s", "5"), "--host-gib"),
    "host too small": (("--host-gib", "0.001"), "one block"),
    "host without size": (("--host-gib", "nan"), "above 0"),
    "host tier without a cache": (("--host-gib", "2", "--no-prefix-caching"), "drop one"),
    "apart over stages": (
        ("--prefill-replicas", "1", "--decode-replicas", "1", "--pp", "2"), "pipeline stages",
    ),
    "host tier of sglang": (("--host-gib", "2", "--engine", "sglang"), "--hicache-size"),
    "advice": (("--replicas", "2", "--advice", "full"), "one engine"),
    "events": (("--replicas", "2", "--events", "out.jsonl"), "one engine and a fleet"),
    "plot": (("--replicas", "2", "--plot", "out.png"), "one engine and a fleet"),
    "outcomes of every router": (
        ("--replicas", "2", "--router", "all", "--per-request", "out.csv"), "one --router",
    ),
    "outcomes of a search": (
        ("--find-replicas", "--slo", "ttft=1s", "--per-request", "out.csv"), "one fleet",
    ),
    "outcomes from processes": (
        ("--replicas", "2", "--jobs", "2", "--per-request", "out.csv"), "drop --jobs 2",
    ),
    "outcomes from a cluster": (
        ("--replicas", "2", "--scheduler", "tcp://h:1", "--per-request", "out.csv"),
        "drop --scheduler",
    ),
    "outcomes under another name": (
        ("--replicas", "2", "--per-request", "out.txt"), "must end in .csv",
    ),
    "no cluster": (("--replicas", "2", "--scheduler", "here"), "tcp://"),
    "no cluster for one": (("--replicas", "1", "--scheduler", "here"), "tcp://"),
    "processes beside a cluster": (
        ("--replicas", "2", "--jobs", "2", "--scheduler", "tcp://h:1"), "drop it beside",
    ),
    "no jobs for one": (("--replicas", "1", "--jobs", "0"), "1 or more"),
    "unknown router of one": (("--replicas", "1", "--router", "random"), "or all"),
    "nameless router": (("--replicas", "2", "--router", ""), "--router '' is not known"),
    "parameter of one": (
        ("--replicas", "1", "--router", "prefix-aware", "--router-cache-threshold", "7"),
        "0 to 1",
    ),
    "prefill without decoders": (
        ("--prefill-replicas", "1", "--decode-replicas", "0"), "--decode-replicas 0: give 1",
    ),
    "decode without prefillers": (
        ("--prefill-replicas", "0", "--decode-replicas", "1"), "--prefill-replicas 0: give 1",
    ),
    "link without a clock": (
        ("--prefill-replicas", "1", "--decode-replicas", "1", "--transfer-gb-s", "25"),
        "--transfer-gb-s 25 gives bytes a time",
    ),
    "host link without a clock": (
        ("--host-gib", "1", "--host-gb-s", "25"), "--host-gb-s 25 gives bytes a time",
    ),
    "link slower than a byte": (
        ("--prefill-replicas", "1", "--decode-replicas", "1", "--transfer-gb-s", "1e-12"),
        "1 B/s",
    ),
}  # fmt: skip


@pytest.mark.parametrize("given, says", WRONG.values(), ids=WRONG)
def test_what_means_nothing_is_one_sentence(
    given: tuple[str, ...], says: str, capsys: Capture
) -> None:
    assert run(["simulate", *AGENTS, *given]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
