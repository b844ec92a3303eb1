"""recommend: what it says is replayed, can be started, and is worth it."""

from __future__ import annotations

import shlex
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from hybridplan.errors import InputError
from hybridplan.report.recommend import screen
from hybridplan.sim.cell import run_cell
from hybridplan.sim.launch import launch_command, launch_flag
from hybridplan.sim.policies import Family
from hybridplan.sim.recommend import LEAST_GAIN, RecommendAsk, Recommended, recommend
from hybridplan.sim.settings import AXES, canonical

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
        value = words[words.index(change.flag) + 1]
        assert value.lower() == str(change.value)
        assert change.gain > 0
    steps = {change.setting: change.default for change in one.changes}
    assert steps["max_num_batched_tokens"] == 2048


def test_what_would_do_better_is_worded_as_the_server_takes_it(
    found: dict[str, Recommended],
) -> None:
    offers = [better.what for better in found["vllm@0.33"].better]
    assert "--mamba-ssm-cache-dtype bfloat16" in offers


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
            " --tp-size 4 --mamba-full-memory-ratio 0.3 --kv-cache-dtype fp8_e4m3"
            " --mamba-radix-cache-strategy extra_buffer",
        ),
        (
            {"engine": "vllm", "kv_dtype": "bf16", "num_blocks": 900, "watermark": 0.01},
            "vllm serve moonshotai/Kimi-Linear-48B-A3B-Instruct --num-gpu-blocks-override 900"
            " --watermark 0.01 --kv-cache-dtype bfloat16 --enable-prefix-caching",
        ),
        (
            {"engine": "sglang", "drafts": 3, "state_dtype": "bf16", "conv_dtype": "float32"},
            "env SGLANG_MAMBA_CONV_DTYPE=float32 python -m sglang.launch_server --model-path"
            " moonshotai/Kimi-Linear-48B-A3B-Instruct --mamba-ssm-dtype bfloat16"
            " --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1"
            " --speculative-num-draft-tokens 4",
        ),
        (
            {"engine": "sglang", "hicache_size": "64GB", "mamba_max_states_per_path": 4},
            "python -m sglang.launch_server --model-path moonshotai/Kimi-Linear-48B-A3B-Instruct"
            " --mamba-max-states-per-path 4 --hicache-size 64 --enable-hierarchical-cache",
        ),
    ],
    ids=["vllm", "vllm-off", "sglang", "vllm-pool", "sglang-drafts", "sglang-host"],
)
def test_commands(settings: dict[str, object], command: str) -> None:
    asked, _ = canonical({**settings, "model": "kimi-linear-48b-a3b"})
    assert launch_command(asked) == command


OF_THE_TRACE = tuple(AXES)[tuple(AXES).index("arrival") :]
NO_FLAG = {"trace", "model", "engine", "gpu", "weights_memory", "accepted_drafts", *OF_THE_TRACE}


@pytest.mark.parametrize("family", ["vllm", "sglang"])
def test_no_setting_of_an_engine_is_lost_on_the_way_to_its_command(family: Family) -> None:
    own = {name for name, axis in AXES.items() if family in axis.families} - NO_FLAG
    lost = {name for name in own if launch_flag(family, name) is None}
    by_other_means = {"sglang": {"kv_memory", "conv_dtype"}, "vllm": set()}
    assert lost == by_other_means[family]


def test_what_is_given_is_not_moved() -> None:
    given = {**SETTINGS, "limit": 30, "chunked_prefill_size": 8192, "ratio": "0.9"}
    one = recommend(RecommendAsk(given, ("sglang:no_buffer",))).engines[0]
    assert one.best is not None
    assert one.best.settings["engine"] == "sglang:no_buffer"
    assert one.best.settings["chunked_prefill_size"] == 8192
    assert one.changes == ()
    long = {**SETTINGS, "limit": 30, "kv_memory": "2200MiB", "max_model_len": 262144}
    refused = recommend(RecommendAsk(long, ("vllm",))).engines[0]
    assert refused.best is None
    assert "262,144" in (refused.refused or "")


def test_a_small_pool_starts_with_fewer_sequences() -> None:
    small = {**SETTINGS, "limit": 30, "kv_memory": "1GiB"}
    one = recommend(RecommendAsk(small, ("vllm",))).engines[0]
    assert one.default is None
    assert one.best is not None
    assert "--max-num-seqs 128" in one.best.command


def test_the_screen_counts_requests_that_are_refused_and_names_real_flags() -> None:
    settings = {**SETTINGS, "limit": 80, "model": "nemotron-h-8b-base-8k", "kv_memory": "3GiB"}
    result = recommend(RecommendAsk(settings, ("vllm", "sglang")))
    rates = {
        one.best.row.ceiling_tokens / one.best.row.prompt_tokens
        for one in result.engines
        if one.best is not None and one.best.row.ceiling_tokens is not None
    }
    assert len(rates) == 1, "both engines serve the same requests"
    console = Console(width=160, record=True, file=StringIO())
    console.print(*screen(result))
    shown, _, _ = console.export_text().partition("Assumed")
    assert "3 of 80 requests are refused" in shown
    for own_name in ("--kv-dtype", "--state-dtype", "_size ", "_unit ", "_interval "):
        assert own_name not in shown


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
