"""recommend: what it says is replayed, can be started, and is worth it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hybridplan.errors import InputError
from hybridplan.sim.cell import run_cell
from hybridplan.sim.launch import launch_command
from hybridplan.sim.recommend import LEAST_GAIN, RecommendAsk, Recommended, recommend
from hybridplan.sim.settings import canonical

DATA = Path(__file__).parents[1] / "data" / "traces"
SETTINGS: dict[str, object] = {
    "trace": str(DATA / "lmcache_agent_derived.jsonl.gz"),
    "model": "qwen3.5-0.8b",
    "kv_memory": "4GiB",
    "limit": 80,
    "drop_empty": True,
}


@pytest.fixture(scope="module")
def found() -> dict[str, Recommended]:
    return {one.engine: one for one in recommend(RecommendAsk(SETTINGS)).engines}


@pytest.mark.parametrize("engine", ["vllm@0.33", "sglang:auto"])
def test_the_expectation_is_a_replay(found: dict[str, Recommended], engine: str) -> None:
    one = found[engine]
    assert one.best is not None
    assert one.default is not None
    assert one.best.row == run_cell(one.best.settings, bounds=True)
    assert one.best.row.hit_rate >= one.default.row.hit_rate + LEAST_GAIN
    assert one.best.concurrency >= one.default.concurrency // 2
    assert one.best.row.refused == one.default.row.refused


def test_every_change_stands_in_the_command(found: dict[str, Recommended]) -> None:
    one = found["vllm@0.33"]
    assert one.best is not None
    words = shlex.split(one.best.command)
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3.5-0.8B"]
    assert words[words.index("--kv-cache-memory-bytes") + 1] == str(4 << 30)
    assert one.changes
    for change in one.changes:
        flag = f"--{change.setting.replace('_', '-')}"
        value = words[words.index(flag) + 1]
        assert value.lower() == str(change.value)
        assert change.gain > 0


def test_a_search_over_a_head_is_confirmed_on_the_whole() -> None:
    result = recommend(RecommendAsk(SETTINGS, ("vllm",), searched=25))
    one = result.engines[0]
    assert not result.whole_trace_searched
    assert result.searched_requests == 25
    assert one.best is not None
    assert one.default is not None
    assert one.best.row.requests == one.default.row.requests == 80


def test_concurrency_limits_the_search() -> None:
    most = recommend(RecommendAsk({**SETTINGS, "limit": 30}, ("sglang",), concurrency=10**6))
    assert most.engines[0].changes == ()
    assert most.engines[0].best == most.engines[0].default


def test_an_engine_that_cannot_start_says_so() -> None:
    small = {**SETTINGS, "kv_memory": "1MiB", "limit": 10}
    one = recommend(RecommendAsk(small, ("vllm",))).engines[0]
    assert one.best is None
    assert "give it at least" in (one.refused or "")


def test_defaults_that_do_not_fit_are_shortened_to_the_trace() -> None:
    small = {**SETTINGS, "kv_memory": "2200MiB", "limit": 40}
    one = recommend(RecommendAsk(small, ("vllm",))).engines[0]
    assert one.default is None
    assert "--max-model-len" in (one.refused or "")
    assert one.best is not None
    assert "--max-model-len" in one.best.command


@pytest.mark.parametrize(
    "settings, command",
    [
        (
            {"engine": "vllm@0.33", "tp": 2, "drafts": 2, "state_dtype": "bfloat16"},
            "vllm serve moonshotai/Kimi-Linear-48B-A3B-Instruct --tensor-parallel-size 2"
            " --mamba-ssm-cache-dtype bfloat16 --enable-prefix-caching --speculative-config"
            ' \'{"method": "mtp", "num_speculative_tokens": 2}\'',
        ),
        (
            {"engine": "vllm", "prefix_caching": False, "retention": "none"},
            "vllm serve moonshotai/Kimi-Linear-48B-A3B-Instruct --no-enable-prefix-caching"
            " --prefix-cache-retention-interval None",
        ),
        (
            {"engine": "sglang:extra_buffer", "ratio": "0.3", "kv_dtype": "fp8", "tp": 4},
            "python -m sglang.launch_server --model-path moonshotai/Kimi-Linear-48B-A3B-Instruct"
            " --tp-size 4 --mamba-full-memory-ratio 0.3 --mamba-radix-cache-strategy extra_buffer"
            " --kv-cache-dtype fp8_e4m3",
        ),
    ],
    ids=["vllm", "vllm-off", "sglang"],
)
def test_commands(settings: dict[str, object], command: str) -> None:
    asked, _ = canonical({**settings, "model": "kimi-linear-48b-a3b"})
    assert launch_command(asked) == command


@pytest.mark.parametrize("engine", ["marconi:paper", "vllm:all"])
def test_policies_without_an_engine_have_no_command(engine: str) -> None:
    with pytest.raises(InputError, match="no engine starts"):
        launch_command(canonical({"engine": engine, "model": "qwen3.5-0.8b"})[0])
    with pytest.raises(InputError, match="no engine one can start"):
        recommend(RecommendAsk({**SETTINGS, "limit": 3}, (engine,)))


@pytest.mark.parametrize(
    "change, words",
    [({"kv_memory": None}, "needs a memory"), ({"engine": "vllm"}, "--engines")],
    ids=["memory", "engine"],
)
def test_what_cannot_be_recommended(change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        recommend(RecommendAsk({**SETTINGS, **change}))
