"""The most tokens of KV any cache of a given size can hit: Belady's rule by bytes.

KV is divisible: part of a stretch can be kept, its head first. At every moment the tokens whose
next use is nearest are kept, the deeper ones of one request last; that is optimal, as all tokens
weigh the same, and it never keeps a token without its prefix. The memory of the running request
is not charged, so real caches stay below.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from hybridplan.errors import InputError
from hybridplan.sim.bound.trie import Stretch, Trie


def optimal_kv_hits(trie: Trie, capacity_tokens: int) -> tuple[int, ...]:
    """Hit tokens of each request if only KV counted, ``capacity_tokens`` kept between requests.

    The sum is the maximum over all policies. Raises InputError on a negative capacity.
    """
    if capacity_tokens < 0:
        raise InputError(f"capacity of {capacity_tokens} KV tokens is negative")
    uses = _next_uses(trie)
    held: dict[Stretch, int] = {}
    next_use: dict[Stretch, int] = {}
    farthest: list[tuple[int, int, int, Stretch]] = []
    total, count, hits = 0, 0, []
    for index, passage in enumerate(trie.passages):
        hit = 0
        for stretch in passage.prompt:
            hit += held.get(stretch, 0)
            if held.get(stretch, 0) < stretch.tokens:
                break
        hits.append(hit)
        for stretch in (*passage.prompt, *passage.rest):
            total -= held.pop(stretch, 0)
            following = uses[stretch].get(index)
            if following is None:
                continue
            held[stretch] = stretch.tokens
            next_use[stretch] = following
            total += stretch.tokens
            count += 1
            heapq.heappush(farthest, (-following, -stretch.end, count, stretch))
        while total > capacity_tokens:
            negative, _, _, stretch = farthest[0]
            if next_use.get(stretch) != -negative or stretch not in held:
                heapq.heappop(farthest)
                continue
            dropped = min(total - capacity_tokens, held[stretch])
            held[stretch] -= dropped
            total -= dropped
            if held[stretch] == 0:
                del held[stretch]
    return tuple(hits)


def _next_uses(trie: Trie) -> dict[Stretch, dict[int, int]]:
    """For each stretch: after which request it is next hit by which. Where the next request to
    pass makes it anew (it is in that one's output), keeping it is worth nothing."""
    uses: dict[Stretch, dict[int, int]] = defaultdict(dict)
    upcoming: dict[Stretch, int | None] = {}
    for index in range(len(trie.passages) - 1, -1, -1):
        passage = trie.passages[index]
        for stretch in (*passage.prompt, *passage.rest):
            following = upcoming.get(stretch)
            if following is not None:
                uses[stretch][index] = following
        upcoming.update(dict.fromkeys(passage.prompt, index))
        upcoming.update(dict.fromkeys(passage.rest, None))
    return uses
