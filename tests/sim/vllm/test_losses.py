"""One hand-made trace per cause of loss; the amounts follow from block 64 and the prompts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hybridplan.sim.arrival import Closed
from hybridplan.sim.outcome import LossCause, RequestOutcome
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup

BLOCK = 64
FULL = VllmGroup(GroupKind.FULL, BLOCK)
STATE = VllmGroup(GroupKind.MAMBA_ALIGN, BLOCK, block_bytes=1000)
WINDOW = VllmGroup(GroupKind.SLIDING, BLOCK, window_tokens=100)


def _request(name: str, *parts: tuple[int, int], output: int = 1) -> Request:
    tokens = [seed * 1_000_000 + i for seed, count in parts for i in range(count)]
    return Request(name, Prompt(len(tokens), 1, tokens), output_tokens=output)


def _replay(
    groups: Sequence[VllmGroup],
    requests: Sequence[Request],
    *,
    in_flight: int = 1,
    **limits: object,
) -> list[RequestOutcome]:
    config = VllmCacheConfig(
        groups=tuple(groups),
        num_blocks=int(str(limits.pop("num_blocks", 500))),
        **limits,  # type: ignore[arg-type]
    )
    outcomes = list(Replay(requests, ReplayedVllm(config), arrival=Closed(in_flight)))
    by_name = {outcome.request_id: outcome for outcome in outcomes}
    return [by_name[request.request_id] for request in requests]


def _lost(outcome: RequestOutcome) -> dict[LossCause, int]:
    return dict(outcome.lost)


def test_last_token_costs_a_block_when_the_prompt_is_a_multiple() -> None:
    _, again = _replay([FULL], [_request("a", (1, 128)), _request("b", (1, 128))])
    assert (again.ceiling_tokens, again.hit_tokens) == (128, 64)
    assert _lost(again) == {LossCause.LAST_TOKEN: 64}


def test_last_token_and_tail_are_apart_when_the_prompt_ends_inside_a_block() -> None:
    _, again = _replay([FULL], [_request("a", (1, 150)), _request("b", (1, 150))])
    assert _lost(again) == {LossCause.LAST_TOKEN: 1, LossCause.BELOW_ONE_BLOCK: 21}


def test_fork_inside_a_block_loses_its_shared_part() -> None:
    _, fork = _replay([FULL], [_request("a", (1, 100), (2, 60)), _request("b", (1, 100), (3, 60))])
    assert (fork.ceiling_tokens, fork.hit_tokens) == (100, 64)
    assert _lost(fork) == {LossCause.FORK_INSIDE_BLOCK: 36}


def test_shared_prefix_below_one_block_is_named_so() -> None:
    _, fork = _replay([FULL], [_request("a", (1, 40), (2, 90)), _request("b", (1, 40), (3, 90))])
    assert _lost(fork) == {LossCause.BELOW_ONE_BLOCK: 40}


def test_eviction_is_named_when_the_pool_was_reused() -> None:
    between = [_request(f"x{i}", (10 + i, 300)) for i in range(5)]
    *_, again = _replay(
        [FULL], [_request("a", (1, 200)), *between, _request("b", (1, 200))], num_blocks=12
    )
    assert again.hit_tokens == 0
    assert _lost(again)[LossCause.EVICTED] == 192


def test_no_chunk_end_is_named_when_the_fork_had_no_state() -> None:
    outcomes = _replay(
        [FULL, STATE], [_request(n, (1, 300), (s, 200)) for n, s in (("a", 2), ("b", 3), ("c", 4))]
    )
    assert [o.hit_tokens for o in outcomes] == [0, 0, 256]
    assert _lost(outcomes[1]) == {LossCause.FORK_INSIDE_BLOCK: 44, LossCause.NO_CHUNK_END: 256}
    assert outcomes[1].junction_tokens == 256
    assert outcomes[1].kv_hit_tokens == 256


def test_retention_is_named_when_a_chunk_end_was_not_kept() -> None:
    """The budget ends A's first chunk at 256; with interval 0 that state is not published."""
    a, b = _request("a", (1, 300), (2, 300)), _request("b", (1, 256), (3, 300))
    _, sparse = _replay([FULL, STATE], [a, b], max_batched_tokens=256)
    assert _lost(sparse) == {LossCause.NOT_RETAINED: 256}
    _, dense = _replay(
        [FULL, STATE], [a, b], max_batched_tokens=256, retention_interval_tokens=None
    )
    assert dense.hit_tokens == 256
    assert _lost(dense) == {}


def test_decode_state_is_named_when_a_turn_extends_the_answer() -> None:
    """The answer crosses token 192; its state is dropped, so turn 2 resumes at the prompt's end."""
    prompt = [1_000_000 + i for i in range(140)]
    answer = [2_000_000 + i for i in range(100)]
    first = Request(
        "turn 1",
        Prompt(140, 1, prompt),
        100,
        sequence=Prompt(240, 1, prompt + answer),
    )
    second = Request("turn 2", Prompt(300, 1, prompt + answer + list(range(60))), 1)
    _, turn = _replay([FULL, STATE], [first, second])
    assert turn.hit_tokens == 128
    assert _lost(turn)[LossCause.DECODE_STATE] == 64


def test_window_is_named_when_a_sliding_group_kept_only_the_end() -> None:
    outcomes = _replay(
        [FULL, WINDOW], [_request(n, (1, 320), (s, 320)) for n, s in zip("ab", (2, 3), strict=True)]
    )
    assert outcomes[1].hit_tokens == 0
    assert set(_lost(outcomes[1])) <= {LossCause.OUT_OF_WINDOW, LossCause.NOT_RETAINED}


def test_lookahead_hash_is_a_draft_loss() -> None:
    _, fork = _replay(
        [FULL],
        [_request("a", (1, 128), (2, 60)), _request("b", (1, 128), (3, 60))],
        hash_lookahead_tokens=1,
    )
    assert _lost(fork) == {LossCause.DRAFT_DROP: 64}


def test_dropped_block_is_a_draft_loss() -> None:
    _, fork = _replay(
        [FULL],
        [_request("a", (1, 200), (2, 60)), _request("b", (1, 200), (3, 60))],
        drop_draft_block=True,
    )
    assert fork.hit_tokens == 128
    assert _lost(fork) == {LossCause.FORK_INSIDE_BLOCK: 8, LossCause.DRAFT_DROP: 64}


def test_sibling_in_the_same_step_loses_what_is_not_computed_yet() -> None:
    """A computes 96 tokens in the step in which B looks: one block of B's three is there."""
    _, second = _replay(
        [FULL],
        [_request("a", (1, 256), output=4), _request("b", (1, 256), output=4)],
        in_flight=2,
        max_batched_tokens=300,
        long_prefill_threshold_tokens=96,
    )
    assert second.hit_tokens == 64
    assert _lost(second) == {LossCause.NOT_COMPUTED_YET: 128, LossCause.LAST_TOKEN: 64}


def test_everything_is_lost_to_a_cache_that_is_off() -> None:
    _, again = _replay(
        [FULL], [_request("a", (1, 150)), _request("b", (1, 150))], prefix_caching=False
    )
    assert _lost(again) == {LossCause.OUTSIDE_CACHE: 150}


@pytest.mark.parametrize("cause", list(LossCause), ids=lambda cause: cause.value)
def test_every_cause_has_a_sentence(cause: LossCause) -> None:
    assert cause.sentence
