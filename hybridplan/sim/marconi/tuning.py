"""How Marconi finds alpha: replay a bootstrap window once per value of a grid, keep the best.

alpha is 0 until the first eviction. The number of requests up to then times a factor (5 in the
artifact, 15 for LMSys; 5 to 15 in the paper) gives the window.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridplan.sim.marconi.artifact import ArtifactCache
from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.sequence import TokenSequence

GRID: tuple[float, ...] = tuple(tenth / 10 for tenth in range(21))
_LAST_REQUESTS = 500

Served = tuple[TokenSequence, int]  # a whole sequence, and how much of it is the prompt


class ArtifactMarconi:
    """The artifact's Marconi (`evict_policy_version` 2): tuned once, or never in a short trace.

    Deviation 9: the window is every request since the first, replayed on an empty tree; the
    winner has the most FLOPs saved in the last 500 requests, not the best hit rate. Where several
    tie, the artifact takes whichever worker ended first; here the smallest alpha wins.
    """

    def __init__(
        self, costs: ModelCosts, capacity_bytes: int, bootstrap_multiplier: int = 5
    ) -> None:
        self.cache = ArtifactCache(costs, capacity_bytes)
        self.bootstrap_multiplier = bootstrap_multiplier
        self.requests_before_first_eviction: int | None = None
        self.bootstrap_window: int | None = None
        self._history: list[Served] = []
        self._requests = 0

    @property
    def alpha(self) -> float:
        return self.cache.alpha

    def serve(self, sequence: TokenSequence, prompt_tokens: int) -> int:
        """One request of the published loop, tuning between lookup and insert when it is due."""
        self._requests += 1
        hit_tokens = self.cache.lookup(sequence, prompt_tokens)
        if self.bootstrap_window is None or self._requests <= self.bootstrap_window:
            self._history.append((sequence, prompt_tokens))
        if self._requests == self.bootstrap_window:
            before_eviction = (self.requests_before_first_eviction or 1) - 1
            self.cache.alpha = best_alpha(
                self._history, before_eviction, self.cache.costs, self.cache.capacity_bytes
            )
            self._history.clear()
        self.cache.insert(sequence)
        if self.bootstrap_window is None and self.cache.evictions:
            self.requests_before_first_eviction = self._requests
            self.bootstrap_window = self.bootstrap_multiplier * self._requests
        return hit_tokens


def best_alpha(
    history: Sequence[Served], before_eviction: int, costs: ModelCosts, capacity_bytes: int
) -> float:
    """The alpha of the grid that saves the most FLOPs in a replay of the window.

    Its first ``before_eviction`` requests evict nothing, whatever alpha is: they are replayed once.
    """
    filled = ArtifactCache(costs, capacity_bytes)
    first_hits = [filled.serve(*served) for served in history[:before_eviction]]

    def flops_saved(alpha: float) -> int:
        cache = filled.clone(alpha)
        hits = first_hits + [cache.serve(*served) for served in history[before_eviction:]]
        return sum(costs.prefill_flops(hit) for hit in hits[-_LAST_REQUESTS:])

    return max(GRID, key=flops_saved)
