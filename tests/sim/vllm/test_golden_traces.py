"""Every stored trace that vLLM's own scheduler answered, step by step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import traced_cases

GOLDEN = Path(__file__).parents[2] / "golden" / "vllm"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden_trace" not in metafunc.fixturenames:
        return
    folder = metafunc.config.getoption("--golden") or GOLDEN
    files = sorted(p for p in Path(folder).rglob("*.json") if _is_vllm_trace(p))
    metafunc.parametrize(
        "golden_trace", files, ids=[f"{p.parent.parent.name}-{p.stem}" for p in files]
    )


def _is_vllm_trace(path: Path) -> bool:
    head = path.read_text()[:4000]
    return '"kind": "traces"' in head or '"kind": "trace"' in head


def test_replay_agrees_step_by_step_when_vllm_answered_the_trace(golden_trace: Path) -> None:
    stored = traced_cases.load(golden_trace)
    result = stored["result"]
    config = traced_cases.config_of(stored["case"], result, result["vllm_version"][:4])
    ours = traced_cases.replay_case(stored["case"], config)
    assert traced_cases.differences(ours, result) == []


def test_block_sizes_follow_vllm_when_resolved_from_groups(golden_trace: Path) -> None:
    stored = traced_cases.load(golden_trace)
    resolved = stored["result"]["resolved"]
    config = traced_cases.config_of(
        stored["case"], stored["result"], stored["result"]["vllm_version"][:4]
    )
    assert config.scheduler_block_tokens == resolved["scheduler_block_size"]
    assert config.hash_block_tokens == resolved["hash_block_size"]
    assert config.split_block_tokens == resolved["cache_config_block_size"]
    assert config.partial_hits == resolved["enable_partial_hash_hits"]
    assert config.drop_draft_block == resolved["use_eagle_block_drop"]
    if config.prefix_caching and len(config.groups) > 1:
        assert {config.hit_alignment_tokens} == set(resolved["cache_hit_alignment_tokens"])
