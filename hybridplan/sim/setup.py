"""From a model and an operator's flags to an engine that can be replayed.

The pool is planned exactly as ``hybridplan plan`` does it (``hybridplan.ledger.planning``); this
module adds what only a replay needs: an unlimited pool, retention, the ``all`` policy, drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.planning.ask import MemoryAsk, VllmAsk, pool_memory, static_memory
from hybridplan.ledger.planning.result import Memory
from hybridplan.ledger.sglang.options import SglangOptions
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm
from hybridplan.sim.events import EventSink
from hybridplan.sim.replay import Engine
from hybridplan.sim.result import PoolGroup, Setup
from hybridplan.sim.sglang.config import SglangCacheConfig
from hybridplan.sim.sglang.replayed import ReplayedSglang
from hybridplan.sim.vllm.from_plan import cache_config
from hybridplan.sim.vllm.keys import Reading
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import VERSIONS, GroupKind, VllmCacheConfig

UNLIMITED_BLOCKS = 1 << 40
_UNLIMITED_BYTES = 1 << 60
POLICIES = ("engine", "all")


@dataclass(frozen=True, slots=True)
class VllmFlags:
    """vLLM's flags beside the memory. ``retention_interval`` None keeps every chunk end.

    ``num_blocks`` is ``num_gpu_blocks_override``; ``policy`` "all" keeps a state at every block.
    ``accepted_drafts``: drafts accepted per verification, cycled.
    """

    options: VllmOptions = field(default_factory=VllmOptions)
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_blocks: int | None = None
    retention_interval: int | None = 0
    shared_prefix_checkpoint: bool = False
    watermark: float = 0.0
    policy: str = "engine"
    accepted_drafts: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class SglangFlags:
    """SGLang's flags beside the memory. ``chunked_prefill_tokens`` None: the card's default."""

    options: SglangOptions = field(default_factory=SglangOptions)
    chunked_prefill_tokens: int | None = None
    max_states_per_path: int = -1


@dataclass(frozen=True, slots=True)
class EngineAsk:
    """Which engine, for which model. ``memory`` None with no ``num_blocks``: an unlimited pool."""

    spec: ModelSpec
    deployment: Deployment
    flags: VllmFlags | SglangFlags
    memory: MemoryAsk | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """A planned engine. Every call of ``make`` gives a fresh one; ``reads_both`` tells whether it
    can take the trace's upper reading too."""

    setup: Setup
    make: Callable[[Reading, bool, EventSink | None], Engine]
    reads_both: bool

    def engine(
        self,
        reading: Reading = Reading.LOWER,
        *,
        losses: bool = True,
        events: EventSink | None = None,
    ) -> Engine:
        """An empty engine; ``losses`` False leaves out ceiling and causes and is faster."""
        return self.make(reading, losses, events)


def build(ask: EngineAsk) -> Built:
    """Plan the pool and describe it.

    Raises RefusalError where the engine would refuse to start and InputError for flags that
    contradict each other or a model the engine serves without prefix caching.
    """
    if isinstance(ask.flags, VllmFlags):
        return _vllm(ask, ask.flags)
    return _sglang(ask, ask.flags)


def _vllm(ask: EngineAsk, flags: VllmFlags) -> Built:
    if flags.num_blocks is not None and flags.num_blocks < 2:
        raise InputError(
            f"--num-blocks {flags.num_blocks} leaves nothing beside the null block; give 2 or more"
        )
    if not 0 <= flags.watermark < 1:
        raise InputError(f"--watermark {flags.watermark:g} must be at least 0 and below 1")
    if ask.deployment.version not in ("", *VERSIONS):
        raise InputError(
            f"vLLM {ask.deployment.version} has no replay; replayed are {', '.join(VERSIONS)}"
        )
    if flags.policy not in POLICIES:
        raise InputError(f"policy {flags.policy!r} is not known; use {' or '.join(POLICIES)}")
    if any(not 0 <= n <= ask.deployment.drafts for n in flags.accepted_drafts):
        raise InputError(
            f"--accepted-drafts {','.join(map(str, flags.accepted_drafts))} does not lie between 0"
            f" and the {ask.deployment.drafts} drafts of --drafts"
        )
    question = VllmAsk(
        spec=ask.spec,
        deployment=ask.deployment,
        options=flags.options,
        memory=ask.memory or MemoryAsk(kv_memory_bytes=_UNLIMITED_BYTES),
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
    ).resolved()
    tokens, seqs = question.max_num_batched_tokens or 0, question.max_num_seqs or 0
    unlimited = ask.memory is None and flags.num_blocks is None
    memory: Memory | None = None
    if ask.memory is not None and flags.num_blocks is None:
        memory = pool_memory(ask.memory, ask.spec, ask.deployment, tokens, seqs)
    blocks = UNLIMITED_BLOCKS if unlimited else flags.num_blocks
    options = replace(question.options, max_num_seqs=seqs, num_gpu_blocks_override=blocks)
    plan = plan_vllm(ask.spec, ask.deployment, options, memory.available_bytes if memory else 0)
    if not plan.prefix_caching and flags.options.prefix_caching is None:
        raise InputError(
            f"vLLM serves {ask.spec.name} without prefix caching, so no prompt token is ever a hit;"
            " --prefix-caching turns it on, --no-prefix-caching replays it as it is"
        )
    config = replace(
        cache_config(plan, options, retention_interval_tokens=flags.retention_interval),
        shared_prefix_checkpoint=flags.shared_prefix_checkpoint,
        watermark=flags.watermark,
    )
    assumptions = list(_vllm_assumptions(ask, flags, unlimited, tokens, seqs))
    if flags.policy == "all":
        config = _state_at_every_block(config, ask.spec.name)
        assumptions.append("policy all: a state at every block, a mode vLLM no longer has")
    setup = Setup(
        model=ask.spec.name,
        deployment=ask.deployment,
        rules=f"vllm {plan.version}",
        policy=flags.policy,
        memory=memory,
        num_blocks=None if unlimited else plan.num_blocks,
        bytes_per_block=plan.bytes_per_block,
        block_tokens=plan.block_tokens,
        hash_block_tokens=config.hash_block_tokens,
        hit_alignment_tokens=config.hit_alignment_tokens,
        groups=_groups(plan, config),
        settings=_settings(config),
        assumptions=tuple(assumptions),
    )

    def make(reading: Reading, losses: bool, events: EventSink | None) -> Engine:
        return ReplayedVllm(
            config,
            accepted_drafts=flags.accepted_drafts,
            reading=reading,
            attribute_losses=losses,
            events=events,
        )

    return Built(setup, make, reads_both=True)


def _state_at_every_block(config: VllmCacheConfig, model: str) -> VllmCacheConfig:
    groups = tuple(
        replace(group, kind=GroupKind.MAMBA_ALL) if group.kind is GroupKind.MAMBA_ALIGN else group
        for group in config.groups
    )
    if groups == config.groups:
        raise InputError(f"{model} keeps no prefix-cached state, so policy all changes nothing")
    config = replace(
        config, groups=groups, prefix_match_unit_tokens=None, retention_interval_tokens=0
    )
    # Every group now grows with the request, so the plan's longest request may no longer fit.
    per_request = (config.num_blocks - 1) // len(groups)
    longest = per_request * min(group.block_tokens for group in groups)
    return replace(config, max_model_len=max(1, min(config.max_model_len, longest)))


def _vllm_assumptions(
    ask: EngineAsk, flags: VllmFlags, unlimited: bool, tokens: int, seqs: int
) -> list[str]:
    said = []
    if unlimited:
        said.append("no memory was given, so the pool is unlimited and nothing is ever evicted")
    if ask.memory is None or ask.memory.gpu is None:
        missing = [
            f"{name} {value:,}"
            for name, value, given in (
                ("max_num_batched_tokens", tokens, flags.max_num_batched_tokens),
                ("max_num_seqs", seqs, flags.max_num_seqs),
            )
            if given is None
        ]
        if missing:
            said.append(
                f"no card was named, so vLLM's smallest defaults hold: {', '.join(missing)}"
            )
    if ask.deployment.drafts:
        shown = ",".join(map(str, flags.accepted_drafts))
        said.append(f"drafts accepted per verification, in turn: {shown}")
    return said


def _groups(plan: PoolPlan, config: VllmCacheConfig) -> tuple[PoolGroup, ...]:
    return tuple(
        PoolGroup(found.kind.value, len(group.layers), found.block_tokens, found.block_bytes)
        for group, found in zip(plan.groups, config.groups, strict=True)
    )


def _settings(config: VllmCacheConfig) -> dict[str, int | float | bool | str | None]:
    interval = config.retention_interval_tokens
    return {
        "max_num_batched_tokens": config.max_batched_tokens,
        "max_num_seqs": config.max_seqs,
        "max_model_len": config.max_model_len,
        "prefix_caching": config.prefix_caching,
        "prefix_cache_retention_interval": interval,
        "prefix_match_unit": config.prefix_match_unit_tokens,
        "enable_mamba_shared_prefix_checkpoint": config.shared_prefix_checkpoint,
        "watermark": config.watermark,
        "async_scheduling": config.async_depth > 1,
        "num_speculative_tokens": config.draft_tokens,
    }


def _sglang(ask: EngineAsk, flags: SglangFlags) -> Built:
    from hybridplan.ledger.planning.sglang import chunked_prefill_tokens
    from hybridplan.ledger.sglang.plan import chunk_tokens, plan_sglang

    options = flags.options
    gpu = ask.memory.gpu if ask.memory else None
    step = flags.chunked_prefill_tokens
    if step is None:
        step = chunked_prefill_tokens(gpu)
    if not (options.context_tokens or ask.spec.max_tokens):
        raise InputError(
            f"{ask.spec.name} has no longest length of its own; give one with --max-model-len"
        )
    memory: Memory | None = None
    if ask.memory is not None:
        rows = options.max_running_requests or 48
        memory = static_memory(ask.memory, ask.spec, ask.deployment, step, rows)
    available = memory.available_bytes if memory else _UNLIMITED_BYTES
    plan = plan_sglang(ask.spec, ask.deployment, options, available)
    if not options.radix_cache:
        raise InputError("the SGLang replay is of its radix cache; drop --no-prefix-caching")
    page = options.page_tokens
    config = SglangCacheConfig(
        kv_tokens=plan.split.kv_tokens // page * page,
        state_slots=plan.split.slots,
        strategy=plan.strategy,
        page_tokens=page,
        chunk_tokens=chunk_tokens(ask.spec, options),
        track_interval_tokens=options.track_interval_tokens,
        chunked_prefill_tokens=step,
        max_states_per_path=flags.max_states_per_path,
        overlap=options.overlap,
        skip_decode_lock=options.skip_decode_lock,
        host_kv_tokens=plan.host.kv_tokens // page * page if plan.host else 0,
        host_state_slots=plan.host.slots if plan.host else 0,
        state_bytes=plan.slot_bytes,
    )
    running = plan.split.max_running_requests
    assumptions = ["admission reserves a request's whole length; SGLang admits on an estimate"]
    if memory is None:
        assumptions.insert(
            0, "no memory was given, so both pools are unlimited and nothing is ever evicted"
        )
    if gpu is None and flags.chunked_prefill_tokens is None:
        assumptions.append(
            f"no card was named, so chunked_prefill_size is SGLang's for 60 to 160 GiB: {step:,}"
        )
    if plan.host:
        assumptions.append(
            f"the host tier ({plan.host.kv_tokens:,} KV tokens, {plan.host.slots:,} states) is a"
            " reading of HiCache, never compared with the engine"
        )
    if ask.deployment.drafts:
        assumptions.append("drafts change the pools' sizes here, not the steps")
    layers = model_caches(ask.spec, ask.deployment)
    setup = Setup(
        model=ask.spec.name,
        deployment=ask.deployment,
        rules="sglang 0.5.23",
        policy=plan.strategy,
        memory=memory,
        num_blocks=None if memory is None else config.kv_tokens // page,
        bytes_per_block=plan.kv_bytes_per_token * page,
        block_tokens=page,
        hash_block_tokens=page,
        hit_alignment_tokens=config.checkpoint_grid if config.tracks else page,
        groups=(
            PoolGroup(
                "full",
                sum(bool(layer.tokens) for layer in layers),
                page,
                plan.kv_bytes_per_token * page,
            ),
            PoolGroup("state", sum(bool(layer.states) for layer in layers), 1, plan.slot_bytes),
        ),
        settings={
            "strategy": plan.strategy,
            "mamba_full_memory_ratio": float(options.ratio),
            "state_slots": None if memory is None else config.state_slots,
            "kv_tokens": None if memory is None else config.kv_tokens,
            "max_running_requests": running,
            "page_size": page,
            "chunked_prefill_size": step,
            "max_model_len": plan.context_tokens,
            "state_every_tokens_in_prefill": config.checkpoint_grid if config.tracks else None,
            "state_every_tokens_in_decode": config.track_grid if config.tracks else None,
            "mamba_max_states_per_path": config.max_states_per_path,
        },
        assumptions=tuple(assumptions),
    )

    def make(reading: Reading, losses: bool, events: EventSink | None) -> Engine:
        if events is not None:
            raise InputError("--events are recorded for vllm only; drop it or choose --engine vllm")
        return ReplayedSglang(
            config,
            max_running_requests=running,
            context_tokens=plan.context_tokens,
            attribute_losses=losses,
        )

    return Built(setup, make, reads_both=False)
