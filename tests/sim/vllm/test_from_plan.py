"""A plan carried into the replay keeps the plan's own figures."""

from __future__ import annotations

import pytest

from hybridplan.config.find import load
from hybridplan.errors import InputError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.plan import plan_vllm
from hybridplan.sim.vllm.from_plan import cache_config
from hybridplan.sim.vllm.types import GroupKind

GIB = 2**30
CASES = {
    "one group": ("llama-3.1-8b", Deployment(), VllmOptions(max_model_len=32768)),
    "windows": ("gemma-3-27b-it", Deployment(), VllmOptions(max_model_len=32768)),
    "states": ("qwen3.8-27b", Deployment(), VllmOptions(max_model_len=65536)),
    "states and drafts": (
        "qwen3.8-27b",
        Deployment(drafts=2),
        VllmOptions(max_model_len=65536),
    ),
    "states, 0.32": (
        "qwen3.8-27b",
        Deployment(version="0.32", drafts=1),
        VllmOptions(max_model_len=65536),
    ),
    "finer hashes": (
        "qwen3.8-27b",
        Deployment(),
        VllmOptions(max_model_len=65536, prefix_match_unit=64),
    ),
    "no prefix caching": (
        "kimi-linear-48b-a3b-instruct",
        Deployment(tp=2),
        VllmOptions(max_model_len=65536, prefix_caching=False),
    ),
    "packed, with a ring": (
        "glm-5.3-flash",
        Deployment(tp=8, drafts=1),
        VllmOptions(max_model_len=65536),
    ),
}


@pytest.mark.parametrize("model, deployment, options", CASES.values(), ids=CASES.keys())
def test_the_replay_derives_the_plans_block_sizes(
    model: str, deployment: Deployment, options: VllmOptions
) -> None:
    plan = plan_vllm(load(model), deployment, options, 40 * GIB)
    cache = cache_config(plan, options)
    assert cache.num_blocks == plan.num_blocks
    assert cache.scheduler_block_tokens == plan.units.scheduler_tokens
    assert cache.hash_block_tokens == plan.units.hash_tokens
    assert cache.hit_alignment_tokens == plan.units.hit_alignment_tokens
    assert cache.split_block_tokens == plan.block_tokens
    assert cache.max_in_flight_tokens == plan.limits.in_flight_tokens
    assert [group.block_tokens for group in cache.groups] == [g.block_tokens for g in plan.groups]


def test_groups_of_equal_spec_share_an_id() -> None:
    options = VllmOptions(max_model_len=65536)
    plan = plan_vllm(load("glm-5.3-flash"), Deployment(tp=8), options, 40 * GIB)
    cache = cache_config(plan, options)
    kinds = [group.kind for group in cache.groups]
    assert kinds == [GroupKind.MAMBA_ALIGN] * 4 + [GroupKind.MLA, GroupKind.RING]
    assert len({group.spec_id for group in cache.groups[:4]}) == 1
    assert len({group.spec_id for group in cache.groups}) == 3


def test_versions_the_replay_does_not_know_are_refused() -> None:
    options = VllmOptions(max_model_len=65536)
    plan = plan_vllm(load("qwen3.8-27b"), Deployment(version="0.28.0"), options, 40 * GIB)
    with pytest.raises(InputError, match="not modelled"):
        cache_config(plan, options)
