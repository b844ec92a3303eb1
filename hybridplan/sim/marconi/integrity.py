"""Numbered invariants of the Marconi replay, each checked from the tree alone.

M1  An edge is not empty and starts where its parent ends; a child hangs under its first token.
M2  States and KV tokens equal what a walk finds.
M3  Both orders of victims are sorted and hold each node under the values it is filed with.
M4  Of the nodes noted as changed since, none is looked at; the others are filed exactly if they
    have at most one child, and with the time and efficiency they have now.
M5  Only a node with two children or more may lack a state.
M6  In paper mode the cache does not exceed its capacity.
"""

from __future__ import annotations

from hybridplan.sim.marconi.artifact import ArtifactCache
from hybridplan.sim.marconi.paper import PaperCache
from hybridplan.sim.marconi.tree import Node
from hybridplan.sim.marconi.victims import Victims


class IntegrityError(AssertionError):
    """An invariant does not hold; the message begins with its number."""


def check_integrity(cache: ArtifactCache | PaperCache) -> None:
    """Walk the whole tree and raise IntegrityError on the first broken invariant. Changes
    nothing; costs time linear in the tree, so it is for tests."""
    tree = cache.tree
    nodes = list(tree.preorder())
    for node in nodes:
        parent = node.parent
        if parent is None or node.start != parent.end or node.tokens <= 0:
            raise IntegrityError(f"M1 edge {node.start}..{node.end} does not continue its parent")
        if parent.children.get(node.sequence.key(node.start, 1)) is not node:
            raise IntegrityError(f"M1 edge {node.start}..{node.end} hangs under another key")
        if not node.has_state and len(node.children) < 2:
            raise IntegrityError(f"M5 node at {node.end} has no state and no fork")
    walked = (sum(node.has_state for node in nodes), sum(node.tokens for node in nodes))
    if walked != (tree.states, tree.kv_tokens):
        raise IntegrityError(f"M2 kept {(tree.states, tree.kv_tokens)}, found {walked}")
    if isinstance(cache, PaperCache) or not cache.lru_leaves:
        _check_victims(cache.victims, nodes)
    if isinstance(cache, PaperCache) and cache.bytes > cache.capacity_bytes:
        raise IntegrityError(f"M6 {cache.bytes} bytes in a cache of {cache.capacity_bytes}")


def _check_victims(victims: Victims, nodes: list[Node]) -> None:
    filed = {*nodes, *victims.tree.changed}
    by_access = [(n.filed_access, n.serial) for n in filed if n.filed_access is not None]
    by_efficiency = [
        (n.filed_efficiency, n.serial) for n in filed if n.filed_efficiency is not None
    ]
    if sorted(by_access) != [entry[:2] for entry in victims.by_access]:
        raise IntegrityError("M3 the order of last access does not hold what is filed in it")
    if sorted(by_efficiency) != [entry[:2] for entry in victims.by_efficiency]:
        raise IntegrityError("M3 the order of efficiency does not hold what is filed in it")
    for node in set(nodes) - victims.tree.changed:
        due = (node.access, victims.efficiency(node)) if len(node.children) <= 1 else (None, None)
        if (node.filed_access, node.filed_efficiency) != due:
            raise IntegrityError(f"M4 node at {node.end}: filed under a time or efficiency it lost")
