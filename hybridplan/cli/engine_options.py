"""Options of an engine that is replayed, and what they ask of it.

A command need not have all of them: one that is not among those given stands at its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridplan.cli import flags
from hybridplan.errors import InputError

if TYPE_CHECKING:
    from hybridplan.ledger.deployment import Deployment
    from hybridplan.ledger.planning.ask import MemoryAsk
    from hybridplan.sim.setup import SglangFlags, VllmFlags

NumBlocks = Annotated[
    int | None,
    typer.Option("--num-blocks", "--num-gpu-blocks-override", help="Blocks of vLLM's pool, given."),
]
AsyncScheduling = Annotated[
    bool,
    typer.Option("--async-scheduling/--no-async-scheduling", help="vLLM: as at boot."),
]
MaxRunningRequests = Annotated[
    int | None,
    typer.Option("--max-running-requests", help="SGLang: running requests at most."),
]

_ALLOWANCES = ("weights_memory", "activation_memory", "graph_memory")
_VLLM_ONLY = (
    "num_blocks", "max_num_seqs", "max_num_batched_tokens", "block_size", "prefix_match_unit",
    "prefix_cache_retention_interval", "attention_backend", "draft_method", "accepted_drafts",
)  # fmt: skip
_SGLANG_ONLY = (
    "mamba_radix_cache_strategy", "mamba_full_memory_ratio", "max_mamba_cache_size",
    "max_running_requests", "page_size", "hicache_ratio", "hicache_size", "chunked_prefill_size",
    "mamba_max_states_per_path", "mamba_track_interval",
)  # fmt: skip


def engine_memory(engine: str, given: Mapping[str, Any]) -> MemoryAsk | None:
    """The memory that sizes the pool; None where neither a card nor a size is given.

    Raises InputError for parts of a card without the card.
    """
    from hybridplan.ledger.gpu import find_gpu
    from hybridplan.ledger.memory import VLLM_UTILISATION
    from hybridplan.ledger.planning.ask import MemoryAsk
    from hybridplan.ledger.planning.sglang import SGLANG_FRACTION

    gpu, kv_memory = given.get("gpu"), given.get("kv_memory")
    if gpu is None and kv_memory is None:
        for flag in ("memory_utilization", *_ALLOWANCES):
            if given.get(flag) is not None:
                raise InputError(
                    f"--{flag.replace('_', '-')} divides a card's memory; name the card with --gpu"
                )
        return None
    usual = SGLANG_FRACTION if engine == "sglang" else VLLM_UTILISATION
    asked = given.get("memory_utilization")
    return MemoryAsk(
        gpu=find_gpu(gpu) if gpu is not None else None,
        kv_memory_bytes=flags.size_or_none(kv_memory, "--kv-memory"),
        utilisation=usual if asked is None else asked,
        weights_bytes=flags.size_or_none(given.get("weights_memory"), "--weights-memory"),
        activation_bytes=flags.size_or_none(given.get("activation_memory"), "--activation-memory"),
        graph_bytes=flags.size_or_none(given.get("graph_memory"), "--graph-memory"),
    )


def engine_flags(deployment: Deployment, given: Mapping[str, Any]) -> VllmFlags | SglangFlags:
    """The flags of the deployment's engine.

    Raises InputError for another engine's flag, or an engine without a replay.
    """
    engine = deployment.engine
    if engine not in ("vllm", "sglang"):
        raise InputError(f"--engine {engine} has no replay; use vllm or sglang")
    owner, foreign = ("sglang", _SGLANG_ONLY) if engine == "vllm" else ("vllm", _VLLM_ONLY)
    for name in foreign:
        if given.get(name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} is a setting of {owner} and the engine is {engine}; drop it")
    return _vllm(given) if engine == "vllm" else _sglang(given)


def _vllm(given: Mapping[str, Any]) -> VllmFlags:
    from hybridplan.ledger.vllm.options import VllmOptions
    from hybridplan.sim.setup import VllmFlags

    method = given.get("draft_method")
    return VllmFlags(
        options=VllmOptions(
            max_model_len=given.get("max_model_len"),
            prefix_caching=given.get("prefix_caching"),
            prefix_match_unit=given.get("prefix_match_unit"),
            block_tokens=given.get("block_size"),
            attention_backend=given.get("attention_backend"),
            async_scheduling=given.get("async_scheduling", True),
            replayssm_tokens=flags.ring_tokens(given.get("replayssm")),
            **({} if method is None else {"draft_method": method}),
        ),
        max_num_seqs=given.get("max_num_seqs"),
        max_num_batched_tokens=given.get("max_num_batched_tokens"),
        num_blocks=given.get("num_blocks"),
        retention_interval=_interval(given.get("prefix_cache_retention_interval")),
        shared_prefix_checkpoint=given.get("enable_mamba_shared_prefix_checkpoint", False),
        watermark=given.get("watermark", 0.0),
        policy=given.get("policy", "engine"),
        accepted_drafts=_accepted(given.get("accepted_drafts")),
    )


def _sglang(given: Mapping[str, Any]) -> SglangFlags:
    from hybridplan.ledger.sglang.options import SglangOptions
    from hybridplan.sim.setup import SglangFlags

    if given.get("policy", "engine") != "engine":
        raise InputError(
            "--policy is a choice of the vllm replay and the engine is sglang; drop it"
        )
    host, track = given.get("hicache_ratio"), given.get("mamba_track_interval")
    path = given.get("mamba_max_states_per_path")
    return SglangFlags(
        SglangOptions(
            strategy=given.get("mamba_radix_cache_strategy") or "auto",
            ratio=flags.fraction(
                given.get("mamba_full_memory_ratio") or "0.9", "--mamba-full-memory-ratio"
            ),
            slots=given.get("max_mamba_cache_size"),
            max_running_requests=given.get("max_running_requests"),
            context_tokens=given.get("max_model_len"),
            page_tokens=given.get("page_size") or 1,
            radix_cache=given.get("prefix_caching") is not False,
            replay=flags.replay_mode(given.get("replayssm")),
            host_ratio=flags.fraction(host, "--hicache-ratio") if host else None,
            host_bytes=flags.size_or_none(given.get("hicache_size"), "--hicache-size"),
            **{"track_interval_tokens": track} if track is not None else {},
        ),
        chunked_prefill_tokens=given.get("chunked_prefill_size"),
        max_states_per_path=-1 if path is None else path,
    )


def _interval(text: str | None) -> int | None:
    if text is None:
        return 0
    if text.lower() == "none":
        return None
    if not text.isdigit():
        raise InputError(
            f"--prefix-cache-retention-interval {text!r} must be none, 0 or a number of tokens"
        )
    return int(text)


def _accepted(text: str | None) -> tuple[int, ...]:
    parts = (text or "0").split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise InputError(f"--accepted-drafts {text!r} must be whole numbers such as 2 or 0,1,2")
    return tuple(int(part) for part in parts)
