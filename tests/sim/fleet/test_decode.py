"""A decode instance: what it computes and holds when prompts arrive computed."""

from __future__ import annotations

import pytest

from hybridplan.sim.fleet.decode import prefill_part, receiving
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup
from tests.sim.fleet.cases import BLOCK, config, request

SLIDING = VllmGroup(GroupKind.SLIDING, BLOCK, window_tokens=100, block_bytes=1000)


def decoder(cache: VllmCacheConfig) -> ReplayedVllm:
    return receiving(ReplayedVllm(cache, attribute_losses=False))


def run(engine: ReplayedVllm, requests: list[Request]) -> tuple[list[int], int]:
    """Tokens of each step, and how many requests ended."""
    engine.record_work()
    for one in requests:
        engine.add(one)
    tokens, ended = [], 0
    while engine.has_work:
        step, _, finished = engine.step()
        tokens.append(step)
        ended += len(finished)
        assert len(tokens) < 10_000
    return tokens, ended


def test_only_the_last_prompt_token_is_computed() -> None:
    tokens, ended = run(decoder(config(async_depth=1)), [request("a", (1, 2, 3, 4), 5)])
    assert tokens[:5] == [1, 1, 1, 1, 1]
    assert sum(tokens) == 5
    assert ended == 1


def test_the_first_pass_gives_the_first_token() -> None:
    engine = decoder(config())
    engine.record_work()
    order = engine.add(request("a", (1, 2, 3), 5))
    engine.step()
    (found,) = engine.passes()
    assert list(found.first) == [order]
    assert found.work.contexts == [3 * BLOCK + 1]


@pytest.mark.parametrize("kinds", [("full",), ("full", "state"), ("full", "sliding")], ids="+".join)
def test_blocks_are_those_of_a_prompt_computed_here(kinds: tuple[str, ...]) -> None:
    groups = {
        "full": VllmGroup(GroupKind.FULL, BLOCK),
        "state": VllmGroup(GroupKind.MAMBA_ALIGN, BLOCK),
        "sliding": SLIDING,
    }
    cache = VllmCacheConfig(groups=tuple(groups[kind] for kind in kinds), num_blocks=200)
    one = request("a", (1, 2, 3, 4, 5), 70)
    here, there = ReplayedVllm(cache, attribute_losses=False), decoder(cache)
    for engine in (here, there):
        engine.add(one)
        for _ in range(30):
            engine.step()
    assert there.engine.pool.used == here.engine.pool.used
    for engine in (here, there):
        while engine.has_work:
            engine.step()
        assert engine.engine.pool.used == [0] * len(kinds)


def test_nothing_is_shared_between_received_prompts() -> None:
    engine = decoder(config())
    for name in ("a", "b"):
        engine.add(request(name, (1, 2, 3), 9))
    engine.step()
    assert engine.engine.pool.used[0] == 8


def test_a_preempted_request_is_prefilled_here() -> None:
    engine = decoder(config(18, async_depth=1))
    tokens, ended = run(engine, [request(name, (1, 2), 200) for name in "abc"])
    assert ended == 3
    assert max(tokens) > BLOCK


def test_a_prefiller_leaves_the_last_token() -> None:
    part = prefill_part(request("a", (1, 2), 50))
    assert part is not None
    assert (part.prompt.length_tokens, part.output_tokens) == (2 * BLOCK, 1)
    assert prefill_part(Request("one", Prompt(1), 5)) is None
