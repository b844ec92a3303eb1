"""When layers can share one block table.

Two questions vLLM asks (``KVCacheSpec.merge`` and ``UniformTypeKVCacheSpecs.is_uniform_type`` in
``v1/kv_cache_interface.py``): can these specs become one spec, and do these layers need the same
number of blocks at any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybridplan.errors import RefusalError
from hybridplan.ledger.vllm.page import AttentionCache, LayerCache, StateCache


class _DifferentWindowsError(RefusalError):
    """Layers kept as full attention that look back over different windows."""


def merged(caches: Sequence[LayerCache]) -> LayerCache | None:
    """One spec for all, or None where they differ.

    Full (GQA) layers may differ in window or chunk alone, if those that have one agree. Everything
    else must be equal. Raises RefusalError for full layers with two different windows.
    """
    first = caches[0]
    if not isinstance(first, AttentionCache) or first.kind != "full":
        return first if all(cache == first for cache in caches) else None
    full = [c for c in caches if isinstance(c, AttentionCache) and c.kind == "full"]
    if len(full) != len(caches):
        return None
    window = _only({c.window_tokens for c in full if c.window_tokens is not None})
    chunk = _only({c.chunk_tokens for c in full if c.chunk_tokens is not None})
    one = replace(first, window_tokens=window, chunk_tokens=chunk)
    if any(replace(c, window_tokens=window, chunk_tokens=chunk) != one for c in full):
        return None
    return None if window is not None and chunk is not None else one


def mergeable(caches: Sequence[LayerCache]) -> bool:
    """Whether :func:`merged` finds one spec; different windows count as no."""
    try:
        return merged(caches) is not None
    except _DifferentWindowsError:
        return False


def uniform_type(caches: Sequence[LayerCache]) -> bool:
    """Whether all layers need the same blocks at any length, though pages may differ in size."""
    first = caches[0]
    if any(
        c.block_tokens != first.block_tokens or c.dcp_sharded != first.dcp_sharded for c in caches
    ):
        return False
    if isinstance(first, StateCache):
        return all(isinstance(c, StateCache) and _same_states(c, first) for c in caches)
    return all(isinstance(c, AttentionCache) and _same_reach(c, first) for c in caches)


def _only(values: set[int]) -> int | None:
    if len(values) > 1:
        raise _DifferentWindowsError(
            f"layers kept as full attention have windows of {sorted(values)} tokens; vLLM takes "
            "one window per group: keep the hybrid KV cache manager on"
        )
    return values.pop() if values else None


def _same_states(one: StateCache, other: StateCache) -> bool:
    return (
        one.speculative_blocks == other.speculative_blocks
        and one.checkpoint_blocks == other.checkpoint_blocks
        and one.checkpoint_alignment_tokens == other.checkpoint_alignment_tokens
        and one.page_bytes == other.page_bytes
        and one.replicated == other.replicated
    )


def _same_reach(one: AttentionCache, first: AttentionCache) -> bool:
    if first.kind in ("full", "mla"):
        return one.kind in ("full", "mla")
    if first.kind == "sliding":
        return one.kind == "sliding" and one.window_tokens == first.window_tokens
    if first.kind == "chunked":
        return one.kind == "chunked" and one.chunk_tokens == first.chunk_tokens
    return one.kind == "ring"
