"""Module names vLLM gives the layers that keep a cache; boot logs and groups are told in them.

Source: the model classes of vLLM 0.32 and 0.33 (``model_executor/models``, ``models``).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from hybridplan.config.spec import Attention, LatentAttention, Layer, Mixer, ModelSpec

_ATTENTION = {
    "jamba": "attn",
    "falcon_h1": "attn",
    "nemotron_h": "mixer.attn",
    "gpt_oss": "attn.attn",
    "kimi_linear": "self_attn",
}
_STATES = {
    "gdn": "linear_attn",
    "kda": "self_attn",
    "lightning": "self_attn",
    "short_conv": "short_conv",
    "ngram_conv": "ple",
}
_INSIDE_MTP = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
_BACKBONE = ("mamba", "mamba2", "falcon_mamba")
_LANGUAGE = ("lfm2_vl", "lfm2")
Part: TypeAlias = Literal["target", "mtp", "drafter"]


def prefix(spec: ModelSpec, layer: Layer, part: Part) -> str:
    """Name of a decoder layer of the target, of its own MTP, or of a drafter given by hand."""
    if part == "mtp" and spec.model_type.removesuffix("_text") in _INSIDE_MTP:
        return f"mtp.layers.{layer.index - len(spec.layers)}"
    if part == "mtp" and spec.model_type.startswith("qwen4_exp"):
        return f"mtp.layers.{layer.index}"
    if part != "target":
        return f"model.layers.{layer.index}"
    if spec.model_type in _BACKBONE:
        return f"backbone.layers.{layer.index}"
    if spec.model_type in _LANGUAGE and multimodal(spec):
        return f"language.model.layers.{layer.index}"
    outer = "language_model." if multimodal(spec) else ""
    return f"{outer}model.layers.{layer.index}"


def multimodal(spec: ModelSpec) -> bool:
    """Whether the checkpoint's class wraps a language model."""
    return spec.architecture.endswith("ForConditionalGeneration")


def cache_name(spec: ModelSpec, layer: Layer, mixer: Mixer, part: Part = "target") -> str:
    """Name of the module that keeps a mixer's KV, latent or state."""
    base = prefix(spec, layer, part)
    if spec.model_type == "zamba2" and part == "target":
        return _zamba_name(spec, layer, mixer)
    if isinstance(mixer, Attention | LatentAttention):
        own = "self_attn.attn" if part == "drafter" else _ATTENTION.get(spec.model_type)
        return f"{base}.{own or 'self_attn.attn'}"
    if spec.model_type == "falcon_h1":
        return f"model.{len(spec.layers) + layer.index}.mixer"
    return f"{base}.{_STATES.get(mixer.kind, 'mixer')}"


def registers_attention_first(spec: ModelSpec) -> bool:
    """Whether all attention of the model is built before its recurrent layers (Zamba2's blocks)."""
    return spec.model_type == "zamba2"


def _zamba_name(spec: ModelSpec, layer: Layer, mixer: Mixer) -> str:
    attending = [one.index for one in spec.layers if len(one.mixers) > 1]
    if isinstance(mixer, Attention):
        return f"model.attn.{attending.index(layer.index)}"
    return f"{len(attending) + layer.index}.mixer"


def indexer_name(spec: ModelSpec, layer: Layer, cache: str, part: Part = "target") -> str:
    """Name of the indexer's key cache ("k_cache") or tail ring ("tail_cache")."""
    if spec.model_type.startswith("minimax_m3"):
        return f"{prefix(spec, layer, part)}.self_attn.attn.index_cache"
    return f"{prefix(spec, layer, part)}.self_attn.indexer.{cache}"
