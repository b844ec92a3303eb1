"""What ``cache_dtype`` a model ends up with in vLLM, by the engine's own name."""

from __future__ import annotations

from collections.abc import Iterator

from hybridplan.config.spec import Attending, Attention, LatentAttention, Layer, ModelSpec
from hybridplan.errors import RefusalError
from hybridplan.ledger.conventions import model_dtype
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import canonical
from hybridplan.ledger.kv_formats import PACKED
from hybridplan.ledger.vllm.options import Generation
from hybridplan.ledger.vllm.rules import VersionRules

_SHORT = {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8_e5m2"}
AUTO = "auto"


def attending(layers: tuple[Layer, ...]) -> Iterator[Attending]:
    """Every attention mixer of the layers, in order."""
    for layer in layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention | LatentAttention):
                yield mixer


def sparse(mixer: Attending) -> bool:
    """Whether the mixer attends to what an indexer picked, its own or another layer's."""
    return mixer.indexer is not None


def cache_dtype(
    spec: ModelSpec, deployment: Deployment, generation: Generation, rules: VersionRules
) -> str:
    """The engine's ``cache_dtype`` before a backend narrows it: "auto", "fp8", "nvfp4", ...

    Raises RefusalError for a plain 16-bit dtype other than the model's.
    """
    stated = spec.quantization.kv_dtype if spec.quantization else None
    asked = deployment.kv_dtype or stated or AUTO
    if asked == AUTO:
        pooled = any(
            sparse(m) and m.indexer is not None and m.indexer.form == "kpool"
            for m in attending(spec.layers)
        )
        return "fp8" if pooled and generation == "sm100" and rules.glm_fp8_on_sm100 else AUTO
    if asked in PACKED:
        return asked
    plain = canonical(asked)
    if plain in _SHORT:
        return _SHORT[plain]
    own = model_dtype(spec, deployment)
    if plain != own and rules.kv_is_model_dtype:
        raise RefusalError(
            f"KV dtype {plain} is refused by vLLM for a model that runs in {own}; use {own} or fp8"
        )
    wide = any(isinstance(m, LatentAttention) and sparse(m) for m in attending(spec.layers))
    dsa = wide and not any(layer_states(layer) for layer in spec.layers)
    return AUTO if dsa else plain


def layer_states(layer: Layer) -> bool:
    """Whether the layer keeps a recurrent state."""
    return any(m.kind not in ("attention", "mla", "compressed", "gmu") for m in layer.mixers)
