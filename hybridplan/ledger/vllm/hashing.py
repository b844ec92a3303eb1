"""The scheduler's block, the unit of block hashes, and where a prefix hit may end.

Source: vLLM ``v1/core/kv_cache_utils.py`` (``resolve_kv_cache_block_sizes``,
``resolve_cache_hit_alignment_tokens``). All in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

from hybridplan.errors import RefusalError
from hybridplan.ledger.vllm.groups import CacheGroup
from hybridplan.ledger.vllm.page import AttentionCache, StateCache


@dataclass(frozen=True, slots=True)
class BlockUnits:
    """``scheduler_tokens``: what computed lengths are rounded to; ``hash_tokens``: one block hash;
    ``hit_alignment_tokens``: where a usable hit may end."""

    scheduler_tokens: int
    hash_tokens: int
    hit_alignment_tokens: int


def block_units(
    groups: Sequence[CacheGroup],
    block_tokens: int,
    *,
    prefix_caching: bool,
    prefix_match_unit: int | None = None,
    dcp: int = 1,
) -> BlockUnits:
    """Resolve the three units. ``block_tokens`` is ``cache_config.block_size`` after planning.

    Raises RefusalError for a prefix-match unit that the groups' blocks do not hold whole.
    """
    if len(groups) <= 1:
        sharded = not groups or groups[0].caches[0].dcp_sharded
        unit = block_tokens * (dcp if sharded else 1)
        if groups and prefix_caching and prefix_match_unit not in (None, unit):
            raise RefusalError(
                f"prefix_match_unit is {prefix_match_unit} tokens but with one KV cache group hits "
                f"end on its block of {unit} tokens; unset it or set it to {unit}"
            )
        return BlockUnits(unit, unit, unit)
    spans = [group.block_tokens * (dcp if group.caches[0].dcp_sharded else 1) for group in groups]
    scheduler = lcm(*spans)
    states = [c for g in groups for c in g.caches if isinstance(c, StateCache)]
    if not prefix_caching or any(state.mode != "align" for state in states):
        return BlockUnits(scheduler, scheduler, scheduler)
    shared = [s for g, s in zip(groups, spans, strict=True) if g.prefix_cacheable] or spans
    unit = gcd(*shared) if prefix_match_unit is None else prefix_match_unit
    if any(span % unit for span in shared):
        raise RefusalError(
            f"prefix_match_unit is {unit} tokens, which does not divide the groups' blocks of "
            f"{sorted(set(shared))} tokens; use a divisor of {gcd(*shared)}"
        )
    finer = _some_state_inside_a_block(states, unit, dcp)
    pooled = {
        int(c.tokens_per_entry)
        for g in groups
        for c in g.caches
        if isinstance(c, AttentionCache)
        and c.prefix_cacheable
        and c.tokens_per_entry.denominator == 1
        and c.tokens_per_entry > 1
    }
    boundary = unit if finer else scheduler
    if any(boundary % tokens for tokens in pooled):
        raise RefusalError(
            f"prefix_match_unit is {unit} tokens, but caches that pool {sorted(pooled)} tokens "
            f"into one entry need hits at multiples of {lcm(*pooled)}"
        )
    finer = finer and _others_allow(groups, spans, unit)
    return BlockUnits(scheduler, unit, unit if finer else scheduler)


def _some_state_inside_a_block(states: Sequence[StateCache], unit: int, dcp: int) -> bool:
    return any(
        state.block_tokens > unit or (dcp > 1 and state.block_tokens >= unit) for state in states
    )


def _others_allow(groups: Sequence[CacheGroup], spans: Sequence[int], unit: int) -> bool:
    """Windowed groups look up whole blocks only."""
    for group, span in zip(groups, spans, strict=True):
        first = group.caches[0]
        fine = isinstance(first, StateCache) or first.kind in ("full", "mla")
        if group.prefix_cacheable and not fine and span != unit:
            return False
    return True
