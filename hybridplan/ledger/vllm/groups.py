"""Which layers share a block table.

Source: vLLM 0.33 ``v1/core/kv_cache_planning.py`` (0.32: ``v1/core/kv_cache_utils.py``),
``get_kv_cache_groups`` and what it calls. Names are the engine's module names; the order of the
mapping is the order in which the model registers its layers, and it decides membership.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from hybridplan.errors import RefusalError
from hybridplan.ledger.vllm.layout import block_outermost
from hybridplan.ledger.vllm.packed import packed_buckets
from hybridplan.ledger.vllm.page import AttentionCache, LayerCache, RequestLimits, StateCache
from hybridplan.ledger.vllm.uniform import mergeable, merged, uniform_type

Layers: TypeAlias = Mapping[str, LayerCache]
Rule: TypeAlias = Literal["one spec", "uniform type", "equal pages", "packed", "full allocation"]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers under one block table.

    ``layers`` in block order with the spec each got after page unification. ``mixed``: each layer
    kept its own spec (vLLM's UniformTypeKVCacheSpecs); otherwise all share ``caches[0]``.
    ``padding_layers``: of ``bucket_layers`` layers cut into groups of one width, the slots left
    empty, told on the first of those groups. ``draft``: holds a draft layer and takes the EAGLE
    drop.
    """

    layers: tuple[str, ...]
    caches: tuple[LayerCache, ...]
    mixed: bool = False
    padding_layers: int = 0
    bucket_layers: int = 0
    draft: bool = False

    @property
    def block_tokens(self) -> int:
        """Tokens one block covers (on one DCP rank)."""
        return self.caches[0].block_tokens

    @property
    def page_bytes(self) -> int:
        """Sum of the pages of the group's layers."""
        return sum(cache.page_bytes for cache in self.caches)

    @property
    def content_bytes(self) -> int:
        """What of :attr:`page_bytes` holds data."""
        return sum(cache.content_bytes for cache in self.caches)

    @property
    def prefix_cacheable(self) -> bool:
        """Whether blocks of this group are ever shared."""
        return all(cache.prefix_cacheable for cache in self.caches)

    @property
    def kind(self) -> str:
        """What the group holds: a StateCache's type, or an AttentionCache's kind."""
        first = self.caches[0]
        return first.state_type if isinstance(first, StateCache) else first.kind

    def blocks_per_request(self, limits: RequestLimits) -> int:
        """Blocks of this group that a request at max_model_len holds."""
        return max(cache.blocks_per_request(limits) for cache in self.caches)


@dataclass(frozen=True, slots=True)
class Grouping:
    """All groups, in the engine's order, and the rule that made them."""

    groups: tuple[CacheGroup, ...]
    rule: Rule
    notes: tuple[str, ...] = ()


def group_layers(
    layers: Layers, layout: str, *, hybrid_manager: bool = True, width: int | None = None
) -> Grouping:
    """Split layers into groups; ``width`` sets the layers of a group where pages are made equal.

    ``hybrid_manager`` False is ``--disable-hybrid-kv-cache-manager``: local attention is kept as if
    it were full. Raises RefusalError where vLLM cannot give all layers one page size.
    """
    if not hybrid_manager:
        layers = _promote_all(layers)
    if not layers:
        return Grouping((), "one spec")
    caches = list(layers.values())
    one = merged(caches)
    if one is not None:
        return Grouping((CacheGroup(tuple(layers), (one,) * len(caches)),), "one spec")
    if uniform_type(caches):
        return Grouping((_mixed(layers),), "uniform type")
    if block_outermost(layout) and len({cache.page_bytes for cache in caches}) > 1:
        parts = packed_buckets(layers)
        return Grouping(tuple(_mixed({n: layers[n] for n in part}) for part in parts), "packed")
    unified = _unify_pages(layers)
    if isinstance(unified, str):
        promoted = _full_allocation(layers)
        if promoted is None:
            raise RefusalError(unified)
        note = "page sizes cannot be made equal; sliding-window layers are kept as full attention"
        return Grouping((_mixed(promoted),), "full allocation", (note,))
    return Grouping(_equal_pages(unified, width), "equal pages")


def _mixed(layers: Layers) -> CacheGroup:
    return CacheGroup(tuple(layers), tuple(layers.values()), mixed=True)


def _unify_pages(layers: Layers) -> Layers | str:
    """Every layer at the largest page, or the sentence that says why not."""
    widest = max(cache.page_bytes for cache in layers.values())
    unified: dict[str, LayerCache] = {}
    for name, cache in layers.items():
        page = cache.page_bytes
        if page == widest:
            unified[name] = cache
        elif isinstance(cache, StateCache):
            unified[name] = replace(cache, padded_page_bytes=widest)
        elif widest % page == 0:
            longer = replace(cache, block_tokens=cache.block_tokens * (widest // page))
            if longer.page_bytes != widest:
                return (
                    f"layer {name} has a page fixed at {page} bytes and cannot grow to the "
                    f"{widest} bytes of the widest layer"
                )
            unified[name] = longer
        elif cache.kind != "mla":
            unified[name] = replace(cache, padded_page_bytes=widest)
        else:
            return (
                f"layer {name} (MLA) has a page of {page} bytes, which does not divide the "
                f"{widest} bytes of the widest layer, and vLLM pads no MLA page: choose a block "
                "size or KV dtype under which it does"
            )
    return unified


def group_width(bucket_layers: Sequence[int]) -> int:
    """Layers per group under the equal-page rule.

    The smallest bucket, unless the largest is less than 1.5 times as large: then the largest.
    """
    least, most = min(bucket_layers), max(bucket_layers)
    return most if 2 * most < 3 * least else least


def _equal_pages(layers: Layers, wanted: int | None) -> tuple[CacheGroup, ...]:
    by_spec: dict[LayerCache, list[str]] = {}
    for name, cache in layers.items():
        by_spec.setdefault(cache, []).append(name)
    buckets: list[tuple[list[str], list[LayerCache]]] = []
    for cache, names in by_spec.items():
        for members, specs in buckets:
            if mergeable([*specs, cache]):
                members.extend(names)
                specs.append(cache)
                break
        else:
            buckets.append((list(names), [cache]))
    width = wanted or group_width([len(members) for members, _ in buckets])
    groups = []
    for members, _ in buckets:
        count = -(-len(members) // width)
        empty = -len(members) % width
        for first in range(count):
            part = members[first::count]
            spec = merged([layers[name] for name in part])
            assert spec is not None
            groups.append(
                CacheGroup(
                    tuple(part),
                    (spec,) * len(part),
                    padding_layers=0 if first else empty,
                    bucket_layers=len(members),
                )
            )
    return tuple(groups)


def _promote(layers: Layers) -> Layers | None:
    """Local attention turned into full attention, or None where that gives no single type."""
    caches = list(layers.values())
    if merged(caches) is not None or uniform_type(caches):
        return layers
    full = [c for c in caches if isinstance(c, AttentionCache) and c.kind in ("full", "mla")]
    local = [
        c for c in caches if isinstance(c, AttentionCache) and c.kind in ("sliding", "chunked")
    ]
    blocks = {cache.block_tokens for cache in full}
    promoted = dict(layers)
    if full and local:
        shared_block = blocks.pop() if len(blocks) == 1 else None
        for name, cache in layers.items():
            if isinstance(cache, AttentionCache) and cache.kind in ("sliding", "chunked"):
                block = shared_block or cache.block_tokens
                promoted[name] = _as_full(cache, block)
    caches = list(promoted.values())
    return promoted if merged(caches) is not None or uniform_type(caches) else None


def _as_full(cache: AttentionCache, block: int) -> AttentionCache:
    padded = cache.padded_page_bytes
    if padded is not None:
        padded = max(padded, cache.content_bytes * block // cache.block_tokens)
    return replace(
        cache,
        kind="full",
        block_tokens=block,
        padded_page_bytes=padded,
        extra_retained_tokens=0,
    )


def _promote_all(layers: Layers) -> Layers:
    promoted = dict(layers)
    for replicated in (False, True):
        part = {
            name: cache
            for name, cache in layers.items()
            if (isinstance(cache, AttentionCache) and not cache.dcp_sharded) == replicated
        }
        if not part:
            continue
        full = _promote(part)
        if full is None:
            raise RefusalError(
                "the hybrid KV cache manager is off, but these layers cannot be kept as one type "
                "of full attention: leave it on"
            )
        promoted.update(full)
    return promoted


def _full_allocation(layers: Layers) -> Layers | None:
    caches = [cache for cache in layers.values() if isinstance(cache, AttentionCache)]
    kinds = {cache.kind for cache in caches}
    if "chunked" in kinds or not {"mla", "sliding"} <= kinds:
        return None
    promoted = _promote(layers)
    if promoted is None or not uniform_type(list(promoted.values())):
        return None
    return promoted
