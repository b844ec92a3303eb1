"""vLLM's pool from a model and the bytes left for KV: what the engine will compute at boot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm import layout as layouts
from hybridplan.ledger.vllm import pool
from hybridplan.ledger.vllm.alignment import Alignment
from hybridplan.ledger.vllm.drafts import DraftReads, draft_reads, flag_draft_groups
from hybridplan.ledger.vllm.groups import CacheGroup, Rule, group_layers
from hybridplan.ledger.vllm.hashing import BlockUnits, block_units
from hybridplan.ledger.vllm.layer_specs import ModelLayers, model_layers
from hybridplan.ledger.vllm.options import AUTO_FIT, VllmOptions
from hybridplan.ledger.vllm.page import (
    AttentionCache,
    CacheMode,
    LayerCache,
    RequestLimits,
    StateCache,
)
from hybridplan.ledger.vllm.pool import RankPool
from hybridplan.ledger.vllm.rules import VersionRules, rules_of
from hybridplan.ledger.vllm.states import GdnKernel


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What vLLM decides about its KV pool. Bytes are per rank, lengths in tokens.

    Args:
        version: rule set used ("0.33", "0.32", "older").
        layers: every cache by module name, in registration order, before page unification.
        layout: order of dimensions in memory ("LBNHC": layer outermost, "BLHNC": block outermost).
        groups: layers per block table in the engine's order, over all pipeline ranks.
        grouping: the rule that made them.
        ranks: per pipeline rank: its bytes per block, strides, tensors and own block count.
        num_blocks: blocks of the pool, null block included (the fewest of all ranks).
        block_tokens: ``cache_config.block_size`` after planning.
        units: scheduler block, hash block and where a prefix hit may end.
        limits: the longest request, tokens in flight, DCP, state mode.
        blocks_per_request: blocks of one request of max_model_len, per group.
        max_concurrency: num_blocks over their sum, as logged.
        kv_tokens: "GPU KV cache size" as logged.
        prefix_caching: whether hits are looked up at all.
        draft_reads: slots and hash tokens a drafter looks ahead.
        alignment: how the block size came about; None for layers given by hand.
        cache_dtype: the engine's KV dtype; "" for layers given by hand.
        backends: distinct attention backends in layer order.
        auto_fit_from: the length vLLM started from where it was asked to fit one, else None.
        overridden_blocks: per rank, what the memory would have given, where the count was set.
        gdn_kernel: the Gated DeltaNet prefill kernel vLLM names at boot, None without such layers.
        notes: sentences a user should read.
    """

    version: str
    layers: Mapping[str, LayerCache]
    layout: str
    groups: tuple[CacheGroup, ...]
    grouping: Rule
    ranks: tuple[RankPool, ...]
    num_blocks: int
    block_tokens: int
    units: BlockUnits
    limits: RequestLimits
    blocks_per_request: tuple[int, ...]
    max_concurrency: float
    kv_tokens: int
    prefix_caching: bool
    draft_reads: DraftReads = field(default_factory=DraftReads)
    alignment: Alignment | None = None
    cache_dtype: str = ""
    backends: tuple[str, ...] = ()
    auto_fit_from: int | None = None
    overridden_blocks: tuple[int, ...] = ()
    gdn_kernel: GdnKernel | None = None
    notes: tuple[str, ...] = ()

    @property
    def bytes_per_block(self) -> int:
        """Bytes one block id stands for on the first pipeline rank."""
        return self.ranks[0].bytes_per_block

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool on the first pipeline rank."""
        return self.num_blocks * self.bytes_per_block

    @property
    def usable_blocks(self) -> int:
        """Blocks requests can hold: all but the null block."""
        return self.num_blocks - 1

    def request_blocks(self, tokens: int) -> tuple[int, ...]:
        """Blocks a request of that many tokens holds at most, per group."""
        limits = replace(self.limits, max_model_len=tokens)
        return tuple(group.blocks_per_request(limits) for group in self.groups)

    def request_bytes(self, tokens: int) -> int:
        """Bytes of the pool a request of that many tokens holds at most."""
        return sum(self.request_blocks(tokens)) * self.bytes_per_block

    def longest_request(self, limit_tokens: int) -> int:
        """The longest single request, up to ``limit_tokens``, that vLLM says would fit.

        Beside the null block, but for releases that forgot it.
        """
        free = self.usable_blocks
        if not rules_of(self.version).reserves_null_block:
            free = self.num_blocks
        return pool.longest_that_fits(self.groups, self.limits, free, limit_tokens)

    def padding_bytes(self) -> tuple[int, ...]:
        """Bytes of one block that hold nothing, per group: padded pages, empty slots, alignment."""
        return tuple(self.bytes_per_block - group.content_bytes for group in self.ranks[0].groups)

    def tensor_of(self, layer: str) -> pool.TensorEntry:
        """The tensor entry that holds a layer. Raises InputError for a name that is in none."""
        for rank in self.ranks:
            for entry in rank.tensors:
                if layer in entry.layers:
                    return entry
        raise InputError(f"no layer {layer!r} in this plan")


def plan_vllm(
    spec: ModelSpec,
    deployment: Deployment,
    options: VllmOptions,
    available_bytes: int,
) -> PoolPlan:
    """Plan the pool of a model whose rank has ``available_bytes`` for KV.

    ``deployment.version`` picks the rules ("" is the newest). Raises RefusalError where vLLM would
    refuse to start, InputError for contradictory input.
    """
    if deployment.engine != "vllm":
        raise InputError(f"this plan is vLLM's, the deployment is for {deployment.engine}")
    rules = rules_of(deployment.version)
    auto = options.max_model_len == AUTO_FIT
    longest = spec.max_tokens if auto or options.max_model_len is None else options.max_model_len
    if not longest:
        raise InputError(f"{spec.name} has no longest length of its own; give max_model_len")
    if spec.max_tokens and longest > spec.max_tokens:
        raise RefusalError(
            f"max_model_len is {longest} but {spec.name} is made for {spec.max_tokens} tokens; "
            f"set it to {spec.max_tokens} or less"
        )
    found = model_layers(spec, deployment, options, rules, longest)
    limits = request_limits(deployment, options, longest, found.state_mode)
    return plan_layers(
        found.layers,
        limits,
        available_bytes,
        rules=rules,
        options=options,
        supported_layouts=layouts.candidates([backend.layouts for backend in found.backends]),
        prefix_caching=found.prefix_caching,
        stages=found.stages,
        model=found,
        reads=draft_reads(rules, deployment, options, found),
        auto_fit=auto,
    )


def request_limits(
    deployment: Deployment, options: VllmOptions, max_model_len: int, mode: CacheMode
) -> RequestLimits:
    """Concurrent batches (pipeline stages, one more with async scheduling) bound what is in flight.

    Source: ``VllmConfig.max_concurrent_batches``, ``max_in_flight_tokens``.
    """
    batches = deployment.pp
    if options.async_scheduling and (options.model_runner_v2 or deployment.pp == 1):
        batches += 1
    in_flight = batches * options.batched_tokens
    return RequestLimits(max_model_len, in_flight, deployment.dcp, mode)


def plan_layers(
    layers: Mapping[str, LayerCache],
    limits: RequestLimits,
    available_bytes: int,
    *,
    rules: VersionRules,
    options: VllmOptions,
    supported_layouts: Sequence[str],
    prefix_caching: bool,
    stages: Sequence[Sequence[str]] = (),
    model: ModelLayers | None = None,
    reads: DraftReads | None = None,
    auto_fit: bool = False,
) -> PoolPlan:
    """Plan the pool of layers already described; :func:`plan_vllm` ends here too.

    ``stages`` names the layers of each pipeline rank (default: one rank holds all).
    """
    reads = reads or DraftReads()
    retained = max(0, reads.prefill_tokens - 1)
    layers = {name: _retaining(cache, retained) for name, cache in layers.items()}
    layout = layouts.resolve(supported_layouts, layers.values(), options.layout)
    grouping = group_layers(
        layers, layout, hybrid_manager=options.hybrid_manager, width=options.group_layers
    )
    groups = flag_draft_groups(grouping.groups, layers, rules, options, reads)
    if not groups:
        raise RefusalError("the model keeps no cache in the pool, so there is nothing to plan")
    names = [set(stage) for stage in stages] or [set(layers)]
    parts = [pool.on_rank(groups, held) for held in names]
    for part in parts:
        pool.check_layout([group for group in part if group.layers], layout)
    block_bytes = [pool.bytes_per_block(part, layout) for part in parts]
    memory = list(options.available_bytes_per_rank) or [available_bytes] * len(parts)
    if len(memory) != len(parts):
        raise InputError(f"{len(memory)} memory sizes were given for {len(parts)} pipeline ranks")
    from_memory = [m // b for m, b in zip(memory, block_bytes, strict=True)]
    override = options.num_gpu_blocks_override
    if override is not None:
        memory = [override * b for b in block_bytes]
    fitted_from = None
    if auto_fit:
        fitted_from = limits.max_model_len
        fitted = _auto_fit(groups, limits, memory, block_bytes, rules)
        limits = replace(limits, max_model_len=fitted)
    for size, per_block in zip(memory, block_bytes, strict=True):
        pool.check_fit(groups, limits, size, per_block, null_block=rules.reserves_null_block)
    num_blocks = min(m // b for m, b in zip(memory, block_bytes, strict=True))
    block_tokens = _block_tokens(groups)
    units = block_units(
        groups,
        block_tokens,
        prefix_caching=prefix_caching,
        prefix_match_unit=options.prefix_match_unit,
        dcp=limits.dcp,
    )
    _check_budgets(groups, block_tokens, num_blocks, limits, rules, options)
    per_group = tuple(group.blocks_per_request(limits) for group in groups)
    concurrency = num_blocks / sum(per_group)
    if rules.counts_blocks_per_group:
        kv_tokens = num_blocks // len(groups) * block_tokens
    else:
        kv_tokens = int(concurrency * limits.max_model_len)
    ranks = tuple(
        RankPool(
            part,
            size,
            pool.page_bytes_per_block(part),
            pool.stride_alignment(part),
            per_block,
            num_blocks,
            pool.place(part, layout, num_blocks),
        )
        for part, size, per_block in zip(parts, memory, block_bytes, strict=True)
    )
    return PoolPlan(
        version=rules.version,
        layers=layers,
        layout=layout,
        groups=groups,
        grouping=grouping.rule,
        ranks=ranks,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        units=units,
        limits=limits,
        blocks_per_request=per_group,
        max_concurrency=concurrency,
        kv_tokens=kv_tokens,
        prefix_caching=prefix_caching,
        draft_reads=reads,
        alignment=model.alignment if model else None,
        cache_dtype=model.cache_dtype if model else "",
        backends=tuple(backend.name for backend in model.backends) if model else (),
        auto_fit_from=fitted_from,
        overridden_blocks=tuple(from_memory) if override is not None else (),
        gdn_kernel=model.gdn_kernel if model else None,
        notes=grouping.notes,
    )


def _retaining(cache: LayerCache, tokens: int) -> LayerCache:
    if tokens and isinstance(cache, AttentionCache) and cache.kind == "sliding":
        return replace(cache, extra_retained_tokens=tokens)
    return cache


def _block_tokens(groups: Sequence[CacheGroup]) -> int:
    shared = [group.block_tokens for group in groups if group.prefix_cacheable]
    return min(shared or [group.block_tokens for group in groups])


def _check_budgets(
    groups: Sequence[CacheGroup],
    block_tokens: int,
    num_blocks: int,
    limits: RequestLimits,
    rules: VersionRules,
    options: VllmOptions,
) -> None:
    states = any(isinstance(cache, StateCache) for group in groups for cache in group.caches)
    seqs, step = options.max_num_seqs, options.max_num_batched_tokens
    if states and seqs is not None and seqs > num_blocks:
        raise RefusalError(
            f"max_num_seqs is {seqs} but the pool has {num_blocks} blocks and each running "
            f"request needs one for its state; set max_num_seqs to {num_blocks} or less"
        )
    guarded = rules.guards_step_budget and limits.state_mode == "align"
    if states and guarded and step is not None and block_tokens > step:
        raise RefusalError(
            f"the block has {block_tokens} tokens but max_num_batched_tokens is {step}; "
            f"set it to {block_tokens} or more"
        )


def _auto_fit(
    groups: Sequence[CacheGroup],
    limits: RequestLimits,
    memory: Sequence[int],
    block_bytes: Sequence[int],
    rules: VersionRules,
) -> int:
    null = 1 if rules.reserves_null_block else 0
    usable = [m // b - null for m, b in zip(memory, block_bytes, strict=True)]
    longest = limits.max_model_len
    fitted = min(pool.longest_that_fits(groups, limits, n, longest) for n in usable)
    if fitted <= 0:
        raise RefusalError(
            f"the pool has {min(memory)} bytes, which does not hold one token: a block takes "
            f"{max(block_bytes)} bytes and a request of one token "
            f"{pool.request_blocks(groups, replace(limits, max_model_len=1))} blocks"
        )
    return fitted
