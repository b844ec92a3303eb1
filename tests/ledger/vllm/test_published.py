"""Figures of published models and of logged boots, through the plan alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridplan.config.find import load
from hybridplan.config.spec import Attention, Layer, Window
from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm.bootlog import boot_log
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm
from hybridplan.ledger.vllm.pool import DoesNotFitError
from hybridplan.ledger.vllm.rules import rules_of

GIB = 2**30


def plan(model: str, gib: float, /, version: str = "", **asked: object) -> PoolPlan:
    deployed = {
        key: asked.pop(key) for key in ("tp", "kv_dtype", "state_dtype", "drafts") if key in asked
    }
    deployment = Deployment(version=version, **deployed)
    return plan_vllm(load(model), deployment, VllmOptions(**asked), int(gib * GIB))


def test_deepseek_v32_keeps_latents_and_index_in_one_group() -> None:
    found = plan("deepseek-v3.2", 40, tp=8, max_model_len=65536)
    (group,) = found.groups
    pages = [cache.page_bytes for cache in group.caches]
    assert found.block_tokens == 64
    assert pages.count(73_728) == 61
    assert pages.count(8_448) == 61
    assert found.bytes_per_block == 4895.25 * 1024


def test_glm_53_flash_strides_hold_whole_kernel_blocks_and_rows() -> None:
    """Block b is indexer kernel blocks 1768 b ... 1768 b + 4 and latent rows from 7293 b."""
    found = plan("glm-5.3-flash", 40, tp=8, max_model_len=65536)
    keys = found.tensor_of(next(name for name in found.layers if name.endswith("k_cache")))
    latents = found.tensor_of(next(name for name in found.layers if name.endswith("attn.attn")))
    assert found.bytes_per_block == 7_468_032
    assert keys.kernel_blocks(3, 128) == range(3 * 1768, 3 * 1768 + 5)
    assert latents.kernel_blocks(3, 1) == range(3 * 7293, 3 * 7293 + 640)


def drafter(layers: int, window_tokens: int | None) -> tuple[Layer, ...]:
    window = None if window_tokens is None else Window("sliding", window_tokens)
    mixer = Attention(32, 8, 128, 128, window=window)
    return tuple(Layer(i, (mixer,), None) for i in range(layers))


LOGGED = {
    # id of the thread: model, GiB or bytes, what was asked; block, blocks, per request, tokens
    "B01": (
        ("qwen3.5-27b", 1487 * 16 * 3_211_264 / GIB),
        {"version": "0.19.0", "max_model_len": 32768, "prefix_caching": False},
        (784, 1487, 45, 290_864),
    ),
    "B02": (
        ("qwen3.8-27b", 4.99),
        {"version": "0.28.0", "tp": 2, "kv_dtype": "fp8", "max_model_len": 131072},
        (1568, 208, 90, 302_921),
    ),
    "B03": (
        ("qwen3.8-27b", 3.86),
        {"version": "0.23.1", "tp": 2, "max_model_len": 122633, "prefix_caching": False},
        (784, 161, 160, 123_399),
    ),
    "B09": (
        ("qwen3.5-35b-a3b", 6.01),
        {"version": "0.24.0", "kv_dtype": "fp8", "max_model_len": 131072},
        (2096, 300, 69, 569_878),
    ),
    "B10": (
        ("qwen3.8-27b", 5.33),
        {"version": "0.24.0", "tp": 2, "kv_dtype": "fp8", "drafts": 3, "max_model_len": 262144},
        (1600, 205, 179, 300_220),
    ),
    "H03": (
        ("qwen3.8-27b", 5.23),
        {
            "version": "0.24.0",
            "tp": 2,
            "kv_dtype": "int8_per_token_head",
            "drafts": 3,
            "max_model_len": 262144,
        },
        (1584, 200, 181, 289_661),
    ),
    "H09": (
        ("qwen3.8-27b", 11.15),
        {
            "version": "0.28.0",
            "tp": 2,
            "kv_dtype": "fp8",
            "drafts": 7,
            "max_model_len": 147456,
            "draft_method": "dflash",
            "draft_layers": drafter(5, 2048),
            "max_num_batched_tokens": 8192,
        },
        (1648, 1418, 463, 451_603),
    ),
    "H10": (
        ("qwen3.8-27b", 11.15),
        {
            "version": "0.28.0",
            "tp": 2,
            "drafts": 7,
            "max_model_len": 65536,
            "draft_method": "dflash",
            "draft_layers": drafter(5, 2048),
            "max_num_batched_tokens": 8192,
        },
        (832, 1405, 430, 214_135),
    ),
}


@pytest.mark.parametrize("model, asked, expected", LOGGED.values(), ids=LOGGED.keys())
def test_a_logged_pool_comes_out(
    model: tuple[str, float], asked: dict[str, object], expected: tuple[int, int, int, int]
) -> None:
    found = plan(*model, **asked)
    per_request = sum(found.blocks_per_request)
    assert (found.block_tokens, found.num_blocks, per_request, found.kv_tokens) == expected


def test_a_five_layer_drafter_cuts_every_group_to_five() -> None:
    model, asked, _ = LOGGED["H09"]
    found = plan(*model, **asked)
    assert [len(group.layers) for group in found.groups] == [5] * 8 + [4] * 2 + [4] * 4 + [5]
    assert sum(group.padding_layers for group in found.groups) == 4 + 2


REFUSED = {
    "the pool holds no block": (
        ("qwen3.8-27b", 0.001),
        {"max_model_len": 4096},
        "null block",
    ),
    "one request does not fit": (
        ("qwen3.8-27b", 4.0),
        {"max_model_len": 262144},
        "set --max-model-len",
    ),
    "longer than the model": (
        ("qwen3.8-27b", 40.0),
        {"max_model_len": 10**7},
        "made for 262144 tokens",
    ),
    "unit that divides no block": (
        ("qwen3.8-27b", 40.0),
        {"prefix_match_unit": 48, "max_model_len": 65536},
        "use a divisor of 832",
    ),
    "more requests than blocks": (
        ("qwen3.8-27b", 4.0),
        {"max_num_seqs": 256, "max_model_len": 8192},
        "set max_num_seqs to",
    ),
    "block that no kernel takes": (
        ("llama-3.1-8b", 40.0),
        {"block_tokens": 24, "max_model_len": 8192},
        "not 24",
    ),
    "sparse MLA on Ampere": (
        ("deepseek-v3.2", 40.0),
        {"tp": 8, "generation": "sm80", "max_model_len": 8192},
        "is not for sm80",
    ),
    "fp16 KV for a bf16 model": (
        ("llama-3.1-8b", 40.0),
        {"kv_dtype": "float16", "max_model_len": 8192},
        "use bfloat16 or fp8",
    ),
    "a budget below the block": (
        ("qwen3.5-35b-a3b", 40.0),
        {
            "version": "0.19.0",
            "kv_dtype": "fp8",
            "max_num_batched_tokens": 2048,
            "max_model_len": 65536,
        },
        "set it to 2096 or more",
    ),
}


@pytest.mark.parametrize("model, asked, says", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_engine_refuses_is_refused_with_a_way_out(
    model: tuple[str, float], asked: dict[str, object], says: str
) -> None:
    with pytest.raises(RefusalError, match=says):
        plan(*model, **asked)


def test_the_longest_length_in_a_refusal_fits_and_one_more_does_not() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        plan("qwen3.8-27b", 4.0, max_model_len=262144)
    longest = refused.value.longest_tokens
    assert plan("qwen3.8-27b", 4.0, max_model_len=longest).limits.max_model_len == longest
    with pytest.raises(DoesNotFitError):
        plan("qwen3.8-27b", 4.0, max_model_len=longest + 1)


def test_auto_fit_finds_the_same_length_as_the_refusal_names() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        plan("qwen3.8-27b", 4.0, max_model_len=262144)
    fitted = plan("qwen3.8-27b", 4.0, max_model_len=-1)
    assert fitted.limits.max_model_len == refused.value.longest_tokens
    assert fitted.longest_request(262144) == fitted.limits.max_model_len


def test_more_memory_never_lowers_what_fits() -> None:
    pools = [plan("qwen3.5-35b-a3b", gib, max_model_len=32768).num_blocks for gib in (8, 9, 10.5)]
    assert pools == sorted(pools)


def test_the_null_block_is_the_difference_between_all_and_usable_blocks() -> None:
    found = plan("qwen3.5-35b-a3b", 20, max_model_len=32768)
    assert found.usable_blocks == found.num_blocks - 1
    assert found.request_bytes(32768) == sum(found.blocks_per_request) * found.bytes_per_block
    assert all(size >= 0 for size in found.padding_bytes())


def test_old_logs_print_tokens_and_concurrency_apart() -> None:
    model, asked, _ = LOGGED["B01"]
    lines = boot_log(plan(*model, **asked))
    assert lines[-2:] == (
        "GPU KV cache size: 290,864 tokens",
        "Maximum concurrency for 32,768 tokens per request: 33.04x",
    )


def test_replayssm_adds_its_rings_to_the_state_and_keeps_no_draft_states() -> None:
    asked = {"max_model_len": 65536, "model_runner_v2": False}
    plain = plan("nemotron-3-nano-30b-a3b-bf16", 40, **asked)
    ring = plan("nemotron-3-nano-30b-a3b-bf16", 40, replayssm_tokens=16, **asked)
    heads, head_dim, groups, state = 64, 64, 8, 128
    added = 16 * (heads * head_dim * 2 + heads * 4 + groups * state * 2)
    assert ring.alignment is not None
    assert plain.alignment is not None
    assert ring.alignment.state_bytes - plain.alignment.state_bytes == added


VERSIONS = {
    "0.33.0": "0.33",
    "v0.32.1": "0.32",
    "0.28.1rc1.dev524": "older",
    "0.20.2rc1.dev9+gabc": "older",
    "0.20.1rc1.dev16": "oldest",
    "0.11.0": "oldest",
    "": "0.33",
}


@pytest.mark.parametrize("text, rules", VERSIONS.items(), ids=[v or "none" for v in VERSIONS])
def test_a_version_finds_its_rules(text: str, rules: str) -> None:
    assert rules_of(text).version == rules


@pytest.mark.parametrize("text", ["0.34.0", "1.0", "nightly"])
def test_an_unknown_version_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="not modelled"):
        rules_of(text)


def test_drafts_without_a_drafter_are_an_error() -> None:
    spec = replace(load("llama-3.1-8b"), draft_layers=())
    with pytest.raises(InputError, match="carries no MTP layers"):
        plan_vllm(spec, Deployment(drafts=2), VllmOptions(max_model_len=8192), 40 * GIB)
