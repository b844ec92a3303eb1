"""Groups looked up, published and released together; vLLM's ``KVCacheCoordinator`` family."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.errors import InputError
from hybridplan.sim.vllm.full_attention import FullAttentionManager, find_full
from hybridplan.sim.vllm.mamba import (
    MambaAlignManager,
    MambaAllManager,
    MambaNoneManager,
    find_state,
)
from hybridplan.sim.vllm.manager import GroupManager
from hybridplan.sim.vllm.pool import BlockPool
from hybridplan.sim.vllm.positions import ceil_div
from hybridplan.sim.vllm.ring import RingManager
from hybridplan.sim.vllm.sequence import Sequence as Seq
from hybridplan.sim.vllm.sliding_window import (
    ChunkedLocalManager,
    SlidingWindowManager,
    find_chunked,
    find_sliding,
)
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup

MANAGERS: dict[GroupKind, type[GroupManager]] = {
    GroupKind.FULL: FullAttentionManager,
    GroupKind.MLA: FullAttentionManager,
    GroupKind.SLIDING: SlidingWindowManager,
    GroupKind.CHUNKED: ChunkedLocalManager,
    GroupKind.MAMBA_ALIGN: MambaAlignManager,
    GroupKind.MAMBA_NONE: MambaNoneManager,
    GroupKind.MAMBA_ALL: MambaAllManager,
    GroupKind.RING: RingManager,
}


@dataclass(frozen=True, slots=True)
class SpecSet:
    """Groups of equal spec, looked up jointly (vLLM's ``SpecGroup``)."""

    group: VllmGroup
    members: tuple[int, ...]
    drops: bool
    is_full: bool
    is_mamba: bool


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a cache lookup found, all in tokens.

    ``blocks`` per group; ``hit_tokens`` usable by every group; ``junction_tokens`` where siblings
    share KV but a group kept nothing (0: none); ``kv_hit_tokens`` what the full-attention groups
    alone would allow; ``kv_matched_tokens`` the same before a draft's drop.
    """

    blocks: tuple[list[int], ...]
    hit_tokens: int
    junction_tokens: int
    kv_hit_tokens: int
    kv_matched_tokens: int


class Coordinator:
    """All managers of one engine and the lookup across them."""

    def __init__(self, config: VllmCacheConfig, pool: BlockPool) -> None:
        self.config = config
        self.pool = pool
        self.managers = tuple(
            MANAGERS[group.kind](index, group, config, pool)
            for index, group in enumerate(config.groups)
        )
        self.sets = _spec_sets(config)
        for spec_set in self.sets:
            for member in spec_set.members:
                self.managers[member].drops = spec_set.drops
        self.acting: Seq | None = None
        """The request whose tables changed last."""
        self._releasing = tuple(
            manager
            for manager in self.managers
            if not manager.group.kind.is_full_attention and manager.group.is_cacheable
        )
        self._is_single = len(config.groups) == 1
        self._drops = bool(config.dropping_groups)
        # Offering the same prefix again publishes nothing new, but 0.32 marks a tail afresh and a
        # dropping group or a late hash looks past the offer.
        self._is_idempotent = (
            config.version != "0.32" and not self._drops and not config.hash_lookahead_tokens
        )
        self.no_blocks: tuple[list[int], ...] = tuple([] for _ in config.groups)

    def new_step(self) -> None:
        """Forget what the previous step published."""
        for manager in self.managers:
            if manager.published_this_step:
                manager.published_this_step.clear()

    def lookup(self, seq: Seq) -> Lookup:
        """Longest usable prefix of ``seq``; at least its last token is left to compute."""
        cap = seq.num_tokens - 1
        if not self.config.prefix_caching:
            return Lookup(self.no_blocks, 0, 0, 0, 0)
        if len(self.config.groups) == 1:
            found, hit, matched = self._find(self.sets[0], seq, cap, drop=self.sets[0].drops)
            return Lookup((found[0],), hit, 0, hit, matched)
        return self._reconcile(seq, cap)

    def _reconcile(self, seq: Seq, cap: int) -> Lookup:
        """Shrink the candidate until every set accepts it (``find_longest_cache_hit``)."""
        tables: list[list[int] | None] = [None] * len(self.config.groups)
        stored = [0] * len(self.config.groups)
        verified: set[int] = set()
        sets = self.sets
        single_pass = len(sets) == 2 and sets[0].is_full
        hit, longest = cap, 0
        kv_hit = kv_matched = cap
        first_pass = True
        while True:
            current = hit
            for index, spec_set in enumerate(sets):
                lead = spec_set.members[0]
                is_full = spec_set.is_full
                if is_full and tables[lead] is not None:
                    current = min(current, stored[lead])
                    continue
                drop = spec_set.drops and index not in verified
                limit = current
                if drop and not spec_set.is_mamba:
                    limit = min(
                        current + self._drop_margin(spec_set.group),
                        seq.num_keys * self.config.hash_block_tokens,
                    )
                found, length, matched = self._find(spec_set, seq, limit, drop=drop)
                if drop:
                    verified.add(index)
                elif length < current:
                    verified.clear()
                current = length
                for member, blocks in zip(spec_set.members, found, strict=True):
                    tables[member] = blocks
                    stored[member] = length
                longest = max(longest, current)
                if first_pass and is_full:
                    kv_hit, kv_matched = current, min(kv_matched, matched)
            first_pass = False
            if current >= hit:
                break
            hit = current
            if single_pass:
                break
        for spec_set in sets:
            if spec_set.is_full:
                keep = ceil_div(hit, spec_set.group.block_tokens)
                for member in spec_set.members:
                    blocks_of = tables[member]
                    if blocks_of is not None:
                        del blocks_of[keep:]
        found_blocks = tuple(blocks if blocks is not None else [] for blocks in tables)
        junction = longest if longest > hit else 0
        return Lookup(found_blocks, hit, junction, kv_hit, kv_matched)

    def _drop_margin(self, group: VllmGroup) -> int:
        unit = self.config.hash_block_tokens
        inside = self.config.partial_hits and group.can_end_inside_a_block
        return unit if inside and group.block_tokens > unit else group.block_tokens

    def _find(
        self, spec_set: SpecSet, seq: Seq, max_tokens: int, *, drop: bool
    ) -> tuple[list[list[int]], int, int]:
        group = spec_set.group
        pool, members, keys, num_keys = self.pool, spec_set.members, seq.keys, seq.num_keys
        unit, block = self.config.hash_block_tokens, group.block_tokens
        single = len(self.config.groups) == 1
        alignment = block if single else self.config.hit_alignment_tokens
        if spec_set.is_full:
            return find_full(
                pool, members, keys, num_keys,
                max_tokens=max_tokens, block=block, alignment=alignment, unit=unit, drop=drop,
            )  # fmt: skip
        if group.kind is GroupKind.SLIDING:
            tables, hit = find_sliding(
                pool, members, keys, num_keys,
                max_tokens=max_tokens, block=block, alignment=alignment, unit=unit,
                window_tokens=group.window_tokens, drop=drop,
            )  # fmt: skip
        elif group.kind is GroupKind.CHUNKED:
            tables, hit = find_chunked(
                pool, members, keys, num_keys,
                max_tokens=max_tokens, block=block, unit=unit, window_tokens=group.window_tokens,
            )  # fmt: skip
        else:
            tables, hit = find_state(
                pool, members, keys, num_keys,
                max_tokens=max_tokens, block=block, alignment=alignment, unit=unit,
            )  # fmt: skip
        return tables, hit, hit

    def publish(self, seq: Seq, tokens: int) -> None:
        """``cache_blocks``: offer each group the prefix a later hit could match."""
        self.acting = seq
        offered = tokens if self._is_single else self._aligned(tokens)
        if offered == seq.offered and self._is_idempotent:
            return
        seq.offered = offered
        boundaries = replay_boundaries(
            seq.num_prompt, self.config.scheduler_block_tokens, drops=self._drops
        )
        if self._is_single:
            self.managers[0].publish(seq, tokens, boundaries)
            return
        for manager in self.managers:
            reach = offered
            if manager.drops and offered > 0:
                reach = min(tokens, offered + manager.block)
            manager.publish(seq, reach, boundaries)

    def _aligned(self, tokens: int) -> int:
        if self.config.partial_hits:
            return tokens
        return tokens - tokens % self.config.scheduler_block_tokens

    def release(self, seq: Seq, processed: int) -> None:
        for manager in self._releasing:
            manager.release(seq, processed)

    def free(self, seq: Seq) -> None:
        seq.offered = -1
        for manager in self.managers:
            manager.free(seq)

    def drain_copies(self) -> list[tuple[int, int]]:
        """Copies queued this step, in group order; the caller drops their two references."""
        copies: list[tuple[int, int]] = []
        for manager in self.managers:
            if manager.copies:
                copies.extend(manager.copies)
                manager.copies.clear()
        return copies


def replay_boundaries(prompt_tokens: int, block_tokens: int, *, drops: bool) -> tuple[int, ...]:
    """Positions where a later request replaying this prompt can resume."""
    if not drops:
        return (prompt_tokens - 1,)
    resend = (prompt_tokens - 1) // block_tokens * block_tokens - block_tokens
    extension = prompt_tokens // block_tokens * block_tokens - block_tokens
    return tuple(sorted({max(resend, 0), max(extension, 0)}))


def _spec_sets(config: VllmCacheConfig) -> tuple[SpecSet, ...]:
    members: dict[tuple[object, ...], list[int]] = {}
    for index, group in enumerate(config.groups):
        if group.is_cacheable:
            spec = (
                group.kind, group.block_tokens, group.window_tokens, group.extra_retained_tokens,
                group.spec_blocks, group.checkpoint_blocks, group.checkpoint_alignment_tokens,
                group.spec_id,
            )  # fmt: skip
            members.setdefault(spec, []).append(index)
        if (
            group.kind is GroupKind.CHUNKED
            and config.prefix_caching
            and group.block_tokens != config.hit_alignment_tokens
        ):
            raise InputError(
                f"chunked local attention with block_tokens={group.block_tokens} needs all groups"
                f" at that size; hits align to {config.hit_alignment_tokens}"
            )
    sets = [
        SpecSet(
            config.groups[indices[0]],
            tuple(indices),
            any(index in config.dropping_groups for index in indices),
            config.groups[indices[0]].kind.is_full_attention,
            config.groups[indices[0]].kind.is_mamba,
        )
        for indices in members.values()
    ]
    sets.sort(key=lambda spec_set: not spec_set.is_full)
    return tuple(sets)
