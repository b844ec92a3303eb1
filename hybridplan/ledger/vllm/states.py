"""Pages and prefill checkpoints of recurrent layers.

Source: vLLM ``model_executor/layers/mamba/abstract.py``, ``mamba_utils.py``, ``mamba_mixer2.py``,
``gdn/qwen_gdn_linear_attn.py``, ``kda_checkpoint.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from hybridplan.config.spec import (
    GatedDeltaNet,
    KimiDelta,
    Layer,
    Mamba2,
    Mixer,
    ModelSpec,
    NGramConv,
)
from hybridplan.errors import RefusalError
from hybridplan.ledger.caches import layer_caches
from hybridplan.ledger.conventions import model_dtype
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.page import CacheMode, StateCache
from hybridplan.ledger.vllm.rules import VersionRules

GDN_CHECKPOINT_TOKENS = 64
KDA_CHECKPOINT_TOKENS = 16
FLASHINFER_REPLAY_TOKENS = 16
_KDA_HEAD_DIM = 128
_FLASHINFER_GDN_KEY_DIM = 128
_TRITON_GDN = ("olmo_hybrid",)
_REPLAYSSM_MODELS = ("nemotron_h",)
UNSUPPORTED = ("rglru", "rwkv7")


def state_cache(
    mixer: Mixer,
    layer: Layer,
    spec: ModelSpec,
    deployment: Deployment,
    options: VllmOptions,
    rules: VersionRules,
    *,
    mode: CacheMode = "none",
    model_level: bool = False,
) -> StateCache:
    """One recurrent mixer's state on one rank; its block is 0 until the pool's is known.

    A ``checkpoint_alignment_tokens`` of 0 stands for "the block, once known". ``model_level``: as
    the hybrid alignment sees it, which is not always as the layer builds it.
    """
    if mixer.kind in UNSUPPORTED:
        raise RefusalError(
            f"{spec.name}: vLLM {rules.version} has no state cache for {mixer.kind} layers"
        )
    if isinstance(mixer, Mamba2):
        _check_groups(mixer, spec, deployment)
    if isinstance(mixer, KimiDelta) and ignores_state_dtype(spec, model_level=model_level):
        deployment = replace(deployment, state_dtype=None)
    held = layer_caches(replace(layer, mixers=(mixer,)), spec, deployment).states
    ordered = sorted(held, key=lambda state: state.name != "conv")
    shapes = [state.shape for state in ordered]
    dtypes = [state.dtype for state in ordered]
    speculative = deployment.drafts
    if options.replayssm_tokens:
        if not isinstance(mixer, Mamba2) or spec.model_type not in _REPLAYSSM_MODELS:
            raise RefusalError(
                f"vLLM offers ReplaySSM for {', '.join(_REPLAYSSM_MODELS)}, not {spec.model_type}"
            )
        shapes += _replay_rings(mixer, deployment, options, rules)
        dtypes += [model_dtype(spec, deployment), "float32", model_dtype(spec, deployment)]
        speculative = 0
    blocks, alignment = _checkpoints(mixer, spec, options, rules, mode)
    return StateCache(
        block_tokens=1,
        shapes=tuple(shapes),
        dtypes=tuple(dtypes),
        state_type="short_conv" if isinstance(mixer, NGramConv) else mixer.kind,
        speculative_blocks=speculative,
        checkpoint_blocks=blocks,
        checkpoint_alignment_tokens=alignment,
        replicated=isinstance(mixer, NGramConv),
    )


def check_replayssm(options: VllmOptions, drafts: int, mode: CacheMode) -> None:
    """Raise RefusalError for what vLLM's config check refuses of ``--use-replayssm``."""
    tokens = options.replayssm_tokens
    if not options.replayssm_flashinfer:
        if drafts:
            raise RefusalError(
                f"ReplaySSM with {drafts} drafts needs the FlashInfer backend, not Triton's"
            )
        if options.model_runner_v2:
            raise RefusalError(
                "Triton's ReplaySSM needs model runner V1; use the FlashInfer backend or "
                "VLLM_USE_V2_MODEL_RUNNER=0"
            )
        return
    if tokens > FLASHINFER_REPLAY_TOKENS:
        raise RefusalError(
            f"FlashInfer's ReplaySSM ring is {tokens} tokens long; it holds up to "
            f"{FLASHINFER_REPLAY_TOKENS}"
        )
    if mode == "align":
        raise RefusalError("FlashInfer's ReplaySSM has no prefix caching; turn prefix caching off")
    if drafts and tokens < 1 + drafts:
        raise RefusalError(
            f"a ReplaySSM ring of {tokens} tokens does not hold a verify window of {1 + drafts}; "
            f"make it {1 + drafts} or longer"
        )


def ignores_state_dtype(spec: ModelSpec, *, model_level: bool) -> bool:
    """Whether KDA keeps float32 whatever ``--mamba-ssm-cache-dtype`` says.

    Only GLM's layers obey it; Kimi-Linear's alignment does, its layers do not.
    """
    if spec.model_type.startswith("glm5_next"):
        return False
    return not (model_level and spec.model_type == "kimi_linear")


def _check_groups(mixer: Mamba2, spec: ModelSpec, deployment: Deployment) -> None:
    if mixer.groups % deployment.tp and mixer.groups != 1:
        raise RefusalError(
            f"{spec.name} has {mixer.groups} Mamba-2 groups, which tp {deployment.tp} does not "
            "divide; vLLM repeats groups over ranks only where there is one"
        )


def _replay_rings(
    mixer: Mamba2, deployment: Deployment, options: VllmOptions, rules: VersionRules
) -> list[tuple[int, ...]]:
    tokens = options.replayssm_tokens
    if options.replayssm_flashinfer:
        tokens += 1 + deployment.drafts
    heads = mixer.heads // deployment.tp
    groups = mixer.groups
    if groups % deployment.tp and rules.replayssm_extends_groups:
        groups = deployment.tp
    if groups % deployment.tp:
        raise RefusalError(
            f"ReplaySSM needs the {groups} groups to divide over tp {deployment.tp} in vLLM "
            f"{rules.version}"
        )
    return [
        (heads, tokens, mixer.head_dim),
        (heads, tokens),
        (groups // deployment.tp, tokens, mixer.state_dim),
    ]


@dataclass(frozen=True, slots=True)
class GdnKernel:
    """The prefill kernel of Gated DeltaNet layers: name, what was asked, key head's size."""

    name: str
    requested: str
    key_dim: int


def gdn_kernel(spec: ModelSpec, options: VllmOptions) -> GdnKernel | None:
    """Which one vLLM picks; None where the model has no such layer."""
    for layer in spec.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, GatedDeltaNet):
                name = "FlashInfer" if flashinfer_gdn(mixer, spec, options) else "Triton/FLA"
                return GdnKernel(name, options.gdn_prefill, mixer.key_dim)
    return None


def flashinfer_gdn(mixer: GatedDeltaNet, spec: ModelSpec, options: VllmOptions) -> bool:
    """Whether FlashInfer's prefill kernel runs (it can export states inside a chunk)."""
    if options.gdn_prefill == "triton" or spec.model_type in _TRITON_GDN:
        return False
    if options.generation == "sm90":
        return True
    blackwell = options.generation in ("sm100", "sm120")
    return blackwell and mixer.key_dim == _FLASHINFER_GDN_KEY_DIM


def _flash_kda(mixer: KimiDelta, spec: ModelSpec, options: VllmOptions) -> bool:
    return (
        options.generation in ("sm90", "sm100", "sm120")
        and spec.dtype == "bfloat16"
        and mixer.head_dim == _KDA_HEAD_DIM
        and mixer.bounded_gate
    )


def _checkpoints(
    mixer: Mixer, spec: ModelSpec, options: VllmOptions, rules: VersionRules, mode: CacheMode
) -> tuple[int, int | None]:
    if isinstance(mixer, GatedDeltaNet | NGramConv):
        common = checkpoint_alignment(spec, options, rules)
        if mode != "align" or common is None:
            return 0, None
        unit = options.prefix_match_unit
        return 1, lcm(unit, common) if unit is not None else 0
    if not rules.other_checkpoints:
        return 0, None
    if isinstance(mixer, Mamba2):
        return 1, 1
    if isinstance(mixer, KimiDelta) and _flash_kda(mixer, spec, options):
        return 1, KDA_CHECKPOINT_TOKENS
    return 0, None


def checkpoint_alignment(spec: ModelSpec, options: VllmOptions, rules: VersionRules) -> int | None:
    """Alignment all recurrent layers declare to the platform, in tokens; None if one declares none.

    Only Gated DeltaNet under FlashInfer declares one (``get_prefill_checkpoint_alignment``), and
    the n-gram convolution, which goes along with any.
    """
    if not rules.gdn_checkpoints:
        return None
    found = False
    for mixers in dict.fromkeys(layer.mixers for layer in spec.layers):
        for mixer in mixers:
            if mixer.kind in ("attention", "mla", "compressed", "gmu", "ngram_conv"):
                continue
            if not (isinstance(mixer, GatedDeltaNet) and flashinfer_gdn(mixer, spec, options)):
                return None
            found = True
    return GDN_CHECKPOINT_TOKENS if found else None
