"""Numbered invariants of the Marconi replay, each checked from the tree alone.

M1  An edge is not empty and starts where its parent ends; a child hangs under its first token.
M2  States and KV tokens equal what a walk finds.
M3  The candidates are exactly the nodes with at most one child.
M4  A kept efficiency equals one computed anew.
M5  Only a node with two children or more may lack a state.
M6  In paper mode the cache does not exceed its capacity.
"""

from __future__ import annotations

from hybridplan.sim.marconi.artifact import ArtifactCache
from hybridplan.sim.marconi.paper import PaperCache


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
    if set(tree.candidates) != {node for node in nodes if len(node.children) <= 1}:
        raise IntegrityError("M3 candidates are not the nodes with at most one child")
    for node in nodes:
        if tree.efficiency is not None and node.efficiency != tree.efficiency(node):
            raise IntegrityError(f"M4 node at {node.end}: kept efficiency {node.efficiency}")
    if isinstance(cache, PaperCache) and cache.bytes > cache.capacity_bytes:
        raise IntegrityError(f"M6 {cache.bytes} bytes in a cache of {cache.capacity_bytes}")
