"""What is possible on a trace, whatever the policy: how far any cache is from the best one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hybridplan.sim.bound.kv import optimal_kv_hits
from hybridplan.sim.bound.states import state_hits_bound
from hybridplan.sim.bound.trie import Trie
from hybridplan.sim.request import Request


@dataclass(frozen=True, slots=True)
class CacheBounds:
    """Upper bounds on hit tokens over a whole trace.

    ``infinite_hit_tokens``: nothing is ever forgotten. ``kv_hit_tokens``: the best eviction of
    ``kv_tokens`` tokens of KV if states cost nothing (exact). ``state_hit_tokens``: ``states``
    slots if KV costs nothing (a bound; the best policy may stay below). A hybrid needs both, so
    ``hit_tokens`` is the smallest of the three.
    """

    prompt_tokens: int
    kv_tokens: int
    states: int
    infinite_hit_tokens: int
    kv_hit_tokens: int
    state_hit_tokens: int

    @property
    def hit_tokens(self) -> int:
        return min(self.infinite_hit_tokens, self.kv_hit_tokens, self.state_hit_tokens)


def cache_bounds(
    requests: Iterable[Request],
    kv_tokens: int,
    states: int,
    grid_tokens: int = 1,
    spare_tokens: int = 1,
) -> CacheBounds:
    """Bounds of a trace for a cache of ``kv_tokens`` tokens and ``states`` states.

    ``grid_tokens``: states only lie at its multiples. ``spare_tokens`` of each prompt are always
    computed: 1 in an engine, 0 as Marconi counts. Requests come one at a time.
    """
    trie = Trie(requests, spare_tokens)
    return CacheBounds(
        prompt_tokens=sum(passage.prompt_tokens for passage in trie.passages),
        kv_tokens=kv_tokens,
        states=states,
        infinite_hit_tokens=sum(trie.infinite_hits()),
        kv_hit_tokens=sum(optimal_kv_hits(trie, kv_tokens)),
        state_hit_tokens=state_hits_bound(trie, states, grid_tokens),
    )
