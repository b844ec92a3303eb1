"""What each engine stores when the user says nothing: dtypes, convolution columns, KV growth.

Sources: vLLM 0.33 dtype hooks and state shapes (vllm.md 0 and 1.2); SGLang 0.5.23
``configs/mamba_utils.py`` (sglang.md 1-2); transformers 5.24 ``cache_utils.py``; llama.cpp and
MLX from logged pools (fp32 state and conv; bf16 state with KV in steps of 256 tokens).
"""

from __future__ import annotations

from hybridplan.config.spec import Mixer, ModelSpec, Recurrent, Window
from hybridplan.errors import InputError
from hybridplan.ledger.deployment import VLLM_VERSIONS, Deployment
from hybridplan.ledger.dtypes import canonical
from hybridplan.ledger.kv_formats import GGML, PACKED, kv_format

_MLX_STEP_TOKENS = 256


def model_dtype(spec: ModelSpec, deployment: Deployment) -> str:
    """The dtype activations run in; vLLM and SGLang serve float32 checkpoints in 16 bits."""
    dtype = canonical(spec.dtype)
    if dtype == "float32" and deployment.engine == "vllm":
        return "bfloat16"
    if dtype == "float32" and deployment.engine == "sglang":
        return "float16"
    return dtype


def kv_dtype(spec: ModelSpec, deployment: Deployment) -> str:
    """The user's KV dtype, else the checkpoint's where the engine follows it, else the model's."""
    engine = deployment.engine
    if deployment.kv_dtype is not None:
        chosen = kv_format(deployment.kv_dtype)
        engines = ("llama.cpp",) if chosen in GGML else ("vllm", "sglang")
        if chosen in PACKED and engine not in engines:
            raise InputError(
                f"KV dtype {chosen} is a format of {' and '.join(engines)}, not of {engine}"
            )
        return chosen
    if engine == "llama.cpp":
        return "float16"
    stated = spec.quantization.kv_dtype if spec.quantization else None
    if stated is not None and engine in ("vllm", "sglang"):
        return kv_format(stated)
    return model_dtype(spec, deployment)


def compressed_kv_dtype(spec: ModelSpec, deployment: Deployment) -> str:
    """As ``kv_dtype``; the serving engines pack DeepSeek-V4 rows unless told otherwise.

    vLLM does so with FlashMLA (SM90) and FlashInfer on SM120; on SM100 its rows are plain.
    """
    if deployment.engine not in ("vllm", "sglang"):
        return kv_dtype(spec, deployment)
    chosen = kv_dtype(spec, deployment) if deployment.kv_dtype else "fp8_ds_mla"
    return "fp8_ds_mla" if chosen.startswith("float8") else chosen


def conv_dtype(spec: ModelSpec, deployment: Deployment) -> str:
    """The user's, else float32 (llama.cpp), bfloat16 (SGLang), the model's (the others)."""
    if deployment.conv_dtype is not None:
        return _state_float(deployment.conv_dtype, "conv")
    if deployment.engine == "llama.cpp":
        return "float32"
    if deployment.engine == "sglang":
        return "bfloat16"
    return model_dtype(spec, deployment)


def _state_float(name: str, what: str) -> str:
    chosen = canonical(name)
    if chosen not in ("float32", "bfloat16", "float16"):
        raise InputError(
            f"{what} dtype {chosen} is not one that engines keep states in; use float32, bfloat16 "
            f"or float16"
        )
    return chosen


def state_dtype(spec: ModelSpec, mixer: Recurrent, deployment: Deployment) -> str:
    """The user's, else what the engine picks for this model and mixer."""
    engine = deployment.engine
    if deployment.state_dtype is not None:
        chosen = _state_float(deployment.state_dtype, "state")
        if mixer.kind == "kda" and engine == "vllm" and chosen not in ("float32", "bfloat16"):
            raise InputError(
                f"state dtype {chosen} is refused by vLLM for KDA layers; it takes float32 "
                f"or bfloat16"
            )
        return chosen
    if engine == "vllm":
        return _vllm_state_dtype(spec, mixer, deployment)
    if engine == "sglang":
        return canonical(spec.state_dtype or "float32")
    if engine == "mlx" or (engine == "transformers" and mixer.kind == "lightning"):
        return model_dtype(spec, deployment)
    return "float32"


def _vllm_state_dtype(spec: ModelSpec, mixer: Recurrent, deployment: Deployment) -> str:
    if mixer.kind == "lightning":
        return conv_dtype(spec, deployment)
    if spec.state_dtype is not None and mixer.kind != "kda":
        return canonical(spec.state_dtype)
    if mixer.kind in ("kda", "state", "rglru", "rwkv7") or spec.model_type == "nemotron_h":
        return "float32"
    return conv_dtype(spec, deployment)


def conv_columns(kernel: int, mixer_kind: str, deployment: Deployment) -> int:
    """Columns of a convolution window kept between steps.

    transformers keeps all K inputs, but for RG-LRU and the n-gram convolution. vLLM keeps K - 1 and
    widens the window by the drafts, but not for Mamba-1; SGLang keeps the strip for drafts outside
    the slot.
    """
    if deployment.engine == "transformers" and mixer_kind not in ("rglru", "ngram_conv"):
        return kernel
    widened = deployment.engine == "vllm" and mixer_kind != "mamba1"
    return kernel - 1 + (deployment.drafts if widened else 0)


def window_tokens(window: Window | None, deployment: Deployment) -> int | None:
    """Tokens a windowed layer holds at most; transformers keeps one less between steps."""
    if window is None:
        return None
    return window.tokens - 1 if deployment.engine == "transformers" else window.tokens


def growth_step_tokens(deployment: Deployment) -> int:
    """Tokens by which a per-token cache grows at a time (blocks are the plan's business)."""
    return _MLX_STEP_TOKENS if deployment.engine == "mlx" else 1


_NOT_IN_SERVING_ENGINES = {"rglru": "RG-LRU", "rwkv7": "RWKV-7"}


def assumed(mixer_kind: str, deployment: Deployment) -> bool:
    """Whether the rules for this mixer are ours for want of the engine's own."""
    if deployment.engine in ("vllm", "sglang"):
        return mixer_kind in _NOT_IN_SERVING_ENGINES
    return deployment.engine in ("llama.cpp", "mlx")


def assumptions(spec: ModelSpec, deployment: Deployment) -> tuple[str, ...]:
    """What an account under ``deployment`` takes for granted, as sentences."""
    engine = deployment.engine
    kinds = {mixer.kind for layer in spec.layers for mixer in layer.mixers}
    said = []
    if engine in ("llama.cpp", "mlx"):
        rule = "fp32 state and convolution" if engine == "llama.cpp" else "state in model dtype"
        said.append(
            f"{engine}: {rule}, a rule fitted to logged sizes of Gated DeltaNet models, not read "
            "from its code"
        )
    if engine in ("vllm", "sglang"):
        said += [
            f"{engine} has no {name} layers; its rules for recurrent states are assumed to apply"
            for kind, name in _NOT_IN_SERVING_ENGINES.items()
            if kind in kinds
        ]
        if "compressed" in kinds and deployment.kv_dtype is None:
            said.append(
                "packed rows of 584 bytes, as FlashMLA on SM90 stores them; an engine that runs "
                "FlashInfer on SM100 stores plain rows: --kv-dtype bfloat16"
            )
    if engine == "sglang" and any(_has_tail_ring(m) for x in spec.layers for m in x.mixers):
        said.append("the ring for tokens of an unfinished index pool is counted as vLLM keeps it")
    return tuple(said)


def _has_tail_ring(mixer: Mixer) -> bool:
    indexer = getattr(mixer, "indexer", None)
    return indexer is not None and indexer.owned and indexer.tail_ring


def check_parallel(deployment: Deployment) -> None:
    """Raises InputError for cuts that the engine does not make, or a version nobody taught us."""
    engine, tp, dcp = deployment.engine, deployment.tp, deployment.dcp
    if engine == "vllm" and deployment.version and not deployment.version.startswith(VLLM_VERSIONS):
        raise InputError(
            f"the rules of vLLM {deployment.version} are not known; known are those of "
            f"{' and '.join(VLLM_VERSIONS)}"
        )
    if engine in ("llama.cpp", "mlx") and tp > 1:
        raise InputError(
            f"{engine} does not cut heads over ranks (tp is {tp}); it spreads layers, so use "
            f"--tp 1 with --pp {tp}"
        )
    if dcp > 1 and engine not in ("vllm", "sglang"):
        raise InputError(f"{engine} has no decode context parallelism (dcp is {dcp}); use --dcp 1")
    if tp % dcp:
        raise InputError(f"dcp {dcp} must divide tp {tp}, because its ranks are taken from them")
