"""Any model's costs for Marconi's score: bytes from the ledger, FLOPs from its weights.

Bytes are those one rank really holds. FLOPs are an estimate for the whole model, forward, batch 1:
two for each weight a token meets (the head meets only the last token and is left out), the paper's
4 L² per attention channel (half for scores, half for values, no causal saving) and the paper's 8
per element of a recurrent state. The score is normalised, so a common factor does not matter.
"""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.spec import Attention, CompressedAttention, LatentAttention, Mixer, ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.sglang.plan import kv_bytes_per_token, slot_bytes
from hybridplan.ledger.weights import weights
from hybridplan.sim.marconi.costs import ModelCosts

_FLOPS_PER_STATE_ELEMENT = 8
_MLP = ("mlp", "experts", "shared_experts", "routers")


def costs_of(spec: ModelSpec, deployment: Deployment) -> ModelCosts:
    """Costs of a model as deployed.

    Raises InputError for windowed and compressed attention, whose KV does not grow with each token.
    """
    if any(isinstance(m, CompressedAttention) for layer in spec.layers for m in layer.mixers):
        raise InputError(
            f"{spec.name} compresses its KV, so a token has no fixed bytes; Marconi's costs need it"
        )
    layers = model_caches(spec, deployment)
    whole = model_caches(spec, replace(deployment, tp=1, pp=1, dcp=1))
    active = {part.name: part.active_params for part in weights(spec).components}
    channels = [
        width for layer in spec.layers for mixer in layer.mixers if (width := _channels(mixer))
    ]
    mlps = sum(layer.mlp is not None for layer in spec.layers)
    elements = sum(
        part.elements for layer in whole for part in layer.states if part.name == "state"
    )
    return ModelCosts(
        state_bytes=sum(slot_bytes(layers)),
        kv_bytes_per_token=kv_bytes_per_token(layers, spec.name),
        attention_layers=len(channels),
        mlp_layers=mlps,
        attention_linear_flops=2 * active.get("attention", 0) // max(1, len(channels)),
        attention_square_flops=2 * sum(channels) // max(1, len(channels)),
        mlp_layer_flops=2 * sum(active.get(name, 0) for name in _MLP) // max(1, mlps),
        state_flops=2 * active.get("recurrent", 0) + _FLOPS_PER_STATE_ELEMENT * elements,
    )


def _channels(mixer: Mixer) -> int:
    """Query-key and value channels of an attention mixer, over all heads; 0 for any other."""
    if isinstance(mixer, Attention):
        return mixer.heads * (mixer.key_dim + mixer.value_dim)
    if isinstance(mixer, LatentAttention):
        return mixer.heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim)
    return 0
