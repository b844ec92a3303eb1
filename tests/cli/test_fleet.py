"""``hybridplan simulate`` for fleets: what it prints, refuses and returns."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hybridplan import Deployment, load
from hybridplan.cli import run
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


WRONG = {
    "router alone": (("--router", "session"), "--replicas N"),
    "parameter alone": (("--router-balance-abs", "3"), "--replicas N"),
    "no replicas": (("--replicas", "0"), "0 replicas"),
    "unknown router": (("--replicas", "3", "--router", "random"), "round-robin"),
    "parameter of another router": (
        ("--replicas", "3", "--router-load", "tokens"), "least-loaded or prefix-aware",
    ),
    "jobs of dependent replicas": (
        ("--replicas", "3", "--jobs", "2", "--arrival", "closed:4"), "depend on each other",
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
        "3,600 s",
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
    "files": (("--replicas", "2", "--per-request", "out.csv"), "one engine"),
    "no cluster": (("--replicas", "2", "--scheduler", "here"), "tcp://"),
}  # fmt: skip


@pytest.mark.parametrize("given, says", WRONG.values(), ids=WRONG)
def test_what_means_nothing_is_one_sentence(
    given: tuple[str, ...], says: str, capsys: Capture
) -> None:
    assert run(["simulate", *AGENTS, *given]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
