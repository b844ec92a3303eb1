"""SGLang's plan of real models: the worked example, logged boots, and refusals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from hybridplan.config.find import load
from hybridplan.errors import InputError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.planning.sglang import chunked_prefill_tokens
from hybridplan.ledger.sglang.options import SglangOptions
from hybridplan.ledger.sglang.plan import SglangPlan, plan_sglang

GIB = 1024**3
NEXT = "qwen3-next-80b-a3b-instruct"


def plan(
    model: str, gib: int = 40, *, options: SglangOptions | None = None, **deployment: Any
) -> SglangPlan:
    chosen = options or SglangOptions()
    return plan_sglang(load(model), Deployment("sglang", **deployment), chosen, gib * GIB)


def test_worked_example_from_the_config() -> None:
    got = plan(NEXT)
    assert got.slot_bytes == 77_266_944
    assert got.kv_bytes_per_token == 24_576
    assert (got.split.slots, got.split.kv_tokens) == (262, 920_754)
    assert (got.strategy, got.split.max_running_requests) == ("extra_buffer", 52)
    assert got.boot_lines[0].startswith("Mamba Cache is allocated. max_mamba_cache_size: 262")


@pytest.mark.parametrize(
    "model, tokens",
    [
        (NEXT, 64),
        ("kimi-linear-48b-a3b", 64),
        ("nemotron-h-8b-base-8k", 128),
        ("nemotron-3-super-120b-a12b-nvfp4", 128),
        ("falcon-h1-7b-base", 128),
        ("granite-4.0-h-tiny", 256),
        ("lfm2-1.2b", 1),
    ],
)
def test_states_lie_on_the_models_own_chunk(model: str, tokens: int) -> None:
    """The numbers are ``mamba_chunk_size`` of SGLang 0.5.23's config classes for these files."""
    assert plan(model).checkpoint_grid_tokens == tokens


@pytest.mark.parametrize(
    "gpu, tokens",
    [(None, 8192), ("rtx4090", 4096), ("l40s", 4096), ("h100", 8192), ("h200", 8192),
     ("b200", 16384)],
)  # fmt: skip
def test_prefill_chunk_of_the_card(gpu: str | None, tokens: int) -> None:
    assert chunked_prefill_tokens(find_gpu(gpu) if gpu else None) == tokens


def test_replay_verify_from_the_config() -> None:
    got = plan(NEXT, options=SglangOptions(replay="verify", max_running_requests=48), drafts=3)
    assert got.split.slots == 253
    assert got.split.ring_bytes == 49 * 14_229_504
    assert got.split.intermediate_bytes == 0


def test_intermediates_are_charged_more_than_they_take() -> None:
    got = plan(NEXT, options=SglangOptions(max_running_requests=48), drafts=3)
    assert got.split.slots == 143
    rows = got.split.max_running_requests + 1
    strip = 36 * 8192 * 6 * 2
    assert got.intermediate_allocated_bytes == rows * (4 * 36 * 2 * 1024**2 + strip)
    assert got.intermediate_allocated_bytes < got.split.intermediate_bytes


def test_h20_one_slot_costs_2253_tokens() -> None:
    options = SglangOptions(slots=21, context_tokens=163_840)
    dtypes = {"tp": 2, "kv_dtype": "fp8_e4m3", "state_dtype": "bfloat16", "drafts": 3}
    got = plan("qwen3.8-27b", options=options, **dtypes)
    assert (got.slot_bytes, got.kv_bytes_per_token) == (39_223_296, 17_408)
    fewer = plan("qwen3.8-27b", options=SglangOptions(slots=10), **dtypes)
    assert round(got.slot_bytes / got.kv_bytes_per_token, 1) == 2253.2
    charged = got.split.intermediate_bytes - fewer.split.intermediate_bytes
    freed = 11 * got.slot_bytes + charged
    assert abs(fewer.split.kv_tokens - got.split.kv_tokens - freed // 17_408) <= 1


@pytest.mark.parametrize(
    "model,slots,asked,running",
    [
        pytest.param("qwen3.6-27b-nvfp4", 47, 32, 9, id="D05-sglang-38846"),
        pytest.param("qwen3.8-27b", 64, 16, 12, id="D06-DGX-Spark-7"),
        pytest.param("qwen3.8-27b", 33, 8, 6, id="D07-club-3090-1319-33"),
        pytest.param("qwen3.8-27b", 55, 8, 8, id="D07-club-3090-1319-55"),
        pytest.param("qwen3.8-27b", 21, 8, 4, id="D07-club-3090-1323-21"),
        pytest.param("qwen3.8-27b", 8, 8, 1, id="D07-club-3090-1323-8"),
    ],
)
def test_logged_clamps(model: str, slots: int, asked: int, running: int) -> None:
    got = plan(model, options=SglangOptions(slots=slots, max_running_requests=asked))
    assert got.split.max_running_requests == running
    assert bool(got.warnings[0].startswith(f"{asked} running requests")) == (running < asked)


def test_balanced_ratio_fills_both_pools() -> None:
    """At the balanced ratio, requests of the full context end with both pools full."""
    context = 32_768
    ratio = plan(NEXT, options=SglangOptions(context_tokens=context)).balanced_ratio
    got = plan(NEXT, options=SglangOptions(context_tokens=context, ratio=Fraction(ratio)))
    by_tokens = got.split.kv_tokens / context
    assert got.split.slots / got.slots_per_request == pytest.approx(by_tokens, rel=0.02)


def test_host_tier_and_pd_slots() -> None:
    options = SglangOptions(host_ratio=Fraction(2), preallocated_requests=8)
    got = plan(NEXT, options=options)
    assert got.host is not None
    assert got.host.slots == 2 * 262 + 1
    assert got.host.kv_tokens == 2 * 920_754
    assert got.pd_decode_slots == (52 + 8) * 3


def test_decode_ring_is_outside_the_split() -> None:
    got = plan(NEXT, options=SglangOptions(replay="decode"))
    assert got.strategy == "no_buffer"
    record = (32 * 128 + 16 * 128) * 4 + 32 * 4
    assert got.outside_bytes == {
        "decode rings of ReplaySSM": (got.split.slots + 1) * 16 * 36 * record
    }


@pytest.mark.parametrize(
    "model,options,message",
    [
        ("llama-3.1-8b", {}, "no recurrent state"),
        ("plamo-2-1b", {}, "windowed attention"),
        ("falcon-mamba-7b", {}, "no attention"),
        ("kimi-linear-48b-a3b-instruct", {"replay": "decode"}, "not KDA"),
        ("nemotron-nano-9b-v2", {"replay": "verify"}, "has none"),
    ],
)
def test_bad_input(model: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(model, options=SglangOptions(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": Fraction(0)},
        {"slots": 0},
        {"host_ratio": Fraction(2), "host_bytes": 1},
        {"replay": "decode", "strategy": "extra_buffer"},
    ],
)
def test_contradictory_options(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        SglangOptions(**options)


def test_a_latent_pool_is_logged_without_keys_and_values() -> None:
    """SGLang's MLATokenToKVPool has one buffer, and its line one size."""
    line = plan("kimi-linear-48b-a3b-instruct").boot_lines[1]
    assert "KV size:" in line
    assert "V size:" not in line.replace("KV size:", "")
    assert "K size:" in plan(NEXT).boot_lines[1]
