"""Every way published configs say which layer is what; two that disagree are an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridplan.config.spec import Mixer, ModelSpec
from hybridplan.errors import ConfigError
from hybridplan.ledger.pattern import layer_pattern

Published = Callable[[str], dict[str, Any]]
Changed = Callable[..., dict[str, Any]]
Read = Callable[[dict[str, Any]], ModelSpec]
DROP = "<drop>"


def mixers(spec: ModelSpec, kind: str) -> list[Mixer]:
    return [m for layer in spec.layers for m in layer.mixers if m.kind == kind]


# (model, changes, expected pattern or None for "as published")
PATTERNS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "interval alone": ("qwen3.5-0.8b", {"layer_types": DROP}, None),
    "layer_types alone": ("qwen3.5-0.8b", {"full_attention_interval": DROP}, None),
    "interval of 3": (
        "qwen3.5-0.8b",
        {"layer_types": DROP, "full_attention_interval": 3},
        "LLF x 8",
    ),
    "attention by another word": (
        "granite-4.0-h-tiny",
        {"layer_types": (["mamba"] * 5 + ["full_attention"] + ["mamba"] * 4) * 4},
        None,
    ),
    "granite's older key": (
        "granite-4.0-h-tiny",
        {
            "layer_types": DROP,
            "layers_block_type": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
        },
        None,
    ),
    "pattern string with stages and drafts": (
        "nemotron-nano-9b-v2",
        {"hybrid_override_pattern": "M-M-|*-M-/*E", "num_hidden_layers": 8},
        "M-M-F-M-",
    ),
    "words for a pattern string": (
        "nemotron-nano-9b-v2",
        {
            "hybrid_override_pattern": DROP,
            "layers_block_type": ["mamba", "mlp", "attention", "mlp"],
            "num_hidden_layers": DROP,
        },
        "M-F-",
    ),
    "both, agreeing": (
        "nemotron-nano-9b-v2",
        {
            "hybrid_override_pattern": "M-*-",
            "layers_block_type": ["mamba", "mlp", "attention", "mlp"],
            "num_hidden_layers": 4,
        },
        "M-F-",
    ),
    "jamba offset": ("jamba-v0.1", {"attn_layer_offset": 0}, "FMMMMMMM x 4"),
    "bamba without attention": ("bamba-9b", {"attn_layer_indices": None}, "M x 32"),
    "lightning by words": (
        "minimax-m1",
        {
            "model_type": "minimax",
            "architectures": ["MiniMaxForCausalLM"],
            "attn_type_list": DROP,
            "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10,
        },
        None,
    ),
    "kimi counted from 0": (
        "kimi-linear-48b-a3b-instruct",
        {
            "linear_attn_config": {
                "kda_layers": [i for i in range(27) if i % 4 != 3 and i != 26],
                "full_attn_layers": [3, 7, 11, 15, 19, 23, 26],
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            }
        },
        None,
    ),
    "kimi with layer_types that agree": (
        "kimi-linear-48b-a3b-instruct",
        {
            "layer_types": [
                "full_attention" if i % 4 == 3 or i == 26 else "linear_attention" for i in range(27)
            ]
        },
        None,
    ),
    "glm by transformers' word": (
        "glm-5.3-flash",
        {
            "layer_types": [
                "indexed_attention" if i % 4 == 3 else "linear_attention" for i in range(45)
            ]
        },
        None,
    ),
    "tail that fills no group": (
        "ring-mini-linear-2.0",
        {"num_hidden_layers": 18},
        "LLLLF x 3 + FFF",
    ),
    "lfm by indices": (
        "lfm2-1.2b",
        {"layer_types": DROP, "full_attn_idxs": [2, 5, 8, 10, 12, 14]},
        None,
    ),
    "lfm by both": ("lfm2-1.2b", {"full_attn_idxs": [2, 5, 8, 10, 12, 14]}, None),
    "cycle under its private name": (
        "recurrentgemma-2b",
        {"block_types": DROP, "_block_types": ["recurrent", "recurrent", "attention"]},
        None,
    ),
    "plamo without mamba": ("plamo-2-1b", {"mamba_enabled": False}, "S x 16"),
    "plamo with full layers": (
        "plamo-2-1b",
        {"full_attention_idx": [1, 3]},
        "MFMFMSMSMSMSMSMS",
    ),
    "plamo shorter than half a step": (
        "plamo-2-1b",
        {"num_hidden_layers": 4, "mamba_step": 8},
        "MMMS",
    ),
    "zamba by indices": ("zamba2-2.7b", {"layers_block_type": DROP}, None),
    "zamba by v5 words": (
        "zamba2-2.7b",
        {
            "layers_block_type": DROP,
            "layer_types": [
                "full_attention" if i in (6, 12, 18, 24, 30, 36, 42, 47, 51) else "linear_attention"
                for i in range(54)
            ],
        },
        None,
    ),
    "mimo by words": (
        "mimo-v2-flash",
        {
            "hybrid_layer_pattern": DROP,
            "layer_types": [
                "full_attention" if i == 0 or i % 6 == 5 else "sliding_attention" for i in range(48)
            ],
        },
        None,
    ),
    "gemma by words": (
        "gemma-3-27b-it",
        {
            "sliding_window_pattern": DROP,
            "layer_types": [
                "full_attention" if i % 6 == 5 else "sliding_attention" for i in range(62)
            ],
        },
        None,
    ),
    "window switched off": ("qwen3-8b", {"sliding_window": 4096}, "F x 36"),
    "window switched on": (
        "qwen3-8b",
        {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 34},
        "F x 34 + SS",
    ),
    "mistral's window": (
        "mistral-small-3.2-24b-instruct",
        {"sliding_window": 4096},
        "S x 40",
    ),
    "lists as long as the drafts": (
        "step-3.7-flash",
        {
            "layer_types": ["sliding_attention" if i % 4 else "full_attention" for i in range(45)]
            + ["sliding_attention"] * 3
        },
        None,
    ),
    "deepseek-v4 by words": (
        "deepseek-v4-flash",
        {
            "compress_ratios": DROP,
            "layer_types": ["sliding_attention"] * 2
            + ["compressed_sparse_attention", "heavily_compressed_attention"] * 20
            + ["compressed_sparse_attention"],
            "compress_rates": {
                "compressed_sparse_attention": 4,
                "heavily_compressed_attention": 128,
            },
        },
        None,
    ),
}


@pytest.mark.parametrize("case", PATTERNS)
def test_layer_lists(case: str, published: Published, changed: Changed, read: Read) -> None:
    name, changes, expected = PATTERNS[case]
    original = read(published(name))
    spec = read(changed(name, **changes))
    assert layer_pattern(spec.layers) == (expected or layer_pattern(original.layers))
    if expected is None:
        assert [layer.mixers for layer in spec.layers] == [
            layer.mixers for layer in original.layers
        ]


DISAGREE: dict[str, tuple[str, dict[str, Any], tuple[str, str]]] = {
    "interval": (
        "qwen3.5-0.8b",
        {"full_attention_interval": 3},
        ("layer_types", "full_attention_interval"),
    ),
    "pattern and words": (
        "nemotron-nano-9b-v2",
        {
            "hybrid_override_pattern": "M-*-",
            "layers_block_type": ["mamba", "mlp", "mamba", "mlp"],
            "num_hidden_layers": 4,
        },
        ("hybrid_override_pattern", "layers_block_type"),
    ),
    "kimi's off-by-one defaults": (
        "kimi-linear-48b-a3b-instruct",
        {
            "layer_types": [
                "full_attention" if i % 4 == 0 else "linear_attention" for i in range(27)
            ]
        },
        ("layer_types", "linear_attn_config.kda_layers"),
    ),
    "lfm": ("lfm2-1.2b", {"full_attn_idxs": [0]}, ("layer_types", "full_attn_idxs")),
    "zamba": ("zamba2-2.7b", {"hybrid_layer_ids": [1]}, ("layers_block_type", "hybrid_layer_ids")),
    "gemma": (
        "gemma-3-27b-it",
        {"layer_types": ["full_attention"] * 62},
        ("layer_types", "sliding_window_pattern"),
    ),
    "mimo": (
        "mimo-v2-flash",
        {"layer_types": ["full_attention"] * 48},
        ("layer_types", "hybrid_layer_pattern"),
    ),
    "lightning": (
        "minimax-m1",
        {"layer_types": ["linear_attention"] * 80},
        ("layer_types", "attn_type_list"),
    ),
    "groups": (
        "ling-3.0-flash",
        {"layer_types": ["linear_attention"] * 42},
        ("layer_types", "layer_group_size"),
    ),
    "experts": (
        "glm-5.3",
        {"first_k_dense_replace": 4},
        ("mlp_layer_types", "first_k_dense_replace"),
    ),
    "indexers": ("glm-5.3", {"index_topk_freq": 2}, ("indexer_types", "index_topk_freq")),
    "one number under two names": (
        "gpt-oss-20b",
        {"experts_per_token": 2},
        ("num_experts_per_tok", "experts_per_token"),
    ),
    "inner width": ("falcon-h1-3b-base", {"mamba_d_ssm": 5120}, ("mamba_n_heads", "mamba_d_ssm")),
    "jamba": (
        "jamba-v0.1",
        {"layers_block_type": ["mamba"] * 32},
        ("layers_block_type", "attn_layer_period"),
    ),
    "compressed layers": (
        "deepseek-v4-flash",
        {"layer_types": ["sliding_attention"] * 43},
        ("layer_types", "compress_ratios"),
    ),
}


@pytest.mark.parametrize("case", DISAGREE)
def test_two_sources_that_disagree(case: str, changed: Changed, read: Read) -> None:
    name, changes, keys = DISAGREE[case]
    with pytest.raises(ConfigError) as caught:
        read(changed(name, **changes))
    for key in keys:
        assert key in caught.value.sentence


UNKNOWN_WORDS = {
    "qwen3.5-0.8b": "layer_types",
    "granite-4.0-h-tiny": "layer_types",
    "nemotron-3-ultra-550b-a55b-bf16": "layers_block_type",
    "zamba2-2.7b": "layers_block_type",
    "lfm2-1.2b": "layer_types",
    "recurrentgemma-2b": "block_types",
    "gemma-4-26b-a4b": "layer_types",
    "glm-5.3-flash": "layer_types",
}


@pytest.mark.parametrize("name", UNKNOWN_WORDS)
@pytest.mark.parametrize("word", ["attention_linear", "Full_Attention", "xlstm", ""])
def test_an_unknown_layer_is_never_attention(
    name: str, word: str, published: Published, read: Read
) -> None:
    data = published(name)
    data.get("text_config", data)[UNKNOWN_WORDS[name]][1] = word
    with pytest.raises(ConfigError, match=f'{UNKNOWN_WORDS[name]} calls layer 1 "{word}"'):
        read(data)


def test_unknown_pattern_letter(changed: Changed, read: Read) -> None:
    data = changed("nemotron-nano-9b-v2", hybrid_override_pattern="MX*-", num_hidden_layers=4)
    with pytest.raises(ConfigError, match='holds "X"'):
        read(data)


def test_megatron_letters_read_the_shapes_they_name(
    published: Published, changed: Changed, read: Read
) -> None:
    gdn = published("qwen3.5-0.8b")["text_config"]
    linear = {key: value for key, value in gdn.items() if key.startswith("linear_")}
    mla = {
        key: published("deepseek-v3.2")[key]
        for key in (
            "kv_lora_rank",
            "q_lora_rank",
            "qk_rope_head_dim",
            "qk_nope_head_dim",
            "v_head_dim",
            "index_head_dim",
            "index_n_heads",
        )
    }
    data = changed(
        "nemotron-nano-9b-v2",
        hybrid_override_pattern="G-+-D-",
        num_hidden_layers=6,
        **linear,
        **mla,
    )
    spec = read(data)
    assert [layer.mixers[0].kind for layer in spec.layers if layer.mixers] == ["gdn", "mla", "mla"]
    assert [m.indexer is not None for m in mixers(spec, "mla")] == [False, True]
