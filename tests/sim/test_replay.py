"""Arrivals, the clock, turns of a session, refusals, partial results, events and memory."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from hybridplan.errors import InputError, RefusalError
from hybridplan.sim import (
    Closed,
    Event,
    LossCause,
    Progress,
    Prompt,
    Replay,
    Request,
    RequestOutcome,
    Timed,
    parse_arrival,
    simulate,
)
from hybridplan.sim.vllm.invariants import check_outcome
from hybridplan.sim.vllm.keys import Reading
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup

MOONCAKE = Path(__file__).parents[1] / "data" / "traces" / "mooncake_conversation.jsonl.gz"
BLOCK = 64


def _config(num_blocks: int = 400, block: int = BLOCK, **limits: int) -> VllmCacheConfig:
    state = VllmGroup(GroupKind.MAMBA_ALIGN, block, block_bytes=1000)
    return VllmCacheConfig(
        groups=(VllmGroup(GroupKind.FULL, block), state, state),
        num_blocks=num_blocks,
        **limits,  # type: ignore[arg-type]
    )


def _request(
    name: str,
    ids: tuple[int, ...],
    output: int = 3,
    *,
    arrival_s: float | None = None,
    session: str | None = None,
    turn: int | None = None,
) -> Request:
    prompt = Prompt(len(ids) * BLOCK + 1, BLOCK, (*ids, hash(name) & 0xFFFF), chained=True)
    return Request(name, prompt, output, arrival_s=arrival_s, session=session, turn=turn)


def _mooncake(count: int | None = None) -> Iterator[Request]:
    with gzip.open(MOONCAKE, "rt") as lines:
        for index, line in enumerate(islice(lines, count)):
            row = json.loads(line)
            yield Request(
                f"r{index}",
                Prompt(row["input_length"], 512, row["hash_ids"], chained=True),
                row["output_length"],
                arrival_s=row["timestamp"] / 1000,
            )


def test_next_request_starts_when_one_ends_if_the_loop_is_closed() -> None:
    running: list[int] = []
    requests = [_request(f"r{i}", (i, 100 + i), output=20) for i in range(12)]
    engine = ReplayedVllm(_config())
    for _ in Replay(requests, engine, arrival=Closed(3)):
        running.append(engine.running + engine.waiting)
    assert max(running) <= 3


def test_clock_decides_when_arrivals_are_timed() -> None:
    requests = [_request("a", (1, 2), 5, arrival_s=0.0), _request("b", (1, 2), 5, arrival_s=100.0)]
    a, b = Replay(requests, ReplayedVllm(_config()), arrival=Timed(1000.0, 0.01))
    assert a.finish_s == pytest.approx(129 / 1000 + 0.01 + 4 * 0.011, abs=0.02)
    assert (b.arrival_s, b.waited_s) == (100.0, 0.0)


def test_timed_arrival_needs_a_clock() -> None:
    with pytest.raises(InputError, match="no arrival time"):
        list(Replay([_request("a", (1,))], ReplayedVllm(_config()), arrival=Timed()))


def test_turn_waits_for_the_turn_before_it() -> None:
    requests = [
        _request("s1", (1, 2), 50, session="s", turn=0),
        _request("s2", (1, 2, 3), 5, session="s", turn=1),
        _request("other", (9, 8), 5),
    ]
    outcomes = list(Replay(requests, ReplayedVllm(_config()), arrival=Closed(3)))
    assert [o.request_id for o in outcomes] == ["other", "s1", "s2"]
    assert outcomes[2].hit_tokens == 128
    free = list(Replay(requests, ReplayedVllm(_config()), arrival=Closed(3), hold_turns=False))
    assert next(o for o in free if o.request_id == "s2").first_step == 1


@pytest.mark.parametrize(
    "text, arrival",
    [
        ("sequential", Closed(1)),
        ("closed:16", Closed(16)),
        ("timed", Timed()),
        ("timed:5000", Timed(5000.0)),
        ("timed:5000:0.02", Timed(5000.0, 0.02)),
    ],
)
def test_arrival_is_read_from_its_words(text: str, arrival: Closed | Timed) -> None:
    assert parse_arrival(text) == arrival


@pytest.mark.parametrize("text", ["closed", "closed:0", "closed:x", "timed:0", "poisson:3", ""])
def test_unknown_arrival_is_an_error(text: str) -> None:
    with pytest.raises(InputError):
        parse_arrival(text)


def test_prompt_longer_than_the_model_is_refused_and_counted() -> None:
    requests = [
        _request("ok", (1, 2)),
        _request("long", tuple(range(40))),
        Request("no", Prompt(0), 1),
    ]
    engine = ReplayedVllm(_config(max_model_len=1000))
    outcomes: list[RequestOutcome] = []
    summary = simulate(requests, engine, on_outcome=outcomes.append)
    assert (summary.requests, summary.refused) == (1, 2)
    assert {o.request_id for o in outcomes if o.refused} == {"long", "no"}


def test_request_the_pool_can_never_hold_is_an_error_that_says_how_much_is_missing() -> None:
    with pytest.raises(RefusalError, match=r"needs \d+ blocks .* raise num_blocks to at least"):
        simulate([_request("big", tuple(range(30)))], ReplayedVllm(_config(num_blocks=20)))


def test_summary_is_partial_while_the_trace_is_not_read() -> None:
    run = Replay([_request(f"r{i}", (i,)) for i in range(5)], ReplayedVllm(_config()))
    next(iter(run))
    assert run.summary().partial
    list(run)
    assert not run.summary().partial
    assert run.summary().requests == 5


def test_interruption_leaves_a_partial_summary() -> None:
    def stop(outcome: RequestOutcome) -> None:
        if outcome.request_id == "r2":
            raise KeyboardInterrupt

    requests = [_request(f"r{i}", (i,)) for i in range(9)]
    summary = simulate(requests, ReplayedVllm(_config()), on_outcome=stop)
    assert (summary.requests, summary.partial, summary.interrupted) == (3, True, True)


def test_progress_is_told_as_requests_finish_and_at_the_end() -> None:
    told: list[Progress] = []
    run = Replay(
        [_request(f"r{i}", (i,)) for i in range(10)],
        ReplayedVllm(_config()),
        progress=told.append,
        progress_every=4,
    )
    list(run)
    assert [p.finished for p in told] == [4, 8, 10]


def test_events_tell_of_every_allocation_publication_hit_and_eviction() -> None:
    events: list[Event] = []
    requests = [_request(f"r{i}", (1, 2, 3, i, i + 50)) for i in range(6)]
    engine = ReplayedVllm(_config(num_blocks=24), events=events.append)
    summary = simulate(requests, engine)
    kinds = {event.kind for event in events}
    assert {"allocate", "publish", "hit", "evict", "finish"} <= kinds
    allocated = sum(len(e.blocks) for e in events if e.kind == "allocate")
    assert allocated == sum(group.allocated_blocks for group in summary.use.groups)
    assert sum(e.kind == "evict" for e in events) == summary.use.evictions
    assert {e.request_id for e in events if e.kind == "publish"} == {r.request_id for r in requests}


def test_states_kept_and_ever_hit_are_counted_with_their_bytes() -> None:
    requests = [_request(f"r{i}", (1, 2, 3, 4)) for i in range(3)]
    use = simulate(requests, ReplayedVllm(_config())).use.states
    assert (use.kept, use.ever_hit, use.useless) == (1, 1, 0)
    assert use.kept_bytes == 2000


def test_same_trace_gives_the_same_summary() -> None:
    def run() -> str:
        return repr(simulate(_mooncake(60), ReplayedVllm(_config(600, 576)), arrival=Closed(4)))

    assert run() == run()


def test_attention_alone_reaches_the_ceiling_when_nothing_is_evicted() -> None:
    """The ceiling counted by hand: leading ids seen before, 512 tokens each."""
    requests = list(_mooncake(600))
    config = VllmCacheConfig((VllmGroup(GroupKind.FULL, 512),), num_blocks=100_000)
    outcomes: list[RequestOutcome] = []
    summary = simulate(requests, ReplayedVllm(config), on_outcome=outcomes.append)
    seen: set[int] = set()
    for request, outcome in zip(requests, outcomes, strict=True):
        prompt = request.prompt
        units = 0
        while units < len(prompt.ids) and prompt.ids[units] in seen:
            units += 1
        seen.update(prompt.ids)
        assert outcome.ceiling_tokens == min(units * 512, prompt.length_tokens)
        assert outcome.hit_tokens == min(units, (prompt.length_tokens - 1) // 512) * 512
    assert summary.exact_identity
    assert summary.hit_rate <= (summary.ceiling_rate or 0.0)
    assert {cause for cause, _ in summary.lost} <= {
        LossCause.LAST_TOKEN,
        LossCause.BELOW_ONE_BLOCK,
    }


@pytest.mark.slow
def test_mooncake_conversation_ceiling_is_0_374() -> None:
    """Published with the trace: 0.374 of the input at 512 tokens, 0.373 with the last token cap."""
    config = VllmCacheConfig((VllmGroup(GroupKind.FULL, 512),), num_blocks=400_000)
    summary = simulate(_mooncake(), ReplayedVllm(config))
    assert (summary.requests, summary.prompt_tokens) == (12_031, 144_793_823)
    assert round(summary.ceiling_rate or 0.0, 3) == 0.374
    assert round(summary.hit_rate, 3) == 0.373


def test_upper_reading_hits_at_least_as_much_when_the_block_cuts_units() -> None:
    lower = simulate(_mooncake(300), ReplayedVllm(_config(50_000, 576)))
    upper = simulate(_mooncake(300), ReplayedVllm(_config(50_000, 576), reading=Reading.UPPER))
    assert not lower.exact_identity
    assert lower.hit_tokens <= upper.hit_tokens
    assert any("lower reading" in sentence for sentence in lower.assumptions)


def test_causes_still_sum_when_units_are_cut_either_way() -> None:
    for reading in Reading:
        engine = ReplayedVllm(_config(900, 576), reading=reading)
        for outcome in Replay(_mooncake(300), engine, arrival=Closed(4)):
            check_outcome(outcome)


def test_memory_follows_the_pool_and_not_the_trace() -> None:
    """Ten times the requests, the same peak: nothing remembers a request that has ended."""

    def requests(count: int) -> Iterator[Request]:
        for i in range(count):
            yield _request(f"r{i}", (i % 7, 1000 + i, 2000 + i), output=2)

    def peak_bytes(count: int) -> int:
        engine = ReplayedVllm(_config(num_blocks=60), attribute_losses=False)
        tracemalloc.start()
        simulate(requests(count), engine)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    simulate(requests(3000), ReplayedVllm(_config(num_blocks=60)))  # fills CPython's free lists
    assert peak_bytes(2000) < 1.2 * peak_bytes(200)
