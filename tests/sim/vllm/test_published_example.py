"""The worked example of vLLM's hybrid cache, in our words: block 640, A of 2000 tokens, B and C
sharing its first 1300."""

from __future__ import annotations

import pytest

from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.vllm.engine import VllmEngine
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup

BLOCK = 640
SHARED = list(range(1_000_000, 1_001_300))


def _request(name: str, tail_seed: int, tail_tokens: int = 700) -> Request:
    tokens = SHARED + [tail_seed * 1_000_000 + i for i in range(tail_tokens)]
    return Request(name, Prompt(len(tokens), 1, tokens), output_tokens=2)


A, B, C = _request("A", 10), _request("B", 11), _request("C", 12)
A_AGAIN = _request("A again", 10)


def _config(
    kind: GroupKind = GroupKind.MAMBA_ALIGN,
    *,
    checkpoints: bool = False,
    unit: int | None = None,
    drop: bool = False,
    retention: int | None = 0,
) -> VllmCacheConfig:
    state = VllmGroup(
        kind,
        BLOCK,
        checkpoint_blocks=1 if checkpoints else 0,
        checkpoint_alignment_tokens=16 if checkpoints else None,
    )
    return VllmCacheConfig(
        groups=(state, state, VllmGroup(GroupKind.MLA, BLOCK)),
        num_blocks=200,
        prefix_match_unit_tokens=unit,
        drop_draft_block=drop,
        retention_interval_tokens=retention,
    )


def _hits(config: VllmCacheConfig, *requests: Request) -> list[int]:
    return [outcome.hit_tokens for outcome in Replay(requests, ReplayedVllm(config))]


def _chunk_ends(config: VllmCacheConfig, request: Request) -> list[int]:
    engine = VllmEngine(config)
    engine.add(request)
    ends = []
    while engine.unfinished:
        before = engine.scheduler.running[0].computed if engine.running else 0
        tokens, _ = engine.step()
        ends.append(before + tokens)
    return [end for end in ends if end <= request.prompt.length_tokens]


def test_prompt_stops_at_its_last_block_when_no_backend_exports_states() -> None:
    assert _chunk_ends(_config(), A) == [1920, 2000]


def test_prompt_is_one_chunk_when_the_backend_exports_the_state_inside() -> None:
    assert _chunk_ends(_config(checkpoints=True), A) == [2000]


@pytest.mark.parametrize("checkpoints", [False, True], ids=["stops", "internal-checkpoint"])
def test_third_sibling_hits_when_the_second_left_a_state_at_the_fork(checkpoints: bool) -> None:
    assert _hits(_config(checkpoints=checkpoints), A, B, C) == [0, 0, 1280]


def test_resend_hits_1984_when_the_match_unit_is_64() -> None:
    assert _hits(_config(unit=64), A, A_AGAIN) == [0, 1984]


def test_resend_hits_1920_when_drafts_drop_a_unit() -> None:
    assert _hits(_config(unit=64, drop=True), A, A_AGAIN) == [0, 1920]


def test_resend_of_an_exact_multiple_hits_one_block_less() -> None:
    exact = _request("exact", 10, tail_tokens=3 * BLOCK - 1300)
    again = _request("again", 10, tail_tokens=3 * BLOCK - 1300)
    assert _hits(_config(), exact, again) == [0, 2 * BLOCK]


def test_every_sibling_hits_when_the_removed_all_mode_keeps_a_state_per_block() -> None:
    assert _hits(_config(GroupKind.MAMBA_ALL), A, B, C) == [0, 1280, 1280]


def test_second_sibling_hits_nothing_when_chunk_ends_miss_the_fork_even_densely_kept() -> None:
    assert _hits(_config(retention=None), A, B, C) == [0, 0, 1280]
