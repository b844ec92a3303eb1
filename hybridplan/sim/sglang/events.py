"""Scripted traces: events in, one record an event out, every node and lock visible.

The schema is that of the engine answers the tests compare with: events `start`, `decode`,
`finish` or `request`; token lists of integers and `{"run": [a, n]}` for a, ..., a+n-1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hybridplan.errors import InputError
from hybridplan.sim.sequence import TokenSequence
from hybridplan.sim.sglang.cache import SglangCache
from hybridplan.sim.sglang.config import SglangCacheConfig
from hybridplan.sim.sglang.node import Node

# Names of the scripted config and what they are when a trace does not give them.
_CONFIG_KEYS: dict[str, tuple[str, Any]] = {
    "strategy": ("strategy", "no_buffer"),
    "page_size": ("page_tokens", 1),
    "chunk_size": ("chunk_tokens", 64),
    "track_interval": ("track_interval_tokens", 256),
    "kv_tokens": ("kv_tokens", 4096),
    "mamba_slots": ("state_slots", 32),
    "chunked_prefill_size": ("chunked_prefill_tokens", None),
    "max_states_per_path": ("max_states_per_path", -1),
    "overlap": ("overlap", True),
    "skip_decode_lock": ("skip_decode_lock", False),
}
_PARTS = {"request": ("start", "decode", "finish")}


def read_config(config: Mapping[str, Any]) -> SglangCacheConfig:
    """The cache a scripted trace asks for. Raises InputError on a key nobody knows."""
    ignored = {"max_num_reqs", "eviction_policy"}
    unknown = sorted(set(config) - set(_CONFIG_KEYS) - ignored)
    if unknown:
        raise InputError(f"config keys {', '.join(unknown)} are unknown to the SGLang replay")
    if config.get("eviction_policy", "lru") != "lru":
        raise InputError(
            f"eviction_policy {config['eviction_policy']!r} is not modelled; only lru is"
        )
    return SglangCacheConfig(
        **{name: config.get(key, default) for key, (name, default) in _CONFIG_KEYS.items()}
    )


def expand(tokens: Sequence[Any]) -> list[int]:
    """A token list with its runs written out."""
    out: list[int] = []
    for part in tokens:
        if isinstance(part, Mapping):
            first, count = part["run"]
            out.extend(range(first, first + count))
        else:
            out.append(part)
    return out


def operations(trace: Mapping[str, Any]) -> Iterator[tuple[str, str, list[int]]]:
    """(operation, request id, tokens) of each event; a `request` is three of them."""
    for event in trace["events"]:
        for operation in _PARTS.get(event["op"], (event["op"],)):
            tokens = event.get({"start": "input", "decode": "output"}.get(operation, ""), ())
            yield operation, event["rid"], expand(tokens)


class ScriptedReplay:
    """A scripted trace run on the simulator, one event at a time."""

    def __init__(self, trace: Mapping[str, Any]) -> None:
        self.cache = SglangCache(read_config(trace.get("config", {})))
        self._operations = list(operations(trace))
        tokens: dict[str, list[int]] = {}
        for _, request_id, part in self._operations:
            tokens.setdefault(request_id, []).extend(part)
        self._sequences = {rid: TokenSequence.of_tokens(part) for rid, part in tokens.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for operation, request_id, tokens in self._operations:
            yield {
                "op": operation,
                "rid": request_id,
                **self._apply(operation, request_id, len(tokens)),
                "totals": self.totals(),
            }

    def _apply(self, operation: str, request_id: str, count: int) -> dict[str, Any]:
        if operation == "start":
            admitted = self.cache.start(request_id, self._sequences[request_id], count)
            return {
                "hit": admitted.hit_tokens,
                "branching_seqlen": admitted.branch_tokens,
                "cow": admitted.copied,
                "tracked": list(admitted.tracked),
                "evicted_states": admitted.evicted_states,
                "evicted_kv_tokens": admitted.evicted_kv_tokens,
            }
        if operation == "decode":
            decoded = self.cache.decode(request_id, count)
            return {
                "committed": decoded.committed_tokens,
                "tracked": list(decoded.tracked),
                "evicted_states": decoded.evicted_states,
                "evicted_kv_tokens": decoded.evicted_kv_tokens,
            }
        if operation == "finish":
            finished = self.cache.finish(request_id)
            return {
                "evicted_states": finished.evicted_states,
                "evicted_kv_tokens": finished.evicted_kv_tokens,
            }
        raise InputError(
            f"event {operation!r} of request {request_id} is not start, decode, finish"
        )

    def totals(self) -> dict[str, int]:
        """The pools: free, evictable and protected tokens and state slots."""
        tree = self.cache.tree
        return {
            "kv_free": tree.kv_free,
            "kv_evictable": tree.kv_evictable,
            "kv_protected": tree.protected_tokens,
            "state_slots_free": tree.slots_free,
            "states_evictable": tree.states_evictable,
            "states_protected": tree.protected_states,
        }

    def nodes(self) -> list[dict[str, Any]]:
        """Every node with its locks, sorted by depth and prefix."""
        rows = [
            {
                "end": node.end,
                "len": node.tokens,
                "prefix": prefix_sha1(node),
                "state": node.state,
                "locks": [node.full_lock, node.state_lock],
            }
            for node in self.cache.tree.nodes()
        ]
        return sorted(rows, key=lambda row: (row["end"], row["prefix"]))

    def state_order(self) -> list[str]:
        """Prefixes of the nodes with a state, most recently used first."""
        return [prefix_sha1(node) for node in self.cache.tree.states.most_recent_first()]


def prefix_sha1(node: Node) -> str:
    """First 12 hex digits of the SHA-1 of a node's comma-joined tokens, root to its end."""
    tokens = node.sequence.token_ids()[: node.end]
    return hashlib.sha1(",".join(map(str, tokens)).encode()).hexdigest()[:12]
