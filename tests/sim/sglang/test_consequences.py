"""What an operator sees: who hits, who never does, and what bad flags are told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.sim.arrival import Closed
from hybridplan.sim.outcome import LossCause
from hybridplan.sim.replay import Replay, simulate
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.sglang.config import SglangCacheConfig
from hybridplan.sim.sglang.events import ScriptedReplay
from hybridplan.sim.sglang.integrity import check_integrity
from hybridplan.sim.sglang.replayed import ReplayedSglang

ROOMY = {"kv_tokens": 102_400, "state_slots": 100}


def config(**flags: Any) -> SglangCacheConfig:
    return SglangCacheConfig(**{**ROOMY, **flags})


def single(name: str, prompt: list[int], output_tokens: int = 8) -> Request:
    return Request(name, Prompt(len(prompt), 1, prompt), output_tokens)


def hits(requests: list[Request], **flags: Any) -> list[int]:
    engine = ReplayedSglang(config(**flags))
    found = []
    for outcome in Replay(requests, engine):
        check_integrity(engine.cache)
        assert outcome.ceiling_tokens is not None
        lost = sum(tokens for _, tokens in outcome.lost)
        assert lost == outcome.ceiling_tokens - outcome.hit_tokens
        found.append(outcome.hit_tokens)
    return found


def sharing_a_system_prompt(tokens: int = 200) -> list[Request]:
    system = list(range(tokens))
    return [single(str(k), system + [1000 * k + i for i in range(100)]) for k in (1, 2, 3, 4)]


@pytest.mark.parametrize("strategy", ["extra_buffer", "extra_buffer_lazy"])
def test_a_shared_prompt_pays_off_at_its_third_use(strategy: str) -> None:
    assert hits(sharing_a_system_prompt(), strategy=strategy) == [0, 0, 192, 192]


def test_no_buffer_never_stores_the_state_of_a_shared_prompt() -> None:
    assert hits(sharing_a_system_prompt(), strategy="no_buffer") == [0, 0, 0, 0]


def test_no_buffer_resumes_a_chat_exactly_and_misses_an_exact_repeat() -> None:
    prompt, answer, question = list(range(50)), list(range(100, 120)), list(range(200, 210))
    turns = [
        Request("1", Prompt(50, 1, prompt), 20, sequence=Prompt(70, 1, prompt + answer)),
        single("2", prompt + answer + question),
    ]
    assert hits(turns, strategy="no_buffer") == [0, 69]
    assert hits([single("1", prompt), single("2", prompt)], strategy="no_buffer") == [0, 0]


def test_short_turns_leave_nothing_under_extra_buffer() -> None:
    turns = [single(str(k), list(range(60)), output_tokens=200) for k in range(3)]
    assert hits(turns, strategy="extra_buffer") == [0, 0, 0]


def test_units_are_not_expanded_and_give_the_lower_bound() -> None:
    requests = [Request(str(k), Prompt(1300, 512, [7, 8, 100 + k]), 10) for k in range(3)]
    assert hits(requests) == [0, 0, 1024]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200), st.integers(0, 40)), max_size=12),
    st.sampled_from([16, 32]),
    st.sampled_from([500, 100_000]),
)
@settings(max_examples=60, deadline=None)
def test_pages_of_whole_units_are_known_exactly(
    asked: list[tuple[int, int, int]], page: int, kv_tokens: int
) -> None:
    """Prompts of 16-token ids against the same prompts token by token."""

    def ids(kind: int, count: int) -> list[int]:
        return [(kind if k > 4 else 0) * 1000 + k for k in range(count)]

    coarse, fine = [], []
    for number, (kind, length, output) in enumerate(asked):
        units = ids(kind, -(-length // 16))
        tokens = [16 * unit + k for unit in units for k in range(16)][:length]
        coarse.append(Request(str(number), Prompt(length, 16, units), output))
        fine.append(Request(str(number), Prompt(length, 1, tokens), output))
    engines = [
        ReplayedSglang(config(page_tokens=page, kv_tokens=kv_tokens // page * page))
        for _ in range(2)
    ]
    known, told = (
        [(o.hit_tokens, o.kv_hit_tokens, o.refused) for o in Replay(requests, engine)]
        for requests, engine in zip((coarse, fine), engines, strict=True)
    )
    assert known == told
    assert all(engine.exact_identity for engine in engines)


def test_a_request_larger_than_the_pool_is_refused_and_the_rest_go_on() -> None:
    requests = [single("big", list(range(500))), single("small", list(range(600, 700)))]
    big, small = Replay(requests, ReplayedSglang(config(kv_tokens=300)))
    assert big.refused == "it needs 508 KV tokens and the pool holds 300"
    assert small.refused is None


def test_losses_are_told_apart() -> None:
    first, second = sharing_a_system_prompt()[:2]
    others = [single(f"other {k}", [5000 * k + i for i in range(600)]) for k in (2, 3)]
    trace = [first, second, *others, first]
    done = list(Replay(trace, ReplayedSglang(config(kv_tokens=700))))
    assert done[1].ceiling_tokens == 200
    assert dict(done[1].lost) == {LossCause.NO_CHUNK_END: 200}
    assert dict(done[-1].lost) == {
        LossCause.LAST_TOKEN: 1,
        LossCause.EVICTED: 256,
        LossCause.NO_CHUNK_END: 43,
    }


def test_what_runs_at_the_same_time_is_not_computed_yet() -> None:
    requests = [single(str(k), list(range(100)), output_tokens=50) for k in range(2)]
    engine = ReplayedSglang(config(strategy="extra_buffer"))
    second = list(Replay(requests, engine, arrival=Closed(2)))[1]
    assert dict(second.lost) == {LossCause.LAST_TOKEN: 1, LossCause.NOT_COMPUTED_YET: 35}
    assert second.hit_tokens == 64


def test_use_adds_up() -> None:
    engine = ReplayedSglang(config())
    summary = simulate(sharing_a_system_prompt(), engine)
    use = summary.use
    assert (use.engine, use.num_blocks) == ("sglang 0.5.23 extra_buffer", 102_400)
    assert (use.states.kept, use.states.ever_hit) == (4, 1)
    assert use.cached_blocks == engine.cache.tree.tree_tokens
    kv, states = use.groups
    assert (kv.peak_blocks, states.peak_blocks) == (300 + 7, 3 + 1)
    assert summary.steps == 4 * 8
    assert summary.hit_tokens == 2 * 192


def test_host_tier_gives_back_what_the_device_evicted() -> None:
    system = sharing_a_system_prompt()
    others = [single(f"other {k}", [9000 * k + i for i in range(600)]) for k in (2, 3)]
    trace = [*system[:2], *others, system[2]]
    tight = {"kv_tokens": 700, "state_slots": 20}
    assert hits(trace, **tight)[-1] == 0
    assert hits(trace, **tight, host_kv_tokens=5000, host_state_slots=50)[-1] == 192


@pytest.mark.parametrize(
    "flags",
    [
        {"strategy": "auto"},
        {"strategy": "no_buffer", "page_tokens": 16},
        {"chunk_tokens": 64, "page_tokens": 48},
        {"page_tokens": 64, "chunked_prefill_tokens": 32},
        {"kv_tokens": 0},
        {"page_tokens": 16, "kv_tokens": 1000},
        {"track_interval_tokens": 0},
        {"max_states_per_path": 0},
        {"host_kv_tokens": 5},
    ],
    ids=lambda flags: "-".join(f"{key}={value}" for key, value in flags.items()),
)
def test_bad_flags_are_refused_with_their_numbers(flags: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refusal:
        config(**flags)
    assert str(next(reversed(flags.values()))) in refusal.value.sentence


def test_too_few_slots_for_one_request() -> None:
    with pytest.raises(InputError, match="4 state slots hold no request: extra_buffer may need 5"):
        ReplayedSglang(config(state_slots=4))


def test_no_room_to_run() -> None:
    with pytest.raises(InputError, match="max_running_requests is 0"):
        ReplayedSglang(config(), max_running_requests=0)


@pytest.mark.parametrize(
    "trace, words",
    [
        ({"config": {"mamba": 1}, "events": []}, "mamba are unknown"),
        ({"config": {"eviction_policy": "lfu"}, "events": []}, "'lfu' is not modelled"),
        ({"events": [{"op": "stop", "rid": "r"}]}, "'stop' of request r"),
    ],
    ids=["unknown-key", "other-eviction", "unknown-event"],
)
def test_scripted_traces_say_what_is_wrong(trace: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        list(ScriptedReplay(trace))
