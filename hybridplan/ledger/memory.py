"""What a GPU leaves for the pools once weights, activations and graphs have theirs.

Weights come from the ledger; activations, graphs and the driver's context are assumptions, each
with the number used and the flag that replaces it. Rule: vLLM 0.33 ``request_memory`` and
``determine_available_memory`` (v1/worker): total x utilisation, less everything but the cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybridplan.config.spec import DenseMLP, ModelSpec, MoE
from hybridplan.errors import RefusalError
from hybridplan.ledger.dtypes import element_bytes
from hybridplan.ledger.figure import Figure, Input
from hybridplan.ledger.gpu import Gpu
from hybridplan.ledger.size import gib

GIB = 1024**3
VLLM_UTILISATION = 0.92
GRAPHS_BYTES = GIB // 2
CONTEXT_BYTES = 3 * GIB // 10
_LOGIT_COPIES = 3
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class BatchDefaults:
    """Limits vLLM's API server picks for a GPU when the user names none."""

    max_num_batched_tokens: int
    max_num_seqs: int


def batch_defaults(gpu: Gpu | None) -> BatchDefaults:
    """vLLM 0.33 ``get_batch_defaults``; without a GPU the small tier."""
    if gpu is None:
        return BatchDefaults(2048, 256)
    if gpu.memory_bytes >= 160 * GIB:
        return BatchDefaults(16384, 1024)
    if gpu.memory_bytes >= 70 * GIB and not gpu.name.startswith("a100") and gpu.arch != "sm121":
        return BatchDefaults(8192, 1024)
    return BatchDefaults(2048, 256)


@dataclass(frozen=True, slots=True)
class Budget:
    """Per rank, in bytes. ``parts`` explain every subtraction, in order."""

    total_bytes: int
    usable_bytes: int
    available_bytes: int
    parts: tuple[Figure, ...]


def activation_bytes(
    spec: ModelSpec, tp: int, max_num_batched_tokens: int, max_num_seqs: int
) -> Figure:
    """Peak activations of a full step: an estimate, not what the profiler will find."""
    width = max(
        (_mlp_width(layer.mlp) for layer in spec.layers if layer.mlp is not None), default=0
    )
    dtype_bytes = element_bytes(spec.dtype)
    per_token = (4 * spec.hidden_size + 2 * (width // tp)) * dtype_bytes
    logits = _LOGIT_COPIES * max_num_seqs * spec.vocab_size * _FLOAT32_BYTES
    value = max_num_batched_tokens * per_token + logits
    return Figure(
        name="activations",
        value=value,
        unit="bytes",
        formula="tokens x (4 hidden + 2 MLP width / tp) x bytes + 3 x seqs x vocabulary x 4",
        inputs=(
            Input("tokens", max_num_batched_tokens, "max_num_batched_tokens"),
            Input("hidden", spec.hidden_size, "model.hidden_size"),
            Input("MLP width", width, "widest MLP a token passes"),
            Input("seqs", max_num_seqs, "max_num_seqs"),
            Input("vocabulary", spec.vocab_size, "model.vocab_size"),
        ),
        how="assumed",
        source="an estimate of the profiling run's peak; set it with --activation-memory",
    )


def _mlp_width(mlp: DenseMLP | MoE) -> int:
    if isinstance(mlp, DenseMLP):
        return mlp.intermediate
    return mlp.topk * mlp.intermediate + mlp.shared_intermediate


def assumed(name: str, value: int, flag: str) -> Figure:
    """A fixed allowance, labelled, with the flag that replaces it."""
    return Figure(name, value, "bytes", "allowance", (), "assumed", f"set it with {flag}")


def stated(name: str, value: int, flag: str) -> Figure:
    """A figure the user gave."""
    return Figure(name, value, "bytes", flag, (Input(name, value, flag),), "exact", flag)


def budget(gpu: Gpu, utilisation: float, parts: tuple[Figure, ...]) -> Budget:
    """Memory for the pools: total x utilisation less ``parts``.

    Raises RefusalError when nothing is left, naming the largest part.
    """
    usable = math.ceil(gpu.memory_bytes * utilisation)
    taken = sum(int(part.value) for part in parts)
    if taken >= usable:
        largest = max(parts, key=lambda part: part.value)
        raise RefusalError(
            f"{gpu.title} gives {gib(usable)} at utilisation {utilisation:g} and weights, "
            f"activations and graphs take {gib(taken)} a rank ({largest.name} "
            f"{gib(int(largest.value))}); {gib(taken - usable)} are missing before any cache: "
            "raise --tp or choose a larger GPU"
        )
    return Budget(gpu.memory_bytes, usable, usable - taken, parts)
