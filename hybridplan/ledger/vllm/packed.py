"""Packed grouping: pages of different size side by side in one block.

Source: vLLM 0.33 ``v1/core/kv_cache_planning.py`` (``_get_packed_kv_cache_groups``,
``_approximate_gcd``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybridplan.ledger.vllm.page import LayerCache, StateCache
from hybridplan.ledger.vllm.uniform import uniform_type


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Layers of one uniform type; ``by_page`` maps page bytes to the names that have them."""

    layers: Mapping[str, LayerCache]
    by_page: Mapping[int, tuple[str, ...]]

    @property
    def repeats(self) -> int:
        return max(len(names) for names in self.by_page.values())

    @property
    def balanced(self) -> bool:
        return len({len(names) for names in self.by_page.values()}) == 1

    @property
    def first(self) -> LayerCache:
        return next(iter(self.layers.values()))

    def widest_part_bytes(self, parts: int) -> int:
        return sum(-(-len(names) // parts) * page for page, names in self.by_page.items())


def packed_buckets(layers: Mapping[str, LayerCache]) -> list[tuple[str, ...]]:
    """Names per group.

    Buckets that pair pages of several sizes stay whole and set how many layers a group repeats;
    the widest group that cannot be cut further (the anchor) sets the bytes of a block; buckets of
    states are cut until they fit into it.
    """
    buckets = _buckets(layers)
    balanced = [bucket for bucket in buckets if bucket.balanced]
    floor = max((b.repeats for b in balanced if len(b.by_page) > 1), default=0)
    repeats = least_padding([b.repeats for b in balanced], floor) if floor else None

    def parts(bucket: _Bucket) -> int:
        if bucket.balanced and repeats is not None:
            return -(-bucket.repeats // repeats)
        return 1

    def holds_states(bucket: _Bucket) -> bool:
        first = bucket.first
        if isinstance(first, StateCache) or first.kind == "ring":
            return True
        return repeats is None and first.kind == "sliding"

    anchor_bytes = max(
        b.widest_part_bytes(len(b.layers) if holds_states(b) else parts(b)) for b in buckets
    )
    groups: list[tuple[str, ...]] = []
    for bucket in buckets:
        count = parts(bucket)
        if holds_states(bucket):
            per_block = max(anchor_bytes // bucket.first.page_bytes, 1)
            count = max(count, -(-len(bucket.layers) // per_block))
        if count == 1:
            groups.append(tuple(bucket.layers))
            continue
        tuples = list(zip(*bucket.by_page.values(), strict=False))
        groups += [tuple(n for one in tuples[i::count] for n in one) for i in range(count)]
    return groups


def least_padding(counts: Sequence[int], floor: int) -> int:
    """The d from ``floor`` to the largest count that rounds all counts up by the least in total.

    Ties go to the larger d.
    """
    return min(
        range(floor, max(counts) + 1),
        key=lambda d: (sum(-count % d for count in counts), -d),
    )


def _buckets(layers: Mapping[str, LayerCache]) -> list[_Bucket]:
    found: list[dict[str, LayerCache]] = []
    for name, cache in layers.items():
        for bucket in found:
            if uniform_type([next(iter(bucket.values())), cache]):
                bucket[name] = cache
                break
        else:
            found.append({name: cache})
    return [_Bucket(bucket, _by_page(bucket)) for bucket in found]


def _by_page(layers: Mapping[str, LayerCache]) -> dict[int, tuple[str, ...]]:
    pages: dict[int, tuple[str, ...]] = {}
    for name, cache in layers.items():
        pages[cache.page_bytes] = (*pages.get(cache.page_bytes, ()), name)
    return pages
