"""From groups to the pool: bytes of a block, strides, number of blocks, what one request takes.

Source: vLLM 0.33 ``v1/core/kv_cache_planning.py`` (``_get_kv_cache_bytes_per_block``,
``get_kv_cache_config_from_groups``, ``get_kv_cache_configs``); 0.32 has the same rules in
``v1/core/kv_cache_utils.py``. Bytes are per rank.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import lcm

from hybridplan.errors import RefusalError
from hybridplan.ledger.vllm import layout as layouts
from hybridplan.ledger.vllm.groups import CacheGroup
from hybridplan.ledger.vllm.page import LayerCache, RequestLimits

GIB = 2**30


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Layers of equal spec in one region of the pool.

    Block b of the i-th layer starts at ``offset_bytes`` + i x ``layer_stride_bytes`` +
    b x ``block_stride_bytes``; every group starts at byte 0 of the same memory.
    """

    layers: tuple[str, ...]
    cache: LayerCache
    size_bytes: int
    offset_bytes: int
    layer_stride_bytes: int
    block_stride_bytes: int

    def kernel_blocks(self, block: int, kernel_tokens: int) -> range:
        """Kernel blocks (or rows) of ``kernel_tokens`` tokens that pool block ``block`` is.

        Counted from where the first layer's cache begins. Raises RefusalError where pages or
        strides do not hold whole ones.
        """
        size = self.cache.page_bytes * kernel_tokens // self.cache.block_tokens
        if self.block_stride_bytes % size or self.cache.block_tokens % kernel_tokens:
            raise RefusalError(
                f"a block stride of {self.block_stride_bytes} bytes does not hold whole kernel "
                f"blocks of {kernel_tokens} tokens ({size} bytes)"
            )
        first = block * (self.block_stride_bytes // size)
        return range(first, first + self.cache.block_tokens // kernel_tokens)


@dataclass(frozen=True, slots=True)
class RankPool:
    """The pool of one pipeline rank: its part of every group, and where each layer lies."""

    groups: tuple[CacheGroup, ...]
    available_bytes: int
    page_bytes_per_block: int
    stride_alignment_bytes: int
    bytes_per_block: int
    num_blocks: int
    tensors: tuple[TensorEntry, ...]


class DoesNotFitError(RefusalError):
    """One request of max_model_len does not fit into the pool (vLLM raises at start-up).

    ``needed_bytes`` and ``usable_bytes`` (null block taken off) are those of the message;
    ``longest_tokens`` is the longest length that would fit, 0 for none.
    """

    def __init__(self, sentence: str, needed: int, usable: int, longest: int) -> None:
        super().__init__(sentence)
        self.needed_bytes = needed
        self.usable_bytes = usable
        self.longest_tokens = longest


def stride_alignment(groups: Sequence[CacheGroup]) -> int:
    """Least common multiple of what all layers ask of a block's stride, in bytes."""
    return lcm(*(cache.stride_alignment_bytes for group in groups for cache in group.caches))


def page_bytes_per_block(groups: Sequence[CacheGroup]) -> int:
    """Pages of the widest group, in bytes, before alignment."""
    return max((group.page_bytes for group in groups), default=0)


def bytes_per_block(groups: Sequence[CacheGroup], layout: str) -> int:
    """Bytes one block id stands for on this rank."""
    if layouts.block_outermost(layout):
        return _up(page_bytes_per_block(groups), stride_alignment(groups))
    return max(
        sum(_up(cache.page_bytes, cache.stride_alignment_bytes) for cache in group.caches)
        for group in groups
    )


def check_layout(groups: Sequence[CacheGroup], layout: str) -> None:
    """Raise RefusalError where the layout cannot hold pages of different size, or padded ones."""
    caches = {cache for group in groups for cache in group.caches}
    for cache in caches:
        aligned = _up(cache.page_bytes, cache.stride_alignment_bytes)
        cut = layouts.layer_outermost(layout) and not layouts.whole_pages(layout)
        if cut and aligned != cache.page_bytes:
            raise RefusalError(
                f"layout {layout} cannot pad a page of {cache.page_bytes} bytes to {aligned} "
                "bytes; use one of whole pages (LBNHC)"
            )
        layouts.strides(cache, 1, 1, layout)
    pages = sorted({cache.page_bytes for cache in caches})
    if len(pages) == 1:
        return
    several_in_layers = len(groups) > 1 and layouts.layer_outermost(layout)
    if not layouts.whole_pages(layout) or several_in_layers:
        raise RefusalError(
            f"layout {layout} cannot hold the page sizes {pages} bytes of {len(groups)} groups; "
            "use a block-outermost layout (BLHNC)"
        )


def on_rank(groups: Sequence[CacheGroup], names: Collection[str]) -> tuple[CacheGroup, ...]:
    """The part of each group whose layers this rank holds; a group may be empty there."""
    parts = []
    for group in groups:
        kept = [i for i, name in enumerate(group.layers) if name in names]
        layers = tuple(group.layers[i] for i in kept)
        caches = tuple(group.caches[i] for i in kept)
        parts.append(replace(group, layers=layers, caches=caches))
    return tuple(parts)


def place(groups: Sequence[CacheGroup], layout: str, num_blocks: int) -> tuple[TensorEntry, ...]:
    """Offsets and strides of every layer."""
    block_bytes = bytes_per_block(groups, layout)
    outer = layouts.block_outermost(layout)
    entries = []
    for group in groups:
        members: dict[LayerCache, list[str]] = {}
        for name, cache in zip(group.layers, group.caches, strict=True):
            members.setdefault(cache, []).append(name)
        offset = 0
        for cache, names in members.items():
            stride = block_bytes if outer else None
            aligned = _up(cache.page_bytes, cache.stride_alignment_bytes)
            if not outer and aligned != cache.page_bytes:
                stride = aligned
            layer, block = layouts.strides(cache, num_blocks, len(names), layout, stride)
            entries.append(
                TensorEntry(tuple(names), cache, block_bytes * num_blocks, offset, layer, block)
            )
            offset += len(names) * (cache.page_bytes if outer else layer)
    return tuple(entries)


def request_blocks(groups: Sequence[CacheGroup], limits: RequestLimits) -> int:
    """Blocks a request at max_model_len takes from the pool, over all groups."""
    return sum(group.blocks_per_request(limits) for group in groups)


def longest_that_fits(
    groups: Sequence[CacheGroup], limits: RequestLimits, num_blocks: int, limit_tokens: int
) -> int:
    """The longest request, up to ``limit_tokens``, that needs at most ``num_blocks`` blocks."""

    def fits(tokens: int) -> bool:
        return request_blocks(groups, replace(limits, max_model_len=tokens)) <= num_blocks

    if not fits(1):
        return 0
    low, high = 1, limit_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def check_fit(
    groups: Sequence[CacheGroup],
    limits: RequestLimits,
    available_bytes: int,
    block_bytes: int,
    *,
    null_block: bool = True,
) -> None:
    """Raise DoesNotFitError unless one request fits, beside the null block if that is set."""
    usable = available_bytes - (block_bytes if null_block else 0)
    if usable <= 0:
        raise DoesNotFitError(
            f"the pool has {available_bytes:,} bytes but one block takes {block_bytes:,} bytes and "
            f"the null block needs one of its own; give it at least {2 * block_bytes:,} bytes",
            block_bytes,
            usable,
            0,
        )
    blocks = request_blocks(groups, limits)
    needed = blocks * block_bytes
    if needed <= usable:
        return
    longest = longest_that_fits(groups, limits, usable // block_bytes, limits.max_model_len)
    more = needed + block_bytes - available_bytes
    change = f"set --max-model-len {longest} or find {more:,} more bytes"
    if longest == 0:
        change = f"no length fits: find {more:,} more bytes"
    raise DoesNotFitError(
        f"one request of max_model_len {limits.max_model_len:,} takes {blocks:,} blocks, "
        f"{needed:,} bytes ({needed / GIB:.2f} GiB), but the pool has {usable:,} bytes "
        f"({usable / GIB:.2f} GiB) beside its null block; {change}",
        needed,
        usable,
        longest,
    )


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
