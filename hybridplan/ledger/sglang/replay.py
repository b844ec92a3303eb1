"""Rings of recorded inputs that replace intermediate states (ReplaySSM in SGLang 0.5.23).

Rules: mem_cache/memory_pool.py and configs/mamba_utils.py; specification state_recovery section 1.
"""

from __future__ import annotations

from hybridplan.config.spec import GatedDeltaNet, KimiDelta, Mixer, ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger import conventions
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import element_bytes

_FLOAT32_BYTES = 4


def _linear_mixers(spec: ModelSpec) -> list[Mixer]:
    return [m for layer in spec.layers for m in layer.mixers if m.kind in ("gdn", "kda")]


def decode_ring_bytes(spec: ModelSpec, deployment: Deployment, rows: int) -> int:
    """Bytes per slot of the decode ring: corrected value and key in the state dtype, gate fp32."""
    total = 0
    for mixer in _linear_mixers(spec):
        if not isinstance(mixer, GatedDeltaNet):
            raise InputError("--enable-linear-replayssm covers Gated DeltaNet layers, not KDA ones")
        state = element_bytes(conventions.state_dtype(spec, mixer, deployment))
        heads, key_heads = mixer.value_heads // deployment.tp, mixer.key_heads // deployment.tp
        record = (heads * mixer.value_dim + key_heads * mixer.key_dim) * state
        total += rows * (record + heads * _FLOAT32_BYTES)
    return total


def verify_ring_bytes(spec: ModelSpec, deployment: Deployment, rows: int) -> tuple[int, int]:
    """Bytes of the verify ring per running request (Gated DeltaNet) and per slot (KDA).

    Records are in the activation dtype with low parts beside unless that is float32. KDA's rows
    are a power of two that holds two verify windows.
    """
    activation = element_bytes(conventions.model_dtype(spec, deployment))
    parts = 1 if activation == _FLOAT32_BYTES else 2
    verify_tokens = deployment.drafts + 1
    per_request = per_slot = 0
    for mixer in _linear_mixers(spec):
        if isinstance(mixer, GatedDeltaNet):
            heads, key_heads = mixer.value_heads // deployment.tp, mixer.key_heads // deployment.tp
            record = (heads * mixer.value_dim + key_heads * mixer.key_dim) * activation * parts
            per_request += rows * (record + heads * _FLOAT32_BYTES)
        elif isinstance(mixer, KimiDelta):
            heads = mixer.heads // deployment.tp
            record = 2 * heads * mixer.head_dim * activation * 2
            gates = heads * _FLOAT32_BYTES * (1 + mixer.head_dim)
            ring = 1 << (max(rows, 2 * verify_tokens) - 1).bit_length()
            per_slot += ring * (record + gates)
    if not per_request and not per_slot:
        raise InputError(
            "--enable-linear-replayssm-spec needs Gated DeltaNet or KDA layers and "
            f"{spec.name} has none"
        )
    return per_request, per_slot
