"""A host tier behind the device tree: an assumption about HiCache, not a replay of it.

What is taken from SGLang 0.5.23 (spec section 9): everything the device tree is given is written
through to the host (the default policy); lookup counts what the host has and restores it before
use. What is assumed: the host evicts by the device tree's own rules, a restore is refused rather
than cut short if the device has no room, and transfers take no time.
"""

from __future__ import annotations

from hybridplan.sim.sequence import TokenSequence
from hybridplan.sim.sglang.config import SglangCacheConfig
from hybridplan.sim.sglang.node import Node
from hybridplan.sim.sglang.tree import Match, StateTree


class HostTier:
    """KV and states that outlive the device. Changes both its own tree and the device's."""

    def __init__(self, device: StateTree, config: SglangCacheConfig) -> None:
        self.device = device
        self.tree = StateTree(
            config.host_kv_tokens,
            config.host_state_slots,
            config.page_tokens,
            config.checkpoint_grid,
        )

    def write_through(self, sequence: TokenSequence, end: int) -> None:
        """Copy KV of ``sequence[:end]`` and the state at ``end``, unless it cannot fit."""
        _load(self.tree, sequence, end, self.tree.match(sequence, end))

    def restore(self, sequence: TokenSequence, limit_tokens: int, found: Match) -> Match:
        """The device's match, or a deeper one after loading what the host has."""
        device, host = self.device, self.tree.match(sequence, limit_tokens)
        if host.hit_tokens <= found.hit_tokens:
            return found
        node = _load(device, sequence, host.hit_tokens, found)
        if node is None:
            return found
        deepest = max(found.kv_tokens, host.kv_tokens)
        branch = deepest // device.checkpoint_grid * device.checkpoint_grid
        return Match(node, node.end, deepest, branch if branch > node.end else None)


def _load(tree: StateTree, sequence: TokenSequence, end: int, found: Match) -> Node | None:
    """Bring KV beyond a match and the state at ``end`` into a tree; None if there is no room."""
    need = end - found.hit_tokens
    tree.lock(found.node)
    tree.evict_kv(need - tree.kv_free)
    if tree.slots_free == 0:
        tree.evict_states(1)
    node = None
    if tree.kv_free >= need and tree.slots_free:
        tree.kv_free -= need
        tree.slots_free -= 1
        node, had_state = tree.insert(sequence, end, found.hit_tokens)
        tree.slots_free += had_state
    tree.unlock(found.node)
    return node
