"""How heads, channels and layers are cut over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hybridplan.errors import InputError

T = TypeVar("T")


def split(count: int, ranks: int, what: str) -> int:
    """``count`` / ``ranks``, exact. Raises InputError naming both numbers when it is not."""
    if count % ranks:
        smaller = next(n for n in range(min(ranks, count), 0, -1) if count % n == 0)
        raise InputError(
            f"tensor parallel size {ranks} does not divide the {count} {what}; "
            f"the next smaller size that does is {smaller}"
        )
    return count // ranks


def kv_heads_per_rank(kv_heads: int, tp: int) -> tuple[int, int]:
    """KV heads on one rank, and how many ranks hold the same heads.

    Fewer heads than ranks are repeated (vllm.md 1.1: ``max(1, total_kv_heads // TP)``).
    """
    if kv_heads >= tp:
        return split(kv_heads, tp, "KV heads"), 1
    if tp % kv_heads:
        raise InputError(
            f"tensor parallel size {tp} is not a multiple of the {kv_heads} KV heads, "
            f"so they cannot be repeated evenly; {kv_heads} or {2 * kv_heads} ranks would work"
        )
    return 1, tp // kv_heads


def pipeline_stages(
    layers: Sequence[T], stages: int, engine: str = "vllm"
) -> tuple[tuple[T, ...], ...]:
    """Consecutive layers per pipeline stage.

    What does not divide goes one each to the stages just before the last in vLLM (the last holds
    the output head too), to the last stages in SGLang; both call it ``get_pp_indices``.
    """
    if stages > len(layers):
        raise InputError(
            f"pipeline parallel size {stages} is larger than the {len(layers)} layers; "
            f"{len(layers)} is the most"
        )
    sizes = [len(layers) // stages] * stages
    first = 1 if engine == "sglang" else 2
    for back in range(first, len(layers) % stages + first):
        sizes[-back] += 1
    cut: list[tuple[T, ...]] = []
    start = 0
    for size in sizes:
        cut.append(tuple(layers[start : start + size]))
        start += size
    return tuple(cut)
