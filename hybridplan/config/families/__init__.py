"""Which module reads which ``model_type``. One module per family of naming, imported when needed.

A family module offers ``read(f, root) -> ModelSpec``: ``f`` is the text config, ``root`` the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridplan.config.fields import Fields
    from hybridplan.config.spec import ModelSpec

    Reader = Callable[[Fields, Fields], ModelSpec]


@dataclass(frozen=True, slots=True)
class Family:
    """A module of this package and the architecture names that may go with the model type."""

    module: str
    architectures: tuple[str, ...] = ()

    def reader(self) -> Reader:
        read: Reader = import_module(f"{__name__}.{self.module}").read
        return read


def _f(module: str, *stems: str) -> Family:
    endings = ("ForCausalLM", "ForConditionalGeneration")
    return Family(module, tuple(stem + end for stem in stems for end in endings))


_LLAMA = _f("dense", "Llama", "LLaMA")
_MISTRAL = _f("dense", "Mistral", "Mistral3", "Ministral", "Ministral3")
_QWEN35 = _f("gdn", "Qwen3_5", "Qwen3_5Moe")
_DEEPSEEK = _f("deepseek", "DeepseekV2", "DeepseekV3", "DeepseekV32", "KimiK2", "KimiK25")
_GLM_DSA = _f("deepseek", "GlmMoeDsa", "Glm4MoeLite")
_BAILING = _f("bailing", "BailingMoeLinear", "BailingMoeLinearV2", "BailingMoeV2_5")
_HYBRID_BAILING = _f("bailing", "BailingMoeV2_5", "BailingMoeV3", "BailingHybrid")
_MINIMAX = _f("minimax", "MiniMaxText01", "MiniMaxM1", "MiniMax")
_KIMI = _f("kda", "KimiLinear", "KimiK3")
_LFM2 = _f("lfm", "Lfm2", "Lfm2Moe", "Lfm2Vl", "Lfm2MoeVl")
_GEMMA3 = _f("gemma", "Gemma3")
_GEMMA4 = _f("gemma4", "Gemma4", "Gemma4Unified")
_GEMMA3N = _f("gemma4", "Gemma3n")
_FLASH_NEXT = _f("flash_next", "Qwen4Exp", "Qwen3_8FlashNext")

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mistral3": _MISTRAL,
    "ministral": _MISTRAL,
    "qwen2": _f("dense", "Qwen2"),
    "qwen2_moe": _f("dense_moe", "Qwen2Moe"),
    "qwen3": _f("dense", "Qwen3"),
    "qwen3_moe": _f("dense_moe", "Qwen3Moe"),
    "mixtral": _f("dense_moe", "Mixtral"),
    "glm4_moe": _f("dense_moe", "Glm4Moe"),
    "gpt_oss": _f("gpt_oss", "GptOss"),
    "falcon": _f("falcon", "Falcon"),
    "RefinedWebModel": Family("falcon", ("RWForCausalLM",)),
    "RefinedWeb": Family("falcon", ("RWForCausalLM",)),
    "gemma2": _f("gemma", "Gemma2"),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma3n": _GEMMA3N,
    "gemma3n_text": _GEMMA3N,
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
    "gemma4_unified": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "llama4": _f("llama4", "Llama4"),
    "llama4_text": _f("llama4", "Llama4"),
    "smallthinker": _f("smallthinker", "SmallThinker"),
    "mimo_v2_flash": _f("mimo", "MiMoV2Flash"),
    "step3p7": _f("step", "Step3p7Flash", "Step3p7"),
    "step3p7_text": _f("step", "Step3p7Flash", "Step3p7"),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "kimi_k25": _DEEPSEEK,
    "glm_moe_dsa": _GLM_DSA,
    "glm4_moe_lite": _GLM_DSA,
    "hy_v4": _f("deepseek", "HYV4"),
    "deepseek_v4": _f("deepseek_v4", "DeepseekV4"),
    "deepseek_v41": _f("deepseek_v4", "DeepseekV41"),
    "deepseek_v41_text": _f("deepseek_v4", "DeepseekV41"),
    "qwen3_next": _f("gdn", "Qwen3Next"),
    "qwen3_5": _QWEN35,
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe": _QWEN35,
    "qwen3_5_moe_text": _QWEN35,
    "olmo_hybrid": _f("gdn", "OlmoHybrid"),
    "qwen4_exp": _FLASH_NEXT,
    "qwen4_exp_text": _FLASH_NEXT,
    "qwen3_8_flash_next": _FLASH_NEXT,
    "qwen3_8_flash_next_text": _FLASH_NEXT,
    "kimi_linear": _KIMI,
    "kimi_k3": _KIMI,
    "glm5_next": _f("glm5_next", "Glm5Next"),
    "glm5_next_text": _f("glm5_next", "Glm5Next"),
    "minimax_text_01": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "minimax": _MINIMAX,
    "minimax_m2": _f("minimax_m2", "MiniMaxM2"),
    "minimax_m3": _f("minimax_m2", "MiniMaxM3", "MiniMaxM3VL"),
    "bailing_moe_linear": _BAILING,
    "bailing_hybrid": _HYBRID_BAILING,
    "nemotron_h": _f("nemotron_h", "NemotronH", "NemotronHPuzzle"),
    "jamba": _f("jamba", "Jamba"),
    "bamba": _f("bamba", "Bamba"),
    "granitemoehybrid": _f("granite", "GraniteMoeHybrid"),
    "falcon_h1": _f("falcon_h1", "FalconH1"),
    "zamba2": _f("zamba2", "Zamba2"),
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2,
    "lfm2_vl": _LFM2,
    "lfm3": _f("lfm", "Lfm3", "Lfm3Vl"),
    "plamo2": _f("plamo2", "Plamo2"),
    "recurrent_gemma": _f("recurrent_gemma", "RecurrentGemma"),
    "phi4flash": _f("phi4flash", "Phi4Flash"),
    "hymba": _f("hymba", "Hymba"),
    "falcon_mamba": _f("mamba", "FalconMamba"),
    "mamba": _f("mamba", "Mamba"),
    "mamba2": _f("mamba", "Mamba2"),
    "rwkv7": _f("rwkv7", "RWKV7"),
    "hybridplan": Family("hybridplan_form"),
}

ORIGINAL_MAMBA = Family("mamba_original")
ORIGINAL_ZAMBA2 = Family("zamba2_original")


def supported() -> str:
    """The families a user may ask for, as errors list them."""
    return ", ".join(sorted({name.removesuffix("_text") for name in FAMILIES}))
