"""Whole answers about fleets: sums, one replica as the plain replay, many processes as one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hybridplan
from hybridplan.errors import InputError
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.calibration import read_calibration
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.planning.ask import MemoryAsk
from hybridplan.ledger.transfer import prefill_to_decode
from hybridplan.report.document import document
from hybridplan.sim.arrival import Arrival, Closed, Timed
from hybridplan.sim.fleet.ask import FleetAsk, HostAsk
from hybridplan.sim.fleet.find import find_replicas
from hybridplan.sim.fleet.link import LinkSpeed
from hybridplan.sim.fleet.reference import pooled
from hybridplan.sim.fleet.result import FleetResult
from hybridplan.sim.fleet.routers import ROUTERS, RouterAsk
from hybridplan.sim.fleet.run import run_fleet
from hybridplan.sim.run import SimulateAsk, run
from hybridplan.sim.setup import EngineAsk, SglangFlags, VllmFlags, build
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.slo import parse_slo
from hybridplan.sim.traces import open_trace

DATA = Path(__file__).parents[2] / "data" / "traces"
AGENTS = "lmcache_agent_derived.jsonl.gz"
SESSIONS = "weka_cc_traces_excerpt.jsonl.gz"
MOONCAKE = "mooncake_conversation.jsonl.gz"
COUNTS = (
    "requests", "refused", "requests_hit", "prompt_tokens", "output_tokens", "hit_tokens",
    "host_tokens", "kv_hit_tokens", "ceiling_tokens", "computed_tokens", "evictions",
    "states_kept", "states_hit", "preemptions", "steps",
)  # fmt: skip


def base(
    trace: str = AGENTS,
    arrival: Arrival = Closed(1),  # noqa: B008
    *,
    limit: int = 150,
    gib: int = 4,
    sglang: bool = False,
    **timing: Any,
) -> SimulateAsk:
    flags = SglangFlags() if sglang else VllmFlags(max_num_seqs=64, max_num_batched_tokens=4096)
    engine = EngineAsk(
        hybridplan.load("qwen3.5-0.8b"),
        hybridplan.Deployment("sglang") if sglang else hybridplan.Deployment("vllm", "0.33"),
        flags,
        MemoryAsk(kv_memory_bytes=gib << 30),
    )
    opened = open_trace(DATA / trace, limit=limit)
    gap_s = 0.5 if isinstance(arrival, Timed) and trace != MOONCAKE else None
    return SimulateAsk(
        engine, opened, arrival, gap_s, advice="off", bounds=False, timing=TimeAsk(**timing)
    )


def fleet(kind: str = "round-robin", replicas: int = 3, **more: Any) -> FleetAsk:
    kept = {
        name: more.pop(name) for name in ("decode_replicas", "transfer", "host") if name in more
    }
    references = more.pop("references", False)
    return FleetAsk(base(**more), replicas, RouterAsk(kind), references=references, **kept)


def text(result: FleetResult) -> str:
    return json.dumps(document(result))


@pytest.mark.parametrize("arrival", [Closed(1), Closed(6), Timed()], ids=str)
@pytest.mark.parametrize("kind", ROUTERS)
def test_replicas_sum_to_the_whole(kind: str, arrival: Arrival) -> None:
    result = run_fleet(fleet(kind, arrival=arrival))
    for name in COUNTS:
        each = [getattr(replica, name) for replica in result.replicas]
        assert sum(each) == getattr(result.total, name), name
    plain = run(base(arrival=arrival))
    assert result.total.requests == plain.requests
    assert result.total.prompt_tokens == plain.prompt_tokens
    assert result.total.output_tokens == plain.output_tokens
    assert [one.requests for one in result.refused] == [one.requests for one in plain.refused]
    assert result.ceiling_tokens is not None
    lost = sum(loss.tokens for loss in result.losses)
    assert lost == result.ceiling_tokens - result.total.hit_tokens
    assert result.imbalance.requests >= 1


@pytest.mark.parametrize("arrival", [Closed(1), Closed(6), Timed()], ids=str)
@pytest.mark.parametrize("kind", ROUTERS)
def test_one_replica_is_the_plain_simulation(kind: str, arrival: Arrival) -> None:
    result, plain = run_fleet(fleet(kind, 1, arrival=arrival)), run(base(arrival=arrival))
    (only,) = result.replicas
    assert (only.requests, only.prompt_tokens, only.hit_tokens, only.evictions) == (
        plain.requests,
        plain.prompt_tokens,
        plain.hits.usable_tokens,
        plain.evictions,
    )
    assert result.ceiling_tokens == plain.hits.ceiling_tokens
    assert {loss.cause: loss.tokens for loss in result.losses} == {
        loss.cause.value: loss.tokens for loss in plain.losses
    }
    assert (only.steps, only.peak_running, only.peak_waiting, only.preemptions) == (
        plain.queue.steps,
        plain.queue.peak_running,
        plain.queue.peak_waiting,
        plain.queue.preemptions,
    )


@pytest.mark.parametrize(
    "kind, arrival", [("session", Timed()), ("prefix-aware", Closed(1))], ids=str
)
def test_two_processes_give_the_bytes_of_one(kind: str, arrival: Arrival) -> None:
    ask = fleet(kind, 3, arrival=arrival, limit=90)
    assert ask.independent
    assert text(run_fleet(ask, jobs=2)) == text(run_fleet(ask))


@pytest.mark.parametrize(
    "kind, trace, arrival, independent",
    [
        ("round-robin", MOONCAKE, Timed(), True),
        ("round-robin", AGENTS, Timed(), False),
        ("session", AGENTS, Timed(), True),
        ("least-loaded", MOONCAKE, Timed(), False),
        ("prefix-aware", MOONCAKE, Timed(), False),
        ("least-loaded", MOONCAKE, Closed(1), True),
        ("round-robin", MOONCAKE, Closed(2), False),
    ],
    ids=str,
)
def test_which_replicas_are_independent(
    kind: str, trace: str, arrival: Arrival, independent: bool
) -> None:
    ask = fleet(kind, trace=trace, arrival=arrival, limit=5)
    assert ask.independent is independent
    if not independent:
        with pytest.raises(InputError, match="depend on each other"):
            run_fleet(ask, jobs=2)


def test_one_at_a_time_on_a_clock_takes_the_time_of_all() -> None:
    ask = fleet(
        limit=20, calibration=read_calibration("preset:l4", "bf16"), calibration_name="preset:l4"
    )
    assert not ask.independent
    result = run_fleet(ask)
    shares = [replica.busy_share for replica in result.replicas if replica.busy_share is not None]
    assert sum(shares) == pytest.approx(1, abs=0.01)


def test_a_shared_clock_and_replays_apart_agree() -> None:
    """What is independent is also answered by the clock that all replicas share."""
    from hybridplan.sim.fleet.together import run_together

    ask = fleet("round-robin", trace=MOONCAKE, arrival=Timed(), limit=200)
    apart = run_fleet(ask)
    together = run_together(ask, build(ask.engine), None)
    assert [part.summary.hit_tokens for part in together.parts] == [
        replica.hit_tokens for replica in apart.replicas
    ]
    assert [part.watch.latencies() for part in together.parts] == [
        replica.latencies for replica in apart.replicas
    ]
    assert together.ceiling_tokens == apart.ceiling_tokens


def test_one_pool_has_all_the_memory() -> None:
    ask = base().engine
    setup = build(ask).setup
    large = build(pooled(ask, setup, 3)).setup
    assert large.memory is not None
    assert setup.memory is not None
    assert large.memory.available_bytes == 3 * setup.memory.available_bytes
    assert large.settings["max_num_seqs"] == 3 * 64
    assert large.settings["max_num_batched_tokens"] == 4096
    assert large.block_tokens == setup.block_tokens
    on_card = replace(ask, memory=MemoryAsk(gpu=find_gpu("l4")), flags=VllmFlags())
    card = build(on_card).setup
    many = build(pooled(on_card, card, 100)).setup
    assert many.block_tokens == card.block_tokens == 544
    assert many.settings["max_num_seqs"] == many.settings["max_num_batched_tokens"]
    blocks = replace(ask, memory=None, flags=VllmFlags(num_blocks=501))
    pool = build(pooled(blocks, build(blocks).setup, 3)).setup.num_blocks
    assert pool == 1501
    sglang = base(sglang=True).engine
    doubled = build(pooled(sglang, build(sglang).setup, 2)).setup
    assert doubled.memory is not None
    assert doubled.memory.available_bytes == 8 << 30


def test_prefix_aware_loses_less_than_going_round() -> None:
    round_robin, aware = (
        run_fleet(fleet(kind, 4, trace=SESSIONS, limit=200, gib=4, references=True))
        for kind in ("round-robin", "prefix-aware")
    )
    assert aware.total.hit_tokens > round_robin.total.hit_tokens
    assert aware.references[0].hit_tokens >= aware.total.hit_tokens
    other = {loss.cause: loss.tokens for loss in round_robin.losses}
    assert other["other_replica"] > 0
    assert aware.believed_tokens is not None
    assert round_robin.believed_tokens is None


def test_apart_moves_the_ledgers_bytes() -> None:
    ask = fleet(
        "prefix-aware", 2, trace=MOONCAKE, arrival=Timed(), limit=60, gib=8,
        decode_replicas=2, transfer=LinkSpeed.of_gb_s(10, "--transfer-gb-s"),
    )  # fmt: skip
    result = run_fleet(ask)
    layers = model_caches(ask.engine.spec, ask.engine.deployment)
    assert result.transfer is not None
    assert result.transfer.moved_bytes == sum(
        prefill_to_decode(layers, one.prompt.length_tokens).total_bytes
        for one in open_trace(DATA / MOONCAKE, limit=60).requests()
    )
    assert result.transfer.requests == 60
    assert sum(one.requests for one in result.decoders) == 60
    assert sum(one.output_tokens for one in result.decoders) == result.total.output_tokens
    assert all(one.hit_tokens == one.computed_tokens == 0 for one in result.decoders)
    assert result.transfer.moving_s is not None
    assert result.transfer.moving_s.max_s == pytest.approx(result.transfer.most_bytes / 10**10)


def test_a_host_tier_adds_hits_and_counts_them_apart() -> None:
    without = run_fleet(fleet(replicas=1, trace=MOONCAKE, arrival=Timed(), limit=150, gib=4))
    ask = fleet(
        replicas=1, trace=MOONCAKE, arrival=Timed(), limit=150, gib=4, host=HostAsk(64 << 30)
    )
    result = run_fleet(ask)
    assert result.host is not None
    assert 0 < result.host.host_tokens == result.total.host_tokens <= result.total.hit_tokens
    assert result.total.hit_tokens > without.total.hit_tokens
    assert result.host.loaded_bytes % build(ask.engine).setup.bytes_per_block == 0


def test_the_search_reports_every_size_it_tried() -> None:
    asked = base(MOONCAKE, Timed(2000, 0.005), limit=60, gib=8, slo=parse_slo("ttft=20s", 0.9))
    found = find_replicas(FleetAsk(asked, router=RouterAsk("least-loaded")), most=16)
    assert found.replicas is not None
    kept = {probe.replicas: probe.kept for probe in found.probes}
    assert kept[found.replicas]
    assert not kept[found.replicas - 1]
    assert found.answer.total.requests == 60
    assert len(found.answer.replicas) == found.replicas


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"replicas": 0}, "0 replicas"),
        ({"replicas": 5000}, "5000 replicas"),
        ({"sglang": True, "decode_replicas": 1}, "vllm only"),
        ({"sglang": True, "host": HostAsk(1 << 30)}, "--hicache"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        fleet(**wrong)


def test_sglang_fleets_are_replayed_too() -> None:
    result = run_fleet(fleet("prefix-aware", 2, arrival=Timed(), sglang=True, limit=60))
    assert result.total.requests == sum(one.requests for one in result.replicas) > 0
    assert result.setup.rules.startswith("sglang")


def test_a_clock_that_starts_late_leaves_no_replica_idle(tmp_path: Path) -> None:
    """Shares are of the time since the first request, as those of one engine are."""
    shares = []
    for start_ms in (0, 5_000_000):
        path = tmp_path / f"{start_ms}.jsonl"
        rows = [
            {"input_length": 300, "output_length": 20, "timestamp": start_ms + 100 * n}
            for n in range(9)
        ]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        timing = TimeAsk(read_calibration("preset:l4"), "preset:l4", baseline=False)
        one = replace(
            base(), trace=open_trace(str(path), format="mooncake"), arrival=Timed(), timing=timing
        )
        total = run_fleet(FleetAsk(one, 2, RouterAsk("round-robin"))).total
        alone = run(one).time
        assert alone is not None
        assert alone.utilisation is not None
        shares.append((total.busy_share, alone.utilisation.busy_share))
    assert shares[0] == pytest.approx(shares[1])
    assert 0.5 * shares[0][1] <= shares[0][0] <= shares[0][1]
