"""Ctrl-C in a fleet: what was answered is an answer, and says that it is a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hybridplan import Deployment, load
from hybridplan.cli import run
from hybridplan.report.fleet import routers_screen, screen, size_screen
from hybridplan.sim.arrival import Timed
from hybridplan.sim.fleet import run as fleet_run
from hybridplan.sim.fleet.ask import FleetAsk
from hybridplan.sim.fleet.compare import compare_routers
from hybridplan.sim.fleet.find import find_replicas
from hybridplan.sim.fleet.link import LinkSpeed
from hybridplan.sim.fleet.routers import RouterAsk
from hybridplan.sim.fleet.run import run_fleet
from hybridplan.sim.run import SimulateAsk
from hybridplan.sim.setup import EngineAsk, VllmFlags
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.slo import parse_slo
from hybridplan.sim.traces import open_trace

TRACE = Path(__file__).parents[2] / "data" / "traces" / "lmcache_agent_derived.jsonl.gz"


def question(**fleet: Any) -> FleetAsk:
    base = SimulateAsk(
        EngineAsk(load("qwen3.5-0.8b"), Deployment("vllm", "0.33"), VllmFlags(num_blocks=600)),
        open_trace(str(TRACE), limit=30),
        Timed(),
        1.0,
        timing=TimeAsk(slo=parse_slo("ttft=1ms")),
    )
    return FleetAsk(base, **{"replicas": 2, "router": RouterAsk("least-loaded"), **fleet})


def stops_at(call: int) -> Callable[..., None]:
    """Ctrl-C in the ``call``-th of its calls."""
    calls = 0

    def see(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt

    return see


def shown(parts: list[Any]) -> str:
    text = StringIO()
    console = Console(file=text, width=110)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in text.getvalue().split("\n"))


@pytest.mark.parametrize(
    "fleet", [{}, {"decode_replicas": 1, "transfer": LinkSpeed(10**9)}], ids=["alike", "apart"]
)
def test_what_was_answered_is_shown_as_a_part(fleet: dict[str, Any]) -> None:
    result = run_fleet(question(**fleet), on_outcome=stops_at(7))
    assert result.interrupted == "replay"
    assert result.total.requests + result.total.refused == 7
    assert result.ceiling_tokens is None
    assert result.losses == result.references == ()
    assert f"PARTIAL: stopped after {result.total.requests} requests" in shown(screen(result))


def test_nothing_answered_is_no_answer() -> None:
    ask = question()
    unread = replace(ask, base=replace(ask.base, trace=_Unread(ask.trace)))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        run_fleet(unread)


class _Unread:
    """A trace during whose first row Ctrl-C falls."""

    def __init__(self, trace: Any) -> None:
        self.info = trace.info

    def requests(self) -> Any:
        raise KeyboardInterrupt
        yield


def test_replicas_replayed_one_by_one_have_no_part_in_common() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_fleet(question(router=RouterAsk("session")), on_outcome=stops_at(7))


def test_a_reference_cut_short_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_run, "one_large_replica", stops_at(1))
    result = run_fleet(question())
    assert result.interrupted == "replay of one pool"
    assert result.references == ()
    assert result.ceiling_tokens is not None
    assert "PARTIAL" not in shown(screen(result))


def test_a_search_shows_the_sizes_it_has_tried() -> None:
    found = find_replicas(question(), watch=stops_at(30 + 30 + 1))
    assert found.interrupted
    assert found.replicas is None
    assert [probe.replicas for probe in found.probes] == [1, 2]
    assert "unknown, the search was interrupted" in shown(size_screen(found))
    with pytest.raises(KeyboardInterrupt):
        find_replicas(question(), watch=stops_at(1))


def test_a_comparison_shows_the_routers_it_has_done() -> None:
    found = compare_routers(question(references=False), watch=stops_at(40))
    assert found.interrupted
    assert [one.router.kind for one in found.answers] == ["round-robin"]
    assert "PARTIAL: stopped after 1 router\n" in shown(routers_screen(found))
    with pytest.raises(KeyboardInterrupt):
        compare_routers(question(), watch=stops_at(7))


def test_the_command_prints_the_part_and_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fleet_run, "one_large_replica", stops_at(1))
    asked = ["--trace", str(TRACE), "--limit", "20", "--gpu", "l4", "--replicas", "2"]
    assert run(["simulate", *asked]) == 130
    printed = capsys.readouterr()
    assert "Usable hit" in printed.out
    assert printed.err == "hybridplan: warning: interrupted during the replay of one pool\n"
