"""Order of layers, blocks, heads, entries and bytes in the pool.

A layout names the five dimensions from outermost to innermost: L layers, B blocks, H head slots,
N entries, C content bytes. Source: vLLM 0.33 ``v1/attention/backends/utils.py``
(``resolve_kv_cache_layout``), ``v1/kv_cache_interface.py`` (``compute_layout_strides``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybridplan.errors import RefusalError
from hybridplan.ledger.vllm.page import AttentionCache, LayerCache

ANY_LAYOUT = ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC")
_TIE_ORDER = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


def block_outermost(layout: str) -> bool:
    """Whether one block's pages of all layers lie side by side."""
    return layout.startswith("B")


def layer_outermost(layout: str) -> bool:
    """Whether one layer's pages of all blocks lie side by side."""
    return layout.startswith("L")


def whole_pages(layout: str) -> bool:
    """Whether a page is one contiguous piece (vLLM: block-compact)."""
    return set(layout[:2]) == {"L", "B"}


def candidates(declared: Sequence[Sequence[str] | None]) -> tuple[str, ...]:
    """Layouts every backend supports, best first (``get_supported_kv_cache_layouts``).

    ``declared`` holds one list per backend, or None where any layout will do. Raises RefusalError
    where the lists share none.
    """
    lists = [tuple(one) for one in declared if one is not None] or [ANY_LAYOUT]
    if len(set(lists)) == 1:
        return lists[0]
    shared = set(lists[0]).intersection(*lists[1:])
    if not shared:
        raise RefusalError(f"the attention backends share no KV cache layout: {lists}")
    firsts = [one[0] for one in lists]
    return tuple(
        sorted(
            (layout for layout in _TIE_ORDER if layout in shared),
            key=lambda layout: -firsts.count(layout),
        )
    )


def _heads_entries_page(cache: LayerCache) -> tuple[int, int, int]:
    if isinstance(cache, AttentionCache):
        return cache.slots, cache.entries, cache.page_bytes
    return 1, 1, cache.page_bytes


def resolve(
    supported: Sequence[str], caches: Iterable[LayerCache], requested: str | None = None
) -> str:
    """The layout of the whole pool: the first candidate that can hold these caches.

    ``requested`` is ``VLLM_KV_CACHE_LAYOUT``. Raises RefusalError where no candidate can.
    """
    caches = tuple(caches)
    fitting = list(supported)
    if len({_heads_entries_page(cache) for cache in caches}) > 1:
        fitting = [layout for layout in fitting if whole_pages(layout)]
        if not fitting:
            raise RefusalError(
                f"layers with different pages need a layout of whole pages; the attention "
                f"backends support only {', '.join(supported)}"
            )
    sharded = {c.dcp_sharded for c in caches if isinstance(c, AttentionCache) and c.kind != "ring"}
    if len(sharded) > 1 and len({c.page_bytes for c in caches}) > 1:
        fitting = [layout for layout in fitting if block_outermost(layout)]
        if not fitting:
            raise RefusalError(
                "DCP with a draft on every rank and different page sizes needs a block-outermost "
                f"layout; the attention backends support only {', '.join(supported)}"
            )
    if requested is None:
        return fitting[0]
    if requested not in fitting:
        raise RefusalError(
            f"KV cache layout {requested} is not among those this model can use: "
            f"{', '.join(fitting)}"
        )
    return requested


def strides(
    cache: LayerCache,
    num_blocks: int,
    num_layers: int,
    layout: str,
    block_stride_bytes: int | None = None,
) -> tuple[int, int]:
    """Bytes from one layer to the next and from one block to the next, in one tensor entry.

    ``block_stride_bytes`` fixes the block stride. Raises RefusalError where a padded page would
    have to be cut (layouts that interleave heads of several layers or blocks).
    """
    slots, entries, _ = _heads_entries_page(cache)
    content = cache.content_bytes // (slots * entries)
    size = {"L": num_layers, "B": num_blocks, "H": slots, "N": entries, "C": content}
    grid_end = max(layout.index("L"), layout.index("B"))
    if cache.padded_page_bytes is not None:
        outside = [d for d in layout[: grid_end + 1] if d not in "LB" and size[d] > 1]
        if outside:
            raise RefusalError(f"layout {layout} cannot hold padded pages of more than one head")
    step = 1
    found: dict[str, int] = {}
    for index in reversed(range(len(layout))):
        dim = layout[index]
        if index == grid_end and cache.padded_page_bytes is not None:
            step = max(step, cache.padded_page_bytes)
        found[dim] = step if dim != "B" or block_stride_bytes is None else block_stride_bytes
        step = found[dim] * size[dim]
    return found["L"], found["B"]
