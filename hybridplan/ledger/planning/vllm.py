"""vLLM's plan, whole: memory, pool, costs, boot lines and what an expert would warn of."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.errors import HybridplanError, RefusalError
from hybridplan.ledger.planning import warnings
from hybridplan.ledger.planning.ask import VllmAsk
from hybridplan.ledger.planning.result import (
    SCHEMA_VERSION,
    BlockSize,
    GroupLine,
    RequestCost,
    Tensor,
    VllmResult,
)
from hybridplan.ledger.planning.sizing import vllm_lengths
from hybridplan.ledger.vllm.bootlog import boot_log
from hybridplan.ledger.vllm.page import AttentionCache, LayerCache
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm

_LADDER = (1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)


def plan(ask: VllmAsk) -> VllmResult:
    """Answer one question. Raises RefusalError where vLLM would refuse to start."""
    ask = ask.resolved()
    tokens, seqs = ask.max_num_batched_tokens, ask.max_num_seqs
    assert tokens is not None
    assert seqs is not None
    got = ask.budget()
    pool = plan_vllm(ask.spec, ask.deployment, ask.options, got.available_bytes)
    check_state_blocks(ask, pool)
    said = warnings.of(ask, pool, one_more_draft(ask, pool, got.available_bytes))
    result = VllmResult(
        schema_version=SCHEMA_VERSION,
        model=ask.spec.name,
        deployment=ask.deployment,
        rules=pool.version,
        memory=got,
        block=_block(pool),
        layout=pool.layout,
        grouping=pool.grouping,
        backends=pool.backends,
        state_mode=pool.limits.state_mode,
        prefix_caching=pool.prefix_caching,
        groups=_groups(pool),
        tensors=_tensors(pool),
        bytes_per_block=pool.bytes_per_block,
        stride_alignment_bytes=pool.ranks[0].stride_alignment_bytes,
        num_blocks=pool.num_blocks,
        unused_bytes=got.available_bytes - pool.pool_bytes,
        scheduler_block_tokens=pool.units.scheduler_tokens,
        hash_block_tokens=pool.units.hash_tokens,
        hit_alignment_tokens=pool.units.hit_alignment_tokens,
        max_model_len=pool.limits.max_model_len,
        blocks_per_request=sum(pool.blocks_per_request),
        max_concurrency=pool.max_concurrency,
        kv_tokens=pool.kv_tokens,
        longest_request_tokens=pool.longest_request(ask.spec.max_tokens),
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        costs=_costs(pool, ask.costs_at),
        boot_lines=boot_log(pool),
        warnings=said,
    )
    if ask.lengths is None:
        return result
    return replace(result, lengths=vllm_lengths(ask, pool, got.available_bytes))


def one_more_draft(ask: VllmAsk, pool: PoolPlan, available_bytes: int) -> PoolPlan | None:
    """The pool with one draft token more, or None where the engine would refuse it."""
    if not pool.alignment or not pool.alignment.state_bytes:
        return None
    deployment = replace(ask.deployment, drafts=ask.deployment.drafts + 1)
    try:
        return plan_vllm(ask.spec, deployment, ask.options, available_bytes)
    except HybridplanError:
        return None


def check_state_blocks(ask: VllmAsk, pool: PoolPlan) -> None:
    """Full decode graphs need a state block per sequence, or vLLM stops while it captures them.

    Source: vLLM 0.32 and 0.33 config/compilation.py. Raises RefusalError.
    """
    seqs = ask.max_num_seqs
    if seqs is None or not ask.graphs or not pool.alignment or not pool.alignment.state_bytes:
        return
    if seqs > pool.num_blocks:
        more = (seqs - pool.num_blocks) * pool.bytes_per_block
        raise RefusalError(
            f"max_num_seqs is {seqs:,} and the pool holds {pool.num_blocks:,} state blocks, so "
            f"vLLM refuses to capture its decode graphs; use --max-num-seqs {pool.num_blocks} or "
            f"free {more / 2**30:,.2f} GiB more a rank"
        )


def _block(pool: PoolPlan) -> BlockSize:
    found = pool.alignment
    if found is None or not found.state_bytes:
        size = pool.block_tokens
        token_bytes = found.token_bytes if found else 0
        reason = "no state has to fit, so it is what the attention backend prefers"
        return BlockSize(size, size, 1, token_bytes, 0, 0, 0.0, reason)
    padded = found.state_page_bytes or found.state_bytes
    if found.raised:
        reason = (
            f"a state of {found.state_bytes:,} B must fit one page of one layer; at "
            f"{found.token_bytes:,} B a token that is "
            f"{-(-found.state_bytes // found.token_bytes):,} tokens, rounded up to a multiple of "
            f"{found.granularity_tokens}"
        )
    else:
        reason = (
            f"{found.start_tokens} tokens at {found.token_bytes:,} B already hold a state of "
            f"{found.state_bytes:,} B"
        )
    return BlockSize(
        tokens=pool.block_tokens,
        start_tokens=found.start_tokens,
        granularity_tokens=found.granularity_tokens,
        token_bytes=found.token_bytes,
        state_bytes=found.state_bytes,
        padded_state_bytes=padded,
        padding_percent=found.padding_percent,
        reason=reason,
    )


def _groups(pool: PoolPlan) -> tuple[GroupLine, ...]:
    lines = []
    for group, padding, blocks in zip(
        pool.groups, pool.padding_bytes(), pool.blocks_per_request, strict=True
    ):
        # Layers are those of every pipeline rank, bytes those of the first.
        lines.append(
            GroupLine(
                kind=group.kind,
                layers=group.layers,
                block_tokens=group.block_tokens,
                page_bytes=tuple(sorted({cache.page_bytes for cache in group.caches})),
                content_bytes=pool.bytes_per_block - padding,
                padding_bytes=padding,
                blocks_per_request=blocks,
                draft=group.draft,
            )
        )
    return tuple(lines)


def _tensors(pool: PoolPlan) -> tuple[Tensor, ...]:
    owner = {name: index for index, group in enumerate(pool.groups) for name in group.layers}
    rows = []
    for entry in pool.ranks[0].tensors:
        cache = entry.cache
        unit, unit_bytes = _unit(cache)
        whole = unit_bytes is not None and entry.block_stride_bytes % unit_bytes == 0
        rows.append(
            Tensor(
                group=owner[entry.layers[0]],
                layers=len(entry.layers),
                page_bytes=cache.page_bytes,
                offset_bytes=entry.offset_bytes,
                layer_stride_bytes=entry.layer_stride_bytes,
                block_stride_bytes=entry.block_stride_bytes,
                unit=unit,
                unit_bytes=unit_bytes,
                units_per_page=cache.page_bytes // unit_bytes if unit_bytes else 0,
                units_to_next_block=(
                    entry.block_stride_bytes // unit_bytes if whole and unit_bytes else None
                ),
            )
        )
    return tuple(rows)


def _unit(cache: LayerCache) -> tuple[str, int | None]:
    if not isinstance(cache, AttentionCache):
        return "", None
    row_bytes = cache.slots * cache.entry_content_bytes
    if cache.stride_alignment_bytes > row_bytes:
        return "kernel block", cache.stride_alignment_bytes
    return "row", row_bytes


def _costs(pool: PoolPlan, asked: tuple[int, ...]) -> tuple[RequestCost, ...]:
    longest = pool.limits.max_model_len
    for tokens in asked:
        if tokens > longest:
            raise RefusalError(
                f"--at {tokens} is longer than max_model_len {longest}, which vLLM refuses; use "
                f"--at {longest} or less"
            )
    ladder = asked or (*(n for n in _LADDER if n < longest), longest)
    costs = []
    for tokens in ladder:
        blocks = pool.request_blocks(tokens)
        total = sum(blocks)
        costs.append(
            RequestCost(tokens, blocks, total * pool.bytes_per_block, pool.usable_blocks // total)
        )
    return tuple(costs)
