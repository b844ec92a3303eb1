"""Random architectures and random lists of layers, as cases for vLLM's own planner.

A case is what the golden files hold: a GPU generation, bytes for KV, engine arguments, and either
a config.json or explicit layers. Models are kept small in layers and large in heads and dims.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Config = dict[str, Any]
Args = dict[str, Any]

GPUS = ("sm90", "sm90", "sm90", "sm80", "sm100", "sm120")
_ROPE = {"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}


def model_case(seed: int, gpu: str | None = None) -> dict[str, Any]:
    """A random model of a random family with random engine arguments."""
    rng = random.Random(seed)
    family = rng.choice(sorted(FAMILIES))
    tp = rng.choice([1, 1, 2, 4, 8])
    config = FAMILIES[family](rng, tp)
    config["dtype"] = rng.choice(["bfloat16"] * 5 + ["float16"])
    if family in ("glm", "glm_mm", "deepseek"):
        config["dtype"] = "bfloat16"
    if "text_config" in config:
        config["text_config"]["dtype"] = config["dtype"]
    generation = gpu or rng.choice(GPUS)
    return {
        "gpu": generation,
        "available_bytes": _memory(rng),
        "engine_args": _arguments(rng, family, tp, config),
        "hf_config": config,
    }


def _memory(rng: random.Random) -> int:
    if rng.random() < 0.12:
        return rng.randrange(1, 40_000_000)
    return rng.randrange(200_000_000, 140_000_000_000)


def _arguments(rng: random.Random, family: str, tp: int, config: Config) -> Args:
    args: Args = {"max_model_len": rng.choice([2048, 8192, 32768, 65536, 100_000, 131072])}
    if tp > 1:
        args["tensor_parallel_size"] = tp
    if rng.random() < 0.25:
        args["enable_prefix_caching"] = False
    if rng.random() < 0.3:
        args["max_num_batched_tokens"] = rng.choice([1024, 4096, 8192, 16384])
    if rng.random() < 0.15:
        args["async_scheduling"] = False
    if rng.random() < 0.12:
        args["max_model_len"] = -1
    if rng.random() < 0.1:
        args["num_gpu_blocks_override"] = rng.choice([3, 40, 500, 5000])
    if rng.random() < 0.25:
        args["block_size"] = rng.choice([16, 32, 64, 64, 128, 256, 1024])
    if rng.random() < 0.15:
        args["prefix_match_unit"] = rng.choice([16, 32, 64, 128])
    _dtypes(rng, family, args)
    if family in WITH_MTP and rng.random() < 0.45:
        drafts = rng.choice([1, 1, 2, 3, 4, 7])
        args["speculative_config"] = {"method": "mtp", "num_speculative_tokens": drafts}
        if rng.random() < 0.2:
            args["speculative_config"]["disable_eagle_block_drop"] = True
    if family in WITH_PP and rng.random() < 0.15 and "speculative_config" not in args:
        args["pipeline_parallel_size"] = min(rng.choice([2, 3]), config["num_hidden_layers"])
    if family in GATED_DELTA and rng.random() < 0.25:
        args["gdn_prefill_backend"] = "triton"
    if family in WINDOWED and rng.random() < 0.2:
        args["disable_hybrid_kv_cache_manager"] = True
    return args


def _dtypes(rng: random.Random, family: str, args: Args) -> None:
    if rng.random() < 0.35:
        wide = ["fp8", "fp8", "fp8_e5m2", "nvfp4", "int8_per_token_head", "int4_per_token_head"]
        latent = ["fp8", "fp8", "fp8_ds_mla"] if family in SPARSE else ["fp8"]
        args["kv_cache_dtype"] = rng.choice(latent if family in LATENT else wide)
    if family in RECURRENT and rng.random() < 0.35:
        narrow = family not in KDA
        state = rng.choice(
            ["float32", "bfloat16", "float16"] if narrow else ["float32", "bfloat16"]
        )
        key = "mamba_cache_dtype" if family == "lightning" else "mamba_ssm_cache_dtype"
        args[key] = state


def _heads(rng: random.Random, tp: int, *, most: int = 32) -> tuple[int, int]:
    """Query and KV heads that divide over the ranks or repeat evenly."""
    kv = rng.choice([n for n in (1, 2, 4, 8, 16) if n % tp == 0 or tp % n == 0])
    return rng.choice([n for n in (8, 16, 32, 64) if n % kv == 0 and n % tp == 0 and n <= most]), kv


def _common(rng: random.Random, kind: str, architecture: str) -> Config:
    return {
        "architectures": [architecture],
        "model_type": kind,
        "hidden_size": rng.choice([1024, 2048, 4096]),
        "intermediate_size": 2048,
        "vocab_size": 32000,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
    }


def _pattern(rng: random.Random, states: str, attends: str) -> list[str]:
    """Layer kinds with at least one of each, periodic or not."""
    if rng.random() < 0.6:
        period, repeats = rng.choice([2, 3, 4, 6, 8]), rng.randint(1, 6)
        tail = [states] * rng.choice([0, 0, 1, 2])
        return ([states] * (period - 1) + [attends]) * repeats + tail
    count = rng.randint(3, 24)
    kinds = [rng.choice([states, states, attends]) for _ in range(count)]
    kinds[0], kinds[-1] = states, attends
    return kinds


def _gated_delta(kind: str, architecture: str) -> Callable[[random.Random, int], Config]:
    def build(rng: random.Random, tp: int) -> Config:
        heads, kv = _heads(rng, tp)
        key_heads = rng.choice([8, 16, 32])
        kinds = _pattern(rng, "linear_attention", "full_attention")
        config = {
            **_common(rng, kind, architecture),
            "num_hidden_layers": len(kinds),
            "layer_types": kinds,
            "num_attention_heads": heads,
            "num_key_value_heads": kv,
            "head_dim": rng.choice([64, 128, 256]),
            "linear_num_key_heads": key_heads,
            "linear_num_value_heads": key_heads * rng.choice([1, 2, 4]),
            "linear_key_head_dim": rng.choice([64, 128, 128]),
            "linear_value_head_dim": rng.choice([64, 128, 128]),
            "linear_conv_kernel_dim": rng.choice([3, 4, 4]),
            "rope_parameters": dict(_ROPE),
            "moe_intermediate_size": 256,
            "shared_expert_intermediate_size": 256,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "mtp_num_hidden_layers": 1,
        }
        if kind == "qwen3_next":
            config |= {"decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": []}
            config |= {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_scaling": None}
            del config["rope_parameters"], config["mtp_num_hidden_layers"]
        elif rng.random() < 0.7:
            config["mamba_ssm_dtype"] = rng.choice(["float32", "float32", "bfloat16"])
        return config

    return build


def _kimi(rng: random.Random, tp: int) -> Config:
    kinds = _pattern(rng, "kda", "mla")
    return {
        **_common(rng, "kimi_linear", "KimiLinearForCausalLM"),
        "num_hidden_layers": len(kinds),
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 72,
        "kv_lora_rank": rng.choice([256, 512, 512]),
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "linear_attn_config": {
            "kda_layers": [i + 1 for i, kind in enumerate(kinds) if kind == "kda"],
            "full_attn_layers": [i + 1 for i, kind in enumerate(kinds) if kind == "mla"],
            "head_dim": rng.choice([64, 128, 128]),
            "num_heads": rng.choice([8, 16, 32, 64]),
            "short_conv_kernel_size": rng.choice([3, 4]),
        },
        "first_k_dense_replace": 1,
        "num_experts": 8,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 256,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1,
        "topk_group": 1,
        "use_grouped_topk": True,
        "routed_scaling_factor": 2.0,
        "num_nextn_predict_layers": 0,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "model_max_length": 262144,
    }


def _glm_text(rng: random.Random, tp: int) -> Config:
    return {
        **_common(rng, "glm5_next_text", "Glm5NextForCausalLM"),
        "num_hidden_layers": rng.choice([4, 5, 8, 11, 16, 21, 45]),
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "moe_intermediate_size": 256,
        "n_shared_experts": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 512,
        "qk_rope_head_dim": 0,
        "qk_nope_head_dim": 256,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "attention_bias": False,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_kpool": rng.choice([2, 4, 4, 8]),
        "index_kpool_always_select_tail": True,
        "linear_head_dim": rng.choice([64, 128, 128]),
        "linear_num_heads": rng.choice([16, 32, 64]),
        "linear_conv_kernel_dim": rng.choice([3, 4]),
        "linear_lower_bound": -5.0,
        "hc_mult": 4,
        "mhc": True,
        "mla_use_nope": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "indexer_rope_interleave": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    }


def _glm_mm(rng: random.Random, tp: int) -> Config:
    text = _glm_text(rng, tp)
    text["num_nextn_predict_layers"] = 1
    del text["architectures"]
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "text_config": text,
        "image_token_id": 1,
        "video_token_id": 2,
    }


def _deepseek(rng: random.Random, tp: int) -> Config:
    return {
        **_common(rng, "deepseek_v32", "DeepseekV32ForCausalLM"),
        "num_hidden_layers": rng.randint(1, 16),
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "moe_intermediate_size": 256,
        "n_shared_experts": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "topk_method": "noaux_tc",
        "n_group": 1,
        "topk_group": 1,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "rope_theta": 10000,
        "rope_scaling": None,
        "attention_bias": False,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk": 2048,
    }


def _nemotron(rng: random.Random, tp: int) -> Config:
    heads, kv = _heads(rng, tp)
    kinds = _pattern(rng, "M", "*")
    pattern = "".join(kind + rng.choice(["-", ""]) for kind in kinds)
    config = {
        **_common(rng, "nemotron_h", "NemotronHForCausalLM"),
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": rng.choice([64, 128]),
        "attention_bias": False,
        "mamba_num_heads": rng.choice([16, 32, 64, 128]),
        "mamba_head_dim": rng.choice([64, 80]),
        "ssm_state_size": rng.choice([64, 128]),
        "n_groups": 8,
        "conv_kernel": 4,
        "expand": 2,
        "chunk_size": 128,
        "mamba_hidden_act": "silu",
        "mamba_proj_bias": False,
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "time_step_floor": 1e-4,
        "time_step_limit": [0.0, 1e9],
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "use_bias": False,
        "use_conv_bias": True,
        "use_mamba_kernels": True,
    }
    if rng.random() < 0.4:
        config["mamba_ssm_cache_dtype"] = rng.choice(["float32", "bfloat16"])
    return config


def _granite(rng: random.Random, tp: int) -> Config:
    heads, kv = _heads(rng, tp)
    kinds = _pattern(rng, "mamba", "attention")
    config = _common(rng, "granitemoehybrid", "GraniteMoeHybridForCausalLM")
    state_heads = rng.choice([32, 64, 128])
    config |= {
        "hidden_size": state_heads * 64 // 2,
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "mamba_n_heads": state_heads,
        "mamba_d_head": 64,
        "mamba_d_state": rng.choice([64, 128]),
        "mamba_n_groups": rng.choice([1, 1, 8]),
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 256,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 512,
        "attention_bias": False,
        "attention_multiplier": 0.01,
        "embedding_multiplier": 12,
        "logits_scaling": 16,
        "residual_multiplier": 0.22,
        "initializer_range": 0.1,
        "position_embedding_type": "nope",
        "rope_theta": 10000,
        "rope_scaling": None,
    }
    return config


def _falcon(rng: random.Random, tp: int) -> Config:
    state_heads = rng.choice([16, 24, 32])
    width = rng.choice([64, 128])
    return {
        **_common(rng, "falcon_h1", "FalconH1ForCausalLM"),
        "num_hidden_layers": rng.randint(1, 16),
        "num_attention_heads": 16,
        "num_key_value_heads": rng.choice([n for n in (1, 2, 4, 8) if n % tp == 0 or tp % n == 0]),
        "head_dim": rng.choice([64, 128]),
        "mamba_d_ssm": state_heads * width,
        "mamba_n_heads": state_heads,
        "mamba_d_head": width,
        "mamba_d_state": rng.choice([128, 256]),
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 256,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": False,
        "mamba_use_mlp": True,
        "attention_bias": False,
        "mlp_bias": False,
        "projectors_bias": False,
        "attn_layer_indices": None,
        "rope_theta": 1e11,
        "rope_scaling": None,
        "lm_head_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 1.0,
        "key_multiplier": 1.0,
        "mlp_multipliers": [1.0, 1.0],
        "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": 1.0,
        "ssm_multipliers": [1.0] * 5,
    }


def _jamba(rng: random.Random, tp: int) -> Config:
    heads, kv = _heads(rng, tp)
    period = rng.choice([2, 4, 8])
    return {
        **_common(rng, "jamba", "JambaForCausalLM"),
        "num_hidden_layers": period * rng.randint(1, 4) + rng.choice([0, 0, 1]),
        "attn_layer_period": period,
        "attn_layer_offset": rng.randrange(period) if period > 1 else 0,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "mamba_d_state": rng.choice([16, 32]),
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 128,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "use_mamba_kernels": True,
        "sliding_window": None,
        "num_logits_to_keep": 1,
    }


def _lfm(rng: random.Random, tp: int) -> Config:
    heads, kv = _heads(rng, tp)
    kinds = _pattern(rng, "conv", "full_attention")
    config = _common(rng, "lfm2", "Lfm2ForCausalLM")
    return config | {
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "num_attention_heads": heads,
        "num_heads": heads,
        "num_key_value_heads": kv,
        "conv_L_cache": rng.choice([3, 4]),
        "conv_bias": False,
        "conv_dim": config["hidden_size"],
        "block_dim": config["hidden_size"],
        "block_ff_dim": 2048,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "use_cache": True,
        "tie_embedding": False,
    }


def _lightning(rng: random.Random, tp: int) -> Config:
    heads = rng.choice([16, 32])
    period = rng.choice([2, 4, 8])
    return {
        **_common(rng, "bailing_hybrid", "BailingMoeV2_5ForCausalLM"),
        "_generic_config_class": True,
        "num_hidden_layers": period * rng.randint(1, 4),
        "layer_group_size": period,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": rng.choice([64, 128]),
        "group_norm_size": 8,
        "kv_lora_rank": 512,
        "q_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_head_dim": 192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 256,
        "moe_shared_expert_intermediate_size": 256,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "score_function": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "moe_router_enable_expert_bias": True,
        "rope_theta": 600000,
        "rope_scaling": None,
        "partial_rotary_factor": 0.5,
        "use_bias": False,
        "use_qkv_bias": False,
        "use_qk_norm": True,
    }


def _gemma(rng: random.Random, tp: int) -> Config:
    heads, kv = _heads(rng, tp)
    return {
        **_common(rng, "gemma3_text", "Gemma3ForCausalLM"),
        **_windowed(rng),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": rng.choice([64, 128, 256]),
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 128,
        "rope_local_base_freq": 10000,
        "rope_theta": 1000000,
    }


def _gpt_oss(rng: random.Random, tp: int) -> Config:
    """vLLM windows every second layer whatever ``layer_types`` says, and repeats no KV heads."""
    kinds = ["sliding_attention", "full_attention"] * rng.randint(1, 12)
    kinds = kinds[: len(kinds) - rng.choice([0, 1])]
    heads, kv = 8 * tp, rng.choice([1, 2, 8]) * tp
    config = _common(rng, "gpt_oss", "GptOssForCausalLM")
    return config | {
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "sliding_window": rng.choice([128, 512, 1024, 4096]),
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": 64,
        "attention_bias": True,
        "experts_per_token": 4,
        "num_experts_per_tok": 4,
        "num_local_experts": 8,
        "swiglu_limit": 7.0,
        "initial_context_length": 4096,
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    }


def _windowed(rng: random.Random) -> Config:
    kinds = _pattern(rng, "sliding_attention", "full_attention")
    return {
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "sliding_window": rng.choice([128, 512, 1024, 4096]),
    }


def _llama(rng: random.Random, tp: int) -> Config:
    heads, kv = _heads(rng, tp)
    return {
        **_common(rng, "llama", "LlamaForCausalLM"),
        "num_hidden_layers": rng.randint(1, 32),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": rng.choice([64, 80, 96, 128]),
        "rope_theta": 500000.0,
    }


FAMILIES: dict[str, Callable[[random.Random, int], Config]] = {
    "qwen3_next": _gated_delta("qwen3_next", "Qwen3NextForCausalLM"),
    "qwen3_5": _gated_delta("qwen3_5_text", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe": _gated_delta("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    "kimi": _kimi,
    "glm": _glm_text,
    "glm_mm": _glm_mm,
    "deepseek": _deepseek,
    "nemotron": _nemotron,
    "granite": _granite,
    "falcon": _falcon,
    "jamba": _jamba,
    "lfm": _lfm,
    "lightning": _lightning,
    "gemma": _gemma,
    "gpt_oss": _gpt_oss,
    "llama": _llama,
}
GATED_DELTA = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
KDA = ("kimi", "glm", "glm_mm")
WITH_MTP = (*GATED_DELTA, "glm_mm")
WITH_PP = (*GATED_DELTA, "llama", "gpt_oss", "granite", "nemotron")
LATENT = ("kimi", "glm", "glm_mm", "deepseek", "lightning")
SPARSE = ("glm", "glm_mm", "deepseek")
WINDOWED = ("gemma", "gpt_oss")
RECURRENT = (*GATED_DELTA, *KDA, "nemotron", "granite", "falcon", "jamba", "lfm", "lightning")


def layers_case(seed: int) -> dict[str, Any]:
    """A random list of explicit layers, to reach groupings that no shipped model reaches."""
    rng = random.Random(seed)
    block = rng.choice([16, 64, 64, 128, 256])
    mode = rng.choice(["align", "align", "none"])
    kinds = [_random_layer(rng, block, mode) for _ in range(rng.randint(1, 4))]
    layers: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        for i, kind in enumerate(kinds):
            layers.append({**kind, "count": rng.randint(1, 20), "name": f"part{i}.{{i}}"})
    else:
        for i in range(rng.randint(1, 40)):
            kind = dict(rng.choice(kinds))
            layers.append({**kind, "name": f"model.layers.{i}.x"})
    if rng.random() < 0.25:
        layers.append({**_random_layer(rng, block, mode), "is_draft": True, "name": "draft.0"})
    layouts = ["LBNHC", "LBNHC", "BLHNC", "BLHNC", "LBHNC", "BLNHC", "LHBNC", "BHLNC"]
    args: Args = {"max_model_len": rng.choice([4096, 65536, 131072])}
    if rng.random() < 0.2:
        args["disable_hybrid_kv_cache_manager"] = True
    if rng.random() < 0.2:
        args["enable_prefix_caching"] = False
    if rng.random() < 0.15:
        args["num_gpu_blocks_override"] = rng.choice([10, 1000, 100_000])
    return {
        "available_bytes": rng.choice([60_000_000_000, rng.randrange(1, 3_000_000_000)]),
        "engine_args": args,
        "layers": layers,
        "layout": rng.sample(layouts, 2) if rng.random() < 0.2 else rng.choice(layouts),
        "mamba_cache_mode": mode,
    }


def _random_layer(rng: random.Random, block: int, mode: str) -> dict[str, Any]:
    kind = rng.choice(
        ["full", "full", "mla", "indexer", "sliding", "chunked", "ring", "mamba", "mamba"]
    )
    if kind == "mamba":
        shape = [[3, rng.choice([256, 1024])], [rng.choice([2, 8]), 64, 128]]
        layer: dict[str, Any] = {
            "type": "mamba",
            "block_size": block if mode == "align" else 65536,
            "shapes": shape,
            "dtypes": ["bf16", rng.choice(["bf16", "fp32"])],
            "mamba_cache_mode": mode,
        }
        if rng.random() < 0.4:
            layer["page_size_padded"] = rng.choice([600_000, 1_048_576])
        if rng.random() < 0.3:
            layer["num_speculative_blocks"] = rng.choice([1, 3])
        if rng.random() < 0.3:
            layer |= {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 16}
        return layer
    if kind == "ring":
        return {
            "type": "circular_buffer",
            "block_size": rng.choice([4, 8]),
            "num_kv_heads": 2,
            "head_size": 128,
            "head_size_v": 0,
            "dtype": "bf16",
            "dcp_sharded": False,
        }
    if kind in ("mla", "indexer"):
        layer = {"type": "mla", "block_size": block, "num_kv_heads": 1}
        if kind == "indexer":
            layer |= {"head_size": 132, "dtype": "uint8", "indexer": True}
            layer["tokens_per_state"] = rng.choice([1, 1, 4])
            layer["block_stride_alignment"] = {"multiple_of": rng.choice([32, 64, 256])}
            return layer
        layer |= {"head_size": rng.choice([512, 576]), "dtype": "bf16"}
        layer["block_stride_alignment"] = rng.choice([None, 1024, 1152, {"multiple_of": 64}])
        return {key: value for key, value in layer.items() if value is not None}
    layer = {
        "type": kind,
        "block_size": rng.choice([block, block, 16]) if kind == "sliding" else block,
        "num_kv_heads": rng.choice([1, 2, 4, 8]),
        "head_size": rng.choice([64, 128, 96]),
        "dtype": rng.choice(["bf16", "bf16", "fp32"]),
    }
    if kind == "sliding":
        layer |= {"type": "sliding_window", "sliding_window": rng.choice([128, 1024, 2048])}
    if kind == "chunked":
        layer |= {"type": "chunked_local", "attention_chunk_size": rng.choice([1024, 8192])}
    if kind == "full" and rng.random() < 0.2:
        layer["block_stride_alignment"] = {"multiple_of": 64}
    return layer
