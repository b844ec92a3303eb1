"""SGLang's plan, whole: memory, the two pools, costs, boot lines, warnings."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import Gpu
from hybridplan.ledger.lengths.distribution import Lengths
from hybridplan.ledger.memory import GIB
from hybridplan.ledger.planning.ask import MemoryAsk, outside_fraction, static_memory
from hybridplan.ledger.planning.result import SCHEMA_VERSION, RequestCost, SglangResult
from hybridplan.ledger.planning.sizing import sglang_lengths
from hybridplan.ledger.sglang.options import SglangOptions
from hybridplan.ledger.sglang.plan import SglangPlan, plan_sglang
from hybridplan.ledger.size import gib

SGLANG_FRACTION = 0.88
SGLANG_VERSIONS = ("", "0.5", "0.5.23")
CHUNKED_PREFILL_TOKENS = 8192
_CHUNK_BY_MEMORY = ((20, 2048), (60, 4096), (160, CHUNKED_PREFILL_TOKENS))
_CHUNK_OF_LARGER = 16384
_LADDER = (1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
_DEFAULT_ROWS = 48


def chunked_prefill_tokens(gpu: Gpu | None) -> int:
    """`chunked_prefill_size` SGLang 0.5.23 takes for a card (`_handle_gpu_memory_settings`,
    arg_groups/memory_hook.py); that of cards with 60 to 160 GiB where none is named."""
    if gpu is None:
        return CHUNKED_PREFILL_TOKENS
    for below_gib, tokens in _CHUNK_BY_MEMORY:
        if gpu.memory_bytes < below_gib * GIB:
            return tokens
    return _CHUNK_OF_LARGER


@dataclass(frozen=True, slots=True)
class SglangAsk:
    """A question for :func:`plan`; ``memory.kv_memory_bytes`` is what weights and reserve leave."""

    spec: ModelSpec
    deployment: Deployment
    options: SglangOptions
    memory: MemoryAsk
    costs_at: tuple[int, ...] = ()
    lengths: Lengths | None = None
    seed: int = 0


def plan(ask: SglangAsk) -> SglangResult:
    """Answer one question. Raises RefusalError when not one request fits."""
    version = ask.deployment.version
    if version not in SGLANG_VERSIONS:
        raise InputError(f"SGLang {version} is not modelled; known is {SGLANG_VERSIONS[-1]}")
    rows = ask.options.max_running_requests or _DEFAULT_ROWS
    step = chunked_prefill_tokens(ask.memory.gpu)
    got = static_memory(ask.memory, ask.spec, ask.deployment, step, rows)
    found = plan_sglang(ask.spec, ask.deployment, ask.options, got.available_bytes)
    split, host = found.split, found.host
    lengths = None
    if ask.lengths is not None:
        lengths = sglang_lengths(
            ask.spec, ask.deployment, ask.options, got.available_bytes, ask.lengths, ask.seed
        )
    return SglangResult(
        schema_version=SCHEMA_VERSION,
        model=ask.spec.name,
        deployment=ask.deployment,
        memory=got,
        strategy=found.strategy,
        slots_per_request=found.slots_per_request,
        tracking_slots=found.tracking_slots,
        slot_bytes=found.slot_bytes,
        state_bytes=found.state_bytes,
        conv_bytes=found.conv_bytes,
        kv_bytes_per_token=found.kv_bytes_per_token,
        ratio=float(ask.options.ratio),
        balanced_ratio=float(found.balanced_ratio),
        slots=split.slots,
        slots_bytes=split.slots_bytes,
        intermediate_bytes=split.intermediate_bytes,
        intermediate_allocated_bytes=found.intermediate_allocated_bytes,
        ring_bytes=split.ring_bytes,
        kv_bytes=split.kv_bytes,
        kv_tokens=split.kv_tokens,
        requests_by_slots=split.requests_by_slots,
        max_running_requests=split.max_running_requests,
        binds=split.binds,
        context_tokens=found.context_tokens,
        checkpoint_grid_tokens=found.checkpoint_grid_tokens,
        track_grid_tokens=found.track_grid_tokens,
        outside_bytes=found.outside_bytes,
        host_slots=host.slots if host else None,
        host_kv_tokens=host.kv_tokens if host else None,
        host_bytes=host.bytes if host else None,
        host_coverage=host.coverage if host else None,
        pd_decode_slots=found.pd_decode_slots,
        costs=_costs(found, ask.costs_at),
        boot_lines=found.boot_lines,
        warnings=(*found.warnings, *_outside(ask, rows)),
        lengths=lengths,
    )


def _outside(ask: SglangAsk, rows: int) -> list[str]:
    memory = ask.memory
    if memory.gpu is None or memory.kv_memory_bytes is not None:
        return []
    step = chunked_prefill_tokens(memory.gpu)
    parts = outside_fraction(memory, ask.spec, ask.deployment, step, rows)
    said = " and ".join(f"{part.name} {gib(int(part.value))} ({part.how})" for part in parts)
    return [
        f"{said} live in the {1 - memory.utilisation:.0%} of {memory.gpu.title} that "
        f"mem-fraction-static {memory.utilisation:g} leaves out; set them with --activation-memory "
        "and --graph-memory"
    ]


def _costs(plan: SglangPlan, asked: tuple[int, ...]) -> tuple[RequestCost, ...]:
    longest = plan.context_tokens
    for tokens in asked:
        if tokens > longest:
            raise RefusalError(
                f"--at {tokens} is longer than the context length {longest}, which SGLang refuses; "
                f"use --at {longest} or less"
            )
    ladder = asked or (*(n for n in _LADDER if n < longest), longest)
    slots = plan.slots_per_request
    return tuple(
        RequestCost(
            tokens,
            (slots,),
            slots * plan.slot_bytes + tokens * plan.kv_bytes_per_token,
            min(plan.split.requests_by_slots, plan.split.kv_tokens // tokens),
        )
        for tokens in ladder
    )
