"""What the vLLM replay needs to know of an engine: its cache groups and its scheduler's limits.

A ``VllmCacheConfig`` can be built by hand, from a plan, or from a logged engine; the block-size
family (scheduler block, hash block, hit alignment) is derived here once, by vLLM's own rules
(``resolve_kv_cache_block_sizes`` and ``partial_hash_hits_enabled``, 0.32 and 0.33).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import gcd, lcm

from hybridplan.errors import InputError

VERSIONS = ("0.32", "0.33")


class GroupKind(str, Enum):
    """How a group's blocks grow, are found again and are released."""

    FULL = "full"
    MLA = "mla"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    MAMBA_ALIGN = "mamba_align"
    MAMBA_NONE = "mamba_none"
    MAMBA_ALL = "mamba_all"
    """A state at every block: vLLM's removed ``mamba_cache_mode="all"``. Not in 0.32 or 0.33."""
    RING = "ring"

    @property
    def is_mamba(self) -> bool:
        return self in (GroupKind.MAMBA_ALIGN, GroupKind.MAMBA_NONE, GroupKind.MAMBA_ALL)

    @property
    def is_full_attention(self) -> bool:
        return self in (GroupKind.FULL, GroupKind.MLA)


@dataclass(frozen=True, slots=True)
class VllmGroup:
    """One KV-cache group: layers that share one block table.

    ``block_tokens`` tokens per block. ``window_tokens`` is the sliding window or the local chunk.
    ``spec_blocks`` and ``checkpoint_blocks`` are a Mamba spec's ``num_speculative_blocks`` and
    ``num_prefill_checkpoint_blocks``; ``checkpoint_alignment_tokens`` its
    ``prefill_checkpoint_alignment``. ``is_draft`` marks a group that holds a draft layer
    (``is_eagle_group``). ``spec_id`` tells apart groups of equal shape whose layer specs differ
    (groups are looked up jointly only when their specs are equal). ``block_bytes`` is what one
    block of this group holds, for the bytes of kept states; 0 when unknown.
    """

    kind: GroupKind
    block_tokens: int
    window_tokens: int = 0
    extra_retained_tokens: int = 0
    spec_blocks: int = 0
    checkpoint_blocks: int = 0
    checkpoint_alignment_tokens: int | None = None
    is_draft: bool = False
    spec_id: str = ""
    block_bytes: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise InputError(
                f"block_tokens={self.block_tokens} of a {self.kind.value} group is < 1"
            )
        windowed = self.kind in (GroupKind.SLIDING, GroupKind.CHUNKED)
        if windowed and self.window_tokens < 1:
            raise InputError(f"a {self.kind.value} group needs window_tokens >= 1")

    @property
    def is_cacheable(self) -> bool:
        """vLLM's ``prefix_cacheable``: false for a circular buffer only."""
        return self.kind is not GroupKind.RING

    @property
    def can_end_inside_a_block(self) -> bool:
        """vLLM's ``supports_fine_grained_hash_lookup``: full attention, MLA and Mamba."""
        return self.kind.is_full_attention or self.kind.is_mamba


@dataclass(frozen=True)
class VllmCacheConfig:
    """Everything that decides hits, chunks and blocks. Names follow vLLM's, plus a unit.

    Args:
        groups: KV-cache groups in group order.
        num_blocks: pool size, null block included.
        version: "0.32" or "0.33".
        max_batched_tokens: token budget of a step (``max_num_batched_tokens``).
        max_seqs: most requests running at once (``max_num_seqs``).
        retention_interval_tokens: ``prefix_cache_retention_interval``; 0 keeps prompt-end and
            junction states only, None keeps every chunk end.
        prefix_match_unit_tokens: hash granularity asked for; None lets vLLM choose.
        reserve_full_prompt: ``scheduler_reserve_full_isl``.
        watermark: fraction of the pool kept free for waiting requests.
        async_depth: 1 for synchronous scheduling, 2 for vLLM's async default.
        draft_tokens: ``num_speculative_tokens``; 0 without speculative decoding.
        lookahead_tokens: ``num_lookahead_tokens`` (slots beyond the scheduled tokens).
        drop_draft_block: EAGLE/MTP block drop in force.
        hash_lookahead_tokens: ``num_hash_lookahead_tokens`` (0.33), L in the rules.
        shared_prefix_checkpoint: ``enable_mamba_shared_prefix_checkpoint``.
        skips_useless_drafts: V2 model runner of 0.33 with a drafter that has its own pass.
        single_block_tokens: ``cache_config.block_size`` when it is not the smallest group block.
    """

    groups: tuple[VllmGroup, ...]
    num_blocks: int
    version: str = "0.33"
    max_batched_tokens: int = 8192
    max_seqs: int = 256
    max_model_len: int = 262_144
    prefix_caching: bool = True
    retention_interval_tokens: int | None = 0
    prefix_match_unit_tokens: int | None = None
    long_prefill_threshold_tokens: int = 0
    reserve_full_prompt: bool = True
    watermark: float = 0.0
    async_depth: int = 1
    draft_tokens: int = 0
    lookahead_tokens: int = 0
    drop_draft_block: bool = False
    hash_lookahead_tokens: int = 0
    shared_prefix_checkpoint: bool = False
    skips_useless_drafts: bool = False
    single_block_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise InputError(
                f"vLLM version {self.version!r} is not modelled; use one of {', '.join(VERSIONS)}"
            )
        if not self.groups:
            raise InputError("a vLLM cache needs at least one group")
        if self.num_blocks < 2:
            raise InputError(f"num_blocks={self.num_blocks}: the null block alone takes one")
        if self.max_batched_tokens < 1 or self.max_seqs < 1 or self.async_depth < 1:
            raise InputError("max_batched_tokens, max_seqs and async_depth must be at least 1")
        if self.prefix_caching:
            self._check_prefix_caching()

    def _check_prefix_caching(self) -> None:
        if any(g.kind is GroupKind.MAMBA_NONE for g in self.groups):
            raise InputError(
                "a mamba_none group cannot be prefix cached; turn prefix caching off or use"
                " mamba_align"
            )
        if not any(g.is_cacheable for g in self.groups):
            raise InputError("prefix caching is on but no group can be cached")
        unit = self.hash_block_tokens
        for group in self.groups:
            if group.is_cacheable and group.block_tokens % unit:
                raise InputError(
                    f"prefix_match_unit={unit} does not divide block_tokens={group.block_tokens};"
                    " choose a divisor of every group's block"
                )
        interval = self.retention_interval_tokens
        if interval is None:
            return
        if interval < 0 or interval % self.scheduler_block_tokens:
            raise InputError(
                f"prefix_cache_retention_interval={interval} is not a non-negative multiple of the"
                f" scheduler block of {self.scheduler_block_tokens} tokens"
            )

    @cached_property
    def scheduler_block_tokens(self) -> int:
        """LCM of all groups' blocks, ring included."""
        return lcm(*(g.block_tokens for g in self.groups))

    @cached_property
    def hash_block_tokens(self) -> int:
        """Granularity of the chained hashes."""
        if len(self.groups) == 1 or not self.prefix_caching:
            return self.scheduler_block_tokens
        if any(g.kind in (GroupKind.MAMBA_NONE, GroupKind.MAMBA_ALL) for g in self.groups):
            return self.scheduler_block_tokens
        if self.prefix_match_unit_tokens is not None:
            return self.prefix_match_unit_tokens
        return gcd(*(g.block_tokens for g in self.groups if g.is_cacheable))

    @cached_property
    def partial_hits(self) -> bool:
        """Whether a hit may end inside a block (``enable_partial_hash_hits``)."""
        if len(self.groups) == 1 or not self.prefix_caching:
            return False
        unit = self.hash_block_tokens
        return any(
            g.kind is GroupKind.MAMBA_ALIGN and g.block_tokens > unit for g in self.groups
        ) and all(
            g.can_end_inside_a_block or g.block_tokens == unit
            for g in self.groups
            if g.is_cacheable
        )

    @cached_property
    def hit_alignment_tokens(self) -> int:
        """Every hit is a multiple of this."""
        return self.hash_block_tokens if self.partial_hits else self.scheduler_block_tokens

    @cached_property
    def split_block_tokens(self) -> int:
        """``cache_config.block_size``: the smallest cacheable group's block."""
        if self.single_block_tokens is not None:
            return self.single_block_tokens
        sizes = [g.block_tokens for g in self.groups if g.is_cacheable]
        return min(sizes or [g.block_tokens for g in self.groups])

    @cached_property
    def splits_for_mamba(self) -> bool:
        """Whether prefill chunks are cut for Mamba states (align mode)."""
        return any(g.kind is GroupKind.MAMBA_ALIGN for g in self.groups)

    @cached_property
    def splits_partial_tail(self) -> bool:
        return (
            self.splits_for_mamba
            and self.partial_hits
            and self.hash_block_tokens < self.scheduler_block_tokens
        )

    @cached_property
    def internal_checkpoints(self) -> bool:
        """Whether every Mamba group can export a state from inside a chunk."""
        mamba = [g for g in self.groups if g.kind.is_mamba]
        return bool(mamba) and all(g.checkpoint_blocks > 0 for g in mamba)

    @cached_property
    def checkpoint_alignment_tokens(self) -> int | None:
        """The first Mamba group's alignment, as the scheduler takes it."""
        return next((g.checkpoint_alignment_tokens for g in self.groups if g.kind.is_mamba), None)

    @cached_property
    def dropping_groups(self) -> frozenset[int]:
        """Groups whose hits lose their last block to the draft model.

        In 0.32 a flagged group drops whatever the drop's own switch says.
        """
        flagged = frozenset(i for i, g in enumerate(self.groups) if g.is_draft)
        if not self.drop_draft_block:
            return flagged if self.version == "0.32" else frozenset()
        return flagged or frozenset(range(len(self.groups)))

    @cached_property
    def junction_checkpoints(self) -> bool:
        """The shared-prefix checkpoint option, narrowed as ``KVCacheManager`` narrows it."""
        flagged = any(g.is_draft for g in self.groups) or self.drop_draft_block
        return self.shared_prefix_checkpoint and flagged and self.partial_hits

    @cached_property
    def max_in_flight_tokens(self) -> int:
        return self.async_depth * self.max_batched_tokens

    @cached_property
    def watermark_blocks(self) -> int:
        return int(self.watermark * self.num_blocks)
