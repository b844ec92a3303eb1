"""Marconi's eviction score: recency + alpha x FLOP efficiency, each min-max normalised (Eq. 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridplan.sim.marconi.tree import Node

Recency = Callable[[Sequence[Node], int], Sequence[float]]


def reciprocal_age(nodes: Sequence[Node], now: int) -> Sequence[float]:
    """1/(now - last access), the artifact's recency."""
    return [1 / (now - node.access) for node in nodes]


def last_access(nodes: Sequence[Node], now: int) -> Sequence[float]:
    """The time of the last access itself; our reading of the paper, which gives no formula."""
    return [float(node.access) for node in nodes]


def lowest(nodes: Sequence[Node], now: int, alpha: float, recency: Recency) -> list[Node]:
    """The nodes with the lowest score, more than one where they tie. ``nodes`` is not empty."""
    if alpha == 0:
        # Normalising keeps the order, and both recencies grow with the last access.
        oldest = min([node.access for node in nodes])
        return [node for node in nodes if node.access == oldest]
    recent = normalised(recency(nodes, now))
    efficient = normalised([node.efficiency for node in nodes])
    scores = [alpha * e + r for e, r in zip(efficient, recent, strict=True)]
    low = min(scores)
    return [node for node, score in zip(nodes, scores, strict=True) if score == low]


def normalised(values: Sequence[float]) -> Sequence[float]:
    """Values moved to [0, 1]; all ones where they do not differ."""
    low, high = min(values), max(values)
    if low == high:
        return [1.0] * len(values)
    span = high - low
    return [(value - low) / span for value in values]
