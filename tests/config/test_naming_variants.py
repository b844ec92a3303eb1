"""Every way published configs spell the same size: shipped configs, a few keys changed."""

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


PLACES = {
    "flattened": lambda text: dict(text),
    "llm_config": lambda text: {"model_type": "internvl_chat", "llm_config": text},
    "language_config": lambda text: {"model_type": "deepseek_vl", "language_config": text},
    "thinker_config": lambda text: {
        "model_type": "qwen_omni",
        "thinker_config": {"text_config": text},
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_where_the_text_config_sits(place: str, published: Published, read: Read) -> None:
    text = published("qwen3.5-0.8b")["text_config"]
    assert read(PLACES[place](text)).layers == read(published("qwen3.5-0.8b")).layers


def test_sizes_given_twice_must_agree(published: Published, read: Read) -> None:
    data = published("qwen3.5-0.8b") | {"num_hidden_layers": 23}
    with pytest.raises(ConfigError, match=r"num_hidden_layers.*text_config\.num_hidden_layers"):
        read(data)


def test_architecture_alone_names_the_family(changed: Changed, read: Read) -> None:
    data = changed("llama-3.1-8b", model_type=DROP)
    assert read(data).model_type == "llama"


MISSING = {
    "qwen3-next-80b-a3b-instruct": ["full_attention_interval", "linear_num_value_heads"],
    "kimi-linear-48b-a3b-instruct": ["kv_lora_rank", "qk_rope_head_dim", "linear_attn_config"],
    "glm-5.3-flash": ["index_kpool", "index_head_dim"],
    "nemotron-h-8b-base-8k": ["attention_head_dim", "mamba_num_heads", "ssm_state_size"],
    "bamba-9b": ["mamba_d_state", "attn_layer_indices", "num_key_value_heads"],
    "zamba2-2.7b": ["n_mamba_heads", "num_mem_blocks", "mamba_d_state"],
    "jamba-v0.1": ["attn_layer_period", "mamba_d_state", "mamba_expand"],
    "minimax-m1": ["attn_type_list", "num_key_value_heads"],
    "falcon-mamba-7b": ["intermediate_size", "state_size"],
    "lfm2-1.2b": ["layer_types", "conv_L_cache"],
    "plamo-2-1b": ["attention_window_size", "mamba_enabled", "hidden_size_per_head"],
    "recurrentgemma-2b": ["block_types", "lru_width", "attention_window_size"],
    "hymba-1.5b-base": ["global_attn_idx", "kv_reuse_group", "num_memory_tokens"],
    "gemma-3-27b-it": ["sliding_window", "sliding_window_pattern", "head_dim"],
    "gemma-4-26b-a4b": ["global_head_dim", "num_kv_shared_layers", "layer_types"],
    "mimo-v2-flash": ["swa_v_head_dim", "v_head_dim", "hybrid_layer_pattern"],
    "deepseek-v4-flash": ["sliding_window", "compress_ratios", "index_head_dim"],
    "gpt-oss-20b": ["sliding_window", "layer_types", "head_dim"],
    "ring-mini-linear-2.0": ["layer_group_size"],
}


@pytest.mark.parametrize(
    "name, key", [(name, key) for name, keys in MISSING.items() for key in keys]
)
def test_a_missing_key_that_decides_memory_is_named(
    name: str, key: str, changed: Changed, read: Read
) -> None:
    data = changed(name, **{key: DROP})
    if key in ("sliding_window", "intermediate_size"):
        data.get("text_config", data).pop("sliding_window_size", None)
    with pytest.raises(ConfigError, match=key):
        read(data)


def test_compress_ratios_may_cover_the_drafts(
    published: Published, changed: Changed, read: Read
) -> None:
    data = published("deepseek-v4-flash")
    longer = data["compress_ratios"]
    assert len(longer) == data["num_hidden_layers"] + 1
    shorter = changed("deepseek-v4-flash", compress_ratios=longer[:43])
    assert read(shorter).layers == read(data).layers


def test_only_source_layers_own_compressed_kv(published: Published, read: Read) -> None:
    spec = read(published("deepseek-v4.1-flash"))
    own = [m.kv_owned and m.compress_ratio > 0 for m in mixers(spec, "compressed")]
    assert [i for i, yes in enumerate(own) if yes] == [2, 8, 14, 20]
    index = [m.indexer is not None and m.indexer.owned for m in mixers(spec, "compressed")]
    assert [i for i, yes in enumerate(index) if yes] == [2, 8, 14, 20, 24, 28, 32, 36]


def test_only_full_indexers_own_keys(published: Published, changed: Changed, read: Read) -> None:
    owned = [m.indexer.owned for m in mixers(read(published("glm-5.3")), "mla")]
    assert owned[:7] == [True, True, True, False, False, False, True]
    by_rule = read(changed("glm-5.3", indexer_types=DROP))
    assert [m.indexer.owned for m in mixers(by_rule, "mla")] == owned
    letters = "".join("F" if yes else "S" for yes in owned)
    by_letters = changed(
        "glm-5.3", indexer_types=DROP, index_topk_freq=DROP, index_topk_pattern=letters
    )
    assert [m.indexer.owned for m in mixers(read(by_letters), "mla")] == owned
    hy4 = [m.indexer.owned for m in mixers(read(published("hy4-preview")), "mla")]
    assert sum(hy4) == 21


def test_last_layers_read_kv_of_their_own_kind(changed: Changed, read: Read) -> None:
    data = changed("gemma-4-26b-a4b", num_kv_shared_layers=7)
    spec = read(data)
    sources = [m.kv_source_layer for m in mixers(spec, "attention")]
    assert sources[:23] == [None] * 23
    assert sources[23:] == [17, *[22] * 5, 17]


def test_the_global_heads_of_gemma4(published: Published, read: Read) -> None:
    spec = read(published("gemma-4-26b-a4b"))
    full = spec.layers[5].mixers[0]
    sliding = spec.layers[0].mixers[0]
    assert (full.kv_heads, full.key_dim, full.shared_kv_weights) == (2, 512, True)
    assert (sliding.kv_heads, sliding.key_dim, sliding.shared_kv_weights) == (8, 256, False)


GEMMA3N = {
    "architectures": ["Gemma3nForCausalLM"],
    "model_type": "gemma3n_text",
    "hidden_size": 2048,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": [8192] * 10,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_hidden_layers": 10,
    "num_kv_shared_layers": 5,
    "sliding_window": 512,
    "vocab_size": 262400,
    "vocab_size_per_layer_input": 262144,
}


def test_gemma3n(read: Read) -> None:
    spec = read(GEMMA3N)
    assert [m.kv_source_layer for m in mixers(spec, "attention")][5:] == [3, 3, 3, 3, 4]


LLAMA4 = {
    "architectures": ["Llama4ForCausalLM"],
    "model_type": "llama4_text",
    "attention_chunk_size": 8192,
    "head_dim": 128,
    "hidden_size": 5120,
    "interleave_moe_layer_step": 2,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 1048576,
    "no_rope_layers": [1, 1, 1, 0] * 2,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "torch_dtype": "bfloat16",
    "vocab_size": 202048,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"no_rope_layers": [], "no_rope_layer_interval": 4},
        {"layer_types": (["chunked_attention"] * 3 + ["full_attention"]) * 2},
        {
            "no_rope_layers": None,
            "layer_types": (["chunked_attention"] * 3 + ["full_attention"]) * 2,
        },
    ],
    ids=["flags", "interval", "both", "words"],
)
def test_llama4_chunks(changes: dict[str, Any], read: Read) -> None:
    spec = read(LLAMA4 | changes)
    assert layer_pattern(spec.layers) == "CCCFCCCF"
    assert mixers(spec, "attention")[0].window.tokens == 8192
    assert [layer.mlp.kind for layer in spec.layers] == ["dense", "moe"] * 4


def test_llama4_without_chunks_is_full(read: Read) -> None:
    assert layer_pattern(read(LLAMA4 | {"attention_chunk_size": None}).layers) == "F x 8"


SMALLTHINKER = {
    "architectures": ["SmallThinkerForCausalLM"],
    "model_type": "smallthinker",
    "hidden_size": 1536,
    "head_dim": 128,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "sliding_window_layout": [0, 1, 1, 1],
    "sliding_window_size": 4096,
    "moe_num_primary_experts": 32,
    "moe_num_active_primary_experts": 4,
    "moe_ffn_hidden_size": 768,
    "max_position_embeddings": 32768,
    "vocab_size": 151936,
}


def test_smallthinker_layout(read: Read) -> None:
    assert layer_pattern(read(SMALLTHINKER).layers) == "FSSS"


FALCON = {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "multi_query": True,
    "vocab_size": 65024,
}


@pytest.mark.parametrize(
    "changes, kv_heads",
    [
        ({}, 1),
        ({"multi_query": False}, 71),
        ({"multi_query": DROP, "n_kv_heads": 8}, 8),
        (
            {"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 71},
            8,
        ),
    ],
    ids=["multi-query", "multi-head", "n_kv_heads", "new decoder"],
)
def test_falcons_kv_heads(changes: dict[str, Any], kv_heads: int, read: Read) -> None:
    data = {k: v for k, v in (FALCON | changes).items() if v is not DROP}
    assert mixers(read(data), "attention")[0].kv_heads == kv_heads


def test_head_width_spellings(published: Published, read: Read) -> None:
    widths = {
        "granite-4.0-h-micro": 64,
        "nemotron-h-8b-base-8k": 128,
        "nemotron-nano-9b-v2": 128,
        "plamo-2-1b": 128,
        "zamba2-2.7b": 160,
        "jamba-v0.1": 128,
    }
    for name, width in widths.items():
        assert mixers(read(published(name)), "attention")[0].key_dim == width, name


def test_head_dim_means_nothing_with_mla(
    published: Published, changed: Changed, read: Read
) -> None:
    for name in ("kimi-linear-48b-a3b-instruct", "glm-5.3-flash", "glm-5.3", "hy4-preview"):
        without = changed(name, head_dim=DROP, num_key_value_heads=DROP)
        assert read(without).layers == read(published(name)).layers, name


def test_expand_is_not_believed(published: Published, changed: Changed, read: Read) -> None:
    for name, key in (
        ("falcon-mamba-7b", "expand"),
        ("nemotron-h-4b-base-8k", "expand"),
        ("nemotron-nano-9b-v2", "expand"),
        ("falcon-h1-3b-base", "mamba_expand"),
    ):
        assert read(changed(name, **{key: 999})).layers == read(published(name)).layers, name


@pytest.mark.parametrize(
    "name, changes, expected",
    [
        ("llama-3.1-8b", {"torch_dtype": DROP, "dtype": "float16"}, "float16"),
        ("llama-3.1-8b", {"torch_dtype": "torch.float32"}, "float32"),
        ("llama-3.1-8b", {"torch_dtype": DROP}, "bfloat16"),
        ("qwen3.5-0.8b", {"dtype": DROP}, "bfloat16"),
    ],
)
def test_dtype(
    name: str, changes: dict[str, Any], expected: str, changed: Changed, read: Read
) -> None:
    assert read(changed(name, **changes)).dtype == expected


def test_an_absent_dtype_is_an_assumption(changed: Changed, read: Read) -> None:
    source = read(changed("llama-3.1-8b", torch_dtype=DROP)).sources["model.dtype"]
    assert source.how == "assumed"


@pytest.mark.parametrize("key", ["tie_word_embeddings", "tie_embedding", "tie_embeddings"])
def test_tied_embeddings(key: str, changed: Changed, read: Read) -> None:
    data = changed("llama-3.1-8b", tie_word_embeddings=DROP)
    data[key] = True
    assert read(data).tied_embeddings is True


def test_tied_in_two_places_is_noted(published: Published, read: Read) -> None:
    data = published("qwen3.5-0.8b")
    data["text_config"]["tie_word_embeddings"] = False
    spec = read(data)
    assert spec.tied_embeddings is True
    assert any("tie_word_embeddings" in note for note in spec.notes)


def test_context_spelling(published: Published, read: Read) -> None:
    assert read(published("kimi-linear-48b-a3b-instruct")).max_tokens == 1048576


def test_bailing_hybrid_is_two_designs(published: Published, read: Read) -> None:
    assert mixers(read(published("ling-2.6-flash")), "lightning")
    assert mixers(read(published("ling-3.0-flash")), "kda")


def test_vocabulary_is_padded(changed: Changed, read: Read) -> None:
    assert read(changed("mamba2-2.7b-original-format", vocab_size=50277)).vocab_size == 50288


def test_draft_layers(published: Published, read: Read) -> None:
    drafts = {
        "qwen3.5-0.8b": 1,
        "deepseek-v3": 1,
        "nemotron-3-super-120b-a12b-nvfp4": 2,
        "nemotron-3-ultra-550b-a55b-bf16": 2,
        "nemotron-3-nano-30b-a3b-bf16": 0,
        "kimi-k2-instruct": 0,
        "ling-3.0-flash": 1,
        "deepseek-v4.1-flash": 3,
    }
    for name, count in drafts.items():
        assert len(read(published(name)).draft_layers) == count, name


def test_unequal_key_and_value_widths(published: Published, read: Read) -> None:
    spec = read(published("mimo-v2-flash"))
    assert {(m.kv_heads, m.key_dim, m.value_dim) for m in mixers(spec, "attention")} == {
        (4, 192, 128),
        (8, 192, 128),
    }


def test_meta_tokens(published: Published, read: Read) -> None:
    assert read(published("hymba-1.5b-base")).prefix_tokens == 128
