"""One pass gives every pool size's hits: checked against a replay of each size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.sim.replay import simulate
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.sweep.stack import is_stack, lru_curve
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup

BLOCK = 4


def pool(num_blocks: int, kind: GroupKind = GroupKind.FULL, **more: int) -> VllmCacheConfig:
    return VllmCacheConfig(
        groups=(VllmGroup(kind, BLOCK),),
        num_blocks=num_blocks,
        max_batched_tokens=16,
        max_model_len=60,
        async_depth=2,
        **more,
    )


@st.composite
def traces(draw: st.DrawFn) -> list[Request]:
    """Prompts that share prefixes of one of three texts and part anywhere."""
    made = []
    for number in range(draw(st.integers(1, 25))):
        text, shared = draw(st.integers(0, 2)), draw(st.integers(0, 24))
        own = draw(st.integers(0 if shared else 1, 9))
        ids = [1000 * text + at for at in range(shared)]
        ids += [10_000 + 100 * number + at for at in range(own)]
        made.append(Request(str(number), Prompt(len(ids), 1, tuple(ids)), draw(st.integers(0, 9))))
    return made


@settings(deadline=None, max_examples=150)
@given(traces())
def test_every_size_hits_what_its_replay_hits(requests: list[Request]) -> None:
    whole = pool(400)
    stack = lru_curve(requests, whole)
    if stack.twins:
        return
    for blocks in {stack.least_blocks, *range(stack.least_blocks, 60, 3), *stack.sizes}:
        if blocks < stack.least_blocks or blocks < 16:  # a pool below max_model_len is refused
            continue
        summary = simulate(requests, ReplayedVllm(pool(blocks), attribute_losses=False))
        assert stack.hit_tokens(blocks) == summary.hit_tokens, blocks
        assert stack.prompt_tokens == summary.prompt_tokens


def test_no_pool_of_states_is_a_stack() -> None:
    assert is_stack(pool(10, GroupKind.MLA))
    assert not is_stack(pool(10, draft_tokens=1))
    with pytest.raises(InputError, match="no stack"):
        lru_curve([], pool(10, draft_tokens=1))


def test_repeated_prompts_are_counted_as_twins() -> None:
    prompt = Prompt(8, 1, tuple(range(8)))
    stack = lru_curve([Request("a", prompt, 1), Request("b", prompt, 1)], pool(40))
    assert stack.twins == 1
    assert stack.hit_tokens(40) == 4
