"""A pool plan as the cache the vLLM replay runs on."""

from __future__ import annotations

from hybridplan.ledger.vllm.groups import CacheGroup
from hybridplan.ledger.vllm.options import DEFAULT_BATCHED_TOKENS, VllmOptions
from hybridplan.ledger.vllm.page import LayerCache, StateCache
from hybridplan.ledger.vllm.plan import PoolPlan
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup

_ATTENTION = {
    "full": GroupKind.FULL,
    "mla": GroupKind.MLA,
    "sliding": GroupKind.SLIDING,
    "chunked": GroupKind.CHUNKED,
    "ring": GroupKind.RING,
}
_STATES = {
    "align": GroupKind.MAMBA_ALIGN,
    "none": GroupKind.MAMBA_NONE,
    "all": GroupKind.MAMBA_ALL,
}
_DRAFTS_IN_A_PASS_OF_THEIR_OWN = ("mtp", "eagle", "eagle3", "dflash", "dspark", "draft_model")
DEFAULT_MAX_SEQS = 256


def cache_config(
    plan: PoolPlan,
    options: VllmOptions,
    *,
    retention_interval_tokens: int | None = 0,
) -> VllmCacheConfig:
    """The replay's cache for a plan and the options it was made with.

    ``retention_interval_tokens`` is ``prefix_cache_retention_interval`` (None: keep every chunk
    end). Raises InputError for plans of versions the replay does not model.
    """
    reads = plan.draft_reads
    budget = options.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    specs: dict[LayerCache, int] = {}
    groups = []
    for group in plan.groups:
        number = specs.setdefault(group.caches[0], len(specs))
        groups.append(_group(group, f"spec{number}", plan.limits.dcp))
    own_pass = options.draft_method in _DRAFTS_IN_A_PASS_OF_THEIR_OWN
    return VllmCacheConfig(
        groups=tuple(groups),
        num_blocks=plan.num_blocks,
        version=plan.version,
        max_batched_tokens=budget,
        max_seqs=options.max_num_seqs or DEFAULT_MAX_SEQS,
        max_model_len=plan.limits.max_model_len,
        prefix_caching=plan.prefix_caching,
        retention_interval_tokens=retention_interval_tokens,
        prefix_match_unit_tokens=options.prefix_match_unit,
        async_depth=plan.limits.in_flight_tokens // budget,
        draft_tokens=reads.draft_tokens,
        lookahead_tokens=reads.slot_tokens,
        drop_draft_block=reads.drops and not reads.hash_tokens,
        hash_lookahead_tokens=reads.hash_tokens,
        skips_useless_drafts=plan.version == "0.33" and reads.draft_tokens > 0 and own_pass,
    )


def _group(group: CacheGroup, spec_id: str, dcp: int) -> VllmGroup:
    first = group.caches[0]
    span = group.block_tokens * (dcp if first.dcp_sharded else 1)
    if isinstance(first, StateCache):
        return VllmGroup(
            _STATES[first.mode],
            span,
            spec_blocks=first.speculative_blocks,
            checkpoint_blocks=first.checkpoint_blocks,
            checkpoint_alignment_tokens=first.checkpoint_alignment_tokens,
            is_draft=group.draft,
            spec_id=spec_id,
            block_bytes=group.content_bytes,
            name=group.layers[0],
        )
    return VllmGroup(
        _ATTENTION[first.kind],
        span,
        window_tokens=(first.window_tokens if first.kind == "sliding" else first.chunk_tokens) or 0,
        extra_retained_tokens=first.extra_retained_tokens,
        is_draft=group.draft,
        spec_id=spec_id,
        block_bytes=group.content_bytes,
        name=group.layers[0],
    )
