"""What is possible on a trace, whatever the policy: how far any cache is from the best one."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.sim.bound.kv import optimal_kv_hits
from hybridplan.sim.bound.states import state_hits_bound
from hybridplan.sim.bound.trie import Trie


@dataclass(frozen=True, slots=True)
class CacheBounds:
    """Upper bounds on hit tokens over a whole trace.

    ``infinite_hit_tokens``: nothing is ever forgotten. ``kv_hit_tokens``: the best eviction of the
    KV tokens that fit if states cost nothing (exact). ``state_hit_tokens``: the slots that fit if
    KV costs nothing (a bound; the best policy may stay below). None where that does not bind or is
    not known. A hybrid needs both, so ``hit_tokens`` is the smallest.
    """

    prompt_tokens: int
    infinite_hit_tokens: int
    kv_hit_tokens: int | None
    state_hit_tokens: int | None

    @property
    def hit_tokens(self) -> int:
        found = (self.infinite_hit_tokens, self.kv_hit_tokens, self.state_hit_tokens)
        return min(tokens for tokens in found if tokens is not None)


def cache_bounds(
    trie: Trie, kv_tokens: int | None, states: int | None, *, ordered: bool = True
) -> CacheBounds:
    """Bounds of a trace for a cache of ``kv_tokens`` tokens and ``states`` states (None: any).

    ``ordered``: requests come one at a time, in the trace's order. Where they do not, only an
    infinite cache in the best order is a bound.
    """
    prompts = sum(passage.prompt_tokens for passage in trie.passages)
    if not ordered:
        return CacheBounds(prompts, trie.most_hits(), None, None)
    infinite = sum(trie.infinite_hits())
    return CacheBounds(
        prompt_tokens=prompts,
        infinite_hit_tokens=infinite,
        kv_hit_tokens=infinite if kv_tokens is None else sum(optimal_kv_hits(trie, kv_tokens)),
        state_hit_tokens=None if states is None else state_hits_bound(trie, states),
    )
