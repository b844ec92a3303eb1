"""Rules that only logs of older engines and of Ascend's plug-in show."""

from __future__ import annotations

import pytest

from hybridplan.config.find import load
from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm.ascend import ascend_alignment
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.plan import plan_vllm

AMPLE_BYTES = 1 << 40


def test_mode_all_keeps_a_state_at_every_block_of_whole_chunks() -> None:
    spec = load("nemotron-nano-9b-v2")
    options = VllmOptions(max_model_len=8192, prefix_caching=True, state_chunk_tokens=256)
    plan = plan_vllm(spec, Deployment("vllm", "older"), options, AMPLE_BYTES)
    assert plan.block_tokens % 256 == 0
    assert set(plan.blocks_per_request) == {-(-8192 // plan.block_tokens)}


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_mode_all_is_gone(version: str) -> None:
    options = VllmOptions(max_model_len=8192, prefix_caching=True, state_chunk_tokens=256)
    with pytest.raises(RefusalError, match="state_chunk_tokens is 256"):
        plan_vllm(load("nemotron-nano-9b-v2"), Deployment("vllm", version), options, AMPLE_BYTES)


@pytest.mark.parametrize("width, groups", [(None, 4), (16, 4), (8, 8), (5, 14)])
def test_groups_of_a_given_width(width: int | None, groups: int) -> None:
    options = VllmOptions(max_model_len=8192, group_layers=width)
    plan = plan_vllm(load("qwen3.8-27b"), Deployment("vllm", "older"), options, AMPLE_BYTES)
    assert len(plan.groups) == groups
    held = [name for group in plan.groups for name in group.layers]
    assert sorted(held) == sorted(plan.layers)


def test_ascend_counts_the_state_over_keys_and_whole_kernel_blocks() -> None:
    found = ascend_alignment(load("qwen3.5-0.8b"), Deployment("vllm"), keys_only=True)
    assert (found.state_bytes, found.token_bytes, found.block_tokens) == (1_048_576, 1024, 1024)
    narrow = ascend_alignment(load("qwen3.5-0.8b"), Deployment("vllm", tp=2), keys_only=True)
    assert narrow.block_tokens % 128 == 0


def test_ascend_needs_states_and_heads() -> None:
    with pytest.raises(InputError, match="no recurrent state"):
        ascend_alignment(load("qwen3-8b"), Deployment("vllm"), keys_only=True)
