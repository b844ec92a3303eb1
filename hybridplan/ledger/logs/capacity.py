"""Solving a logged capacity for the number of blocks behind it.

Two meanings of "GPU KV cache size": the old one counts blocks over groups times the block, the new
one (from 0.20.2) is concurrency times max_model_len. Both print concurrency to two decimals.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the log says of capacity; None for what it does not.

    ``needed_gib`` is what one request of ``max_model_len`` lacks ``short_gib`` for, where the
    server refused to start.
    """

    kv_tokens: int | None
    concurrency: float | None
    max_model_len: int | None
    num_blocks: int | None
    available_gib: float | None
    needed_gib: float | None = None
    short_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Solved:
    """A number of blocks that reproduces every stated figure; ``meaning`` is "old" or "new"."""

    num_blocks: int
    meaning: str
    agrees_with_memory: bool | None


def solve(
    logged: Capacity, *, groups: int, block_tokens: int, per_request: int, bytes_per_block: int
) -> Solved | None:
    """Blocks under which this pool would log those figures, or None if there are none.

    Where rounding leaves several, one that the logged memory allows is preferred.
    """
    found: Solved | None = None
    for meaning in ("new", "old"):
        tokens, length = logged.kv_tokens, logged.max_model_len
        for blocks in _possible(logged, meaning, groups, block_tokens, per_request):
            concurrency = blocks / per_request
            if logged.concurrency is not None and f"{concurrency:.2f}" != (
                f"{logged.concurrency:.2f}"
            ):
                continue
            if tokens is not None:
                printed = (
                    int(concurrency * (length or 0))
                    if meaning == "new"
                    else blocks // groups * block_tokens
                )
                if printed != tokens:
                    continue
            by_memory = _memory_agrees(logged.available_gib, blocks, bytes_per_block)
            if by_memory is not False:
                return Solved(blocks, meaning, by_memory)
            found = found or Solved(blocks, meaning, by_memory)
    return found


def _possible(
    logged: Capacity, meaning: str, groups: int, block_tokens: int, per_request: int
) -> range:
    if logged.num_blocks is not None:
        return range(logged.num_blocks, logged.num_blocks + 1)
    if logged.kv_tokens is not None and meaning == "new" and logged.max_model_len:
        near = logged.kv_tokens * per_request / logged.max_model_len
        return range(max(1, floor(near) - 1), ceil(near) + 2)
    if logged.kv_tokens is not None and meaning == "old":
        near_blocks = logged.kv_tokens // block_tokens * groups
        return range(near_blocks, near_blocks + groups)
    if logged.concurrency is not None:
        low = floor((logged.concurrency - 0.006) * per_request)
        return range(max(1, low), ceil((logged.concurrency + 0.006) * per_request) + 1)
    return range(0)


def blocks_from_memory(available_gib: float, bytes_per_block: int) -> tuple[int, int]:
    """Fewest and most blocks of a memory that was printed to two decimals."""
    low = (available_gib - 0.005) * GIB
    high = (available_gib + 0.005) * GIB
    return floor(low / bytes_per_block), floor(high / bytes_per_block)


def _memory_agrees(gib: float | None, blocks: int, bytes_per_block: int) -> bool | None:
    if gib is None:
        return None
    low, high = blocks_from_memory(gib, bytes_per_block)
    return low <= blocks <= high
