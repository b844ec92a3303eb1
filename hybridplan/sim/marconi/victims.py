"""Which node goes: the one with the lowest score, as in Eq. 2 of the paper.

That is recency + alpha x FLOP efficiency, each min-max normalised over the nodes to choose from.
Scoring every node for every victim is what the published simulator spends its time on. Here the
nodes that may be evicted are kept in order of efficiency and in order of last access. The ends of
the two orders give the normalisation, and as recency adds nothing negative, a walk up the
efficiencies may stop at the first node whose efficiency alone outweighs the best score so far.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence, Set
from typing import TypeVar

from hybridplan.sim.marconi.tree import Node, RadixTree

Recency = Callable[[int, int], float]
"""From the last access of a node and the present time; grows with the first."""
_Value = TypeVar("_Value", int, float)


def reciprocal_age(access: int, now: int) -> float:
    """1/(now - last access), the artifact's recency."""
    return 1 / (now - access)


def last_access(access: int, now: int) -> float:
    """The time of the last access itself; our reading of the paper, which gives no formula."""
    return access


class Victims:
    """The nodes of a tree with at most one child, as (value, serial number, node) in both orders.

    ``efficiency`` gives a node's FLOPs per byte from its edge. What the tree notes as changed is
    filed anew when the next victim is asked for, so several changes between two cost one.
    """

    def __init__(
        self, tree: RadixTree, efficiency: Callable[[Node], float], recency: Recency
    ) -> None:
        self.tree = tree
        self.efficiency = efficiency
        self.recency = recency
        self.by_access: list[tuple[int, int, Node]] = []
        self.by_efficiency: list[tuple[float, int, Node]] = []

    def settle(self) -> None:
        """File what has changed since the last time."""
        changed = self.tree.changed
        for node in changed:
            access: int | None = None
            efficiency: float | None = None
            if node.parent is not None and len(node.children) <= 1:
                access, efficiency = node.access, self.efficiency(node)
            if node.filed_access != access:
                _move(self.by_access, node, node.filed_access, access)
                node.filed_access = access
            if node.filed_efficiency != efficiency:
                _move(self.by_efficiency, node, node.filed_efficiency, efficiency)
                node.filed_efficiency = efficiency
        changed.clear()

    def lowest(self, now: int, alpha: float, spared: Set[Node | None] = frozenset()) -> list[Node]:
        """The nodes with the lowest score but for those ``spared``, in no order: more than one
        where they tie, none if there are none to choose from."""
        self.settle()
        accesses = _ends(self.by_access, spared)
        efficiencies = _ends(self.by_efficiency, spared)
        if accesses is None or efficiencies is None:
            return []
        oldest, newest = accesses
        least, most = efficiencies
        if alpha == 0:
            # Normalising keeps the order, and recency grows with the last access.
            start = bisect_left(self.by_access, (oldest,))
            end = bisect_left(self.by_access, (oldest + 1,))
            return [node for _, _, node in self.by_access[start:end] if node not in spared]
        recency = self.recency
        low_recency = recency(oldest, now)
        recency_span = recency(newest, now) - low_recency
        efficiency_span = most - least
        best = float("inf")
        tied: list[Node] = []
        rising = self.by_efficiency if alpha > 0 else self.by_efficiency[::-1]
        for efficiency, _, node in rising:
            weighted = alpha * ((efficiency - least) / efficiency_span if efficiency_span else 1.0)
            if weighted > best:
                break
            if node in spared:
                continue
            recent = recency(node.access, now) - low_recency
            score = weighted + (recent / recency_span if recency_span else 1.0)
            if score < best:
                best, tied = score, [node]
            elif score == best:
                tied.append(node)
        return tied


def _ends(
    order: Sequence[tuple[_Value, int, Node]], spared: Set[Node | None]
) -> tuple[_Value, _Value] | None:
    """The least and the greatest value of those not spared."""
    if not spared:
        return (order[0][0], order[-1][0]) if order else None
    first = next((entry for entry in order if entry[2] not in spared), None)
    last = next((entry for entry in reversed(order) if entry[2] not in spared), None)
    return None if first is None or last is None else (first[0], last[0])


def _move(
    order: list[tuple[_Value, int, Node]], node: Node, old: _Value | None, new: _Value | None
) -> None:
    if old is not None:
        del order[bisect_left(order, (old, node.serial, node))]
    if new is not None:
        insort(order, (new, node.serial, node))
