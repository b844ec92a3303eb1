"""Numbered invariants of the SGLang replay, each checked from the tree alone.

S1  An edge is not empty, starts where its parent ends, and both ends are multiples of the page.
S2  A child hangs under the key of its first page, and its sequence agrees with its parent's.
S3  Tree tokens, protected tokens and node count equal what a walk finds.
S4  The state order holds exactly the nodes with a state; states and locks on them add up.
S5  A lock on a node is a lock on its parent, at least as many times; only states are state-locked.
S6  Free KV + tree + what running requests own beyond the tree = the pool; likewise the slots.
S7  Every evictable leaf stands in the heap under its present access time.
"""

from __future__ import annotations

from hybridplan.sim.sequence import common_tokens
from hybridplan.sim.sglang.cache import SglangCache
from hybridplan.sim.sglang.node import Node
from hybridplan.sim.sglang.tree import StateTree


class IntegrityError(AssertionError):
    """An invariant does not hold; the message begins with its number."""


def check_integrity(cache: SglangCache) -> None:
    """Walk the whole tree, and the host tier's, and raise IntegrityError on the first broken
    invariant. Changes nothing; costs time linear in the tree, so it is for tests."""
    page = cache.config.page_tokens
    owned_tokens = sum(
        -(-request.kv_end // page) * page - request.owned_from for request in cache.running.values()
    )
    owned_slots = sum(request.slots for request in cache.running.values())
    check_tree(cache.tree, owned_tokens, owned_slots)
    if cache.host is not None:
        check_tree(cache.host.tree, 0, 0)


def check_tree(tree: StateTree, owned_tokens: int, owned_slots: int) -> None:
    """The invariants of one tree; ``owned_*`` is what requests hold beside it."""
    nodes = list(tree.nodes())
    for node in nodes:
        _check_edge(node, tree.page_tokens)
    _expect("S3", "tree tokens", tree.tree_tokens, sum(node.tokens for node in nodes))
    _expect("S3", "nodes", tree.node_count, len(nodes))
    locked = sum(node.tokens for node in nodes if node.full_lock)
    _expect("S3", "protected tokens", tree.protected_tokens, locked)
    holders = {node for node in nodes if node.state}
    _expect("S4", "state order", set(tree.states.most_recent_first()), holders)
    held = sum(1 for node in holders if node.state_lock)
    _expect("S4", "protected states", tree.protected_states, held)
    for node in nodes:
        below = sum(child.full_lock for child in node.children.values())
        if node.full_lock < below or node.full_lock < node.state_lock:
            raise IntegrityError(f"S5 node at {node.end}: locks {node.full_lock} below {below}")
        if node.state_lock and not node.state:
            raise IntegrityError(f"S5 node at {node.end}: a lock on no state")
    _expect("S6", "KV", tree.kv_tokens, tree.kv_free + tree.tree_tokens + owned_tokens)
    _expect("S6", "slots", tree.state_slots, tree.slots_free + len(holders) + owned_slots)
    for node in nodes:
        if node.evictable_leaf and node.offered != node.access:
            raise IntegrityError(f"S7 leaf at {node.end} is not offered at {node.access}")


def _check_edge(node: Node, page: int) -> None:
    parent = node.parent
    if parent is None or node.start != parent.end or node.tokens <= 0:
        raise IntegrityError(f"S1 edge {node.start}..{node.end} does not continue its parent")
    if node.start % page or node.end % page:
        raise IntegrityError(f"S1 edge {node.start}..{node.end} is not whole pages of {page}")
    if parent.children.get(node.sequence.key(node.start, page)) is not node:
        raise IntegrityError(f"S2 edge {node.start}..{node.end} hangs under another key")
    shared = common_tokens(parent.sequence, 0, parent.end, node.sequence, 0, parent.end)
    if shared != parent.end:
        raise IntegrityError(f"S2 edge at {node.start} agrees with its parent on {shared} only")


def _expect(number: str, what: str, kept: object, found: object) -> None:
    if kept != found:
        raise IntegrityError(f"{number} {what}: kept {kept}, found {found}")
