"""Does it fit: smallest tensor parallel size, largest context, largest concurrency."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.errors import HybridplanError, RefusalError
from hybridplan.ledger.planning.ask import VllmAsk, pool_memory
from hybridplan.ledger.planning.result import SCHEMA_VERSION, FitResult
from hybridplan.ledger.vllm.options import AUTO_FIT
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm

_SIZES = (1, 2, 4, 8, 16, 32)


def _pool(ask: VllmAsk, tp: int) -> tuple[PoolPlan, int]:
    deployment = replace(ask.deployment, tp=tp)
    at = replace(ask, deployment=deployment).resolved()
    assert at.max_num_batched_tokens is not None
    assert at.max_num_seqs is not None
    memory = pool_memory(at.memory, at.spec, deployment, at.max_num_batched_tokens, at.max_num_seqs)
    return plan_vllm(at.spec, deployment, at.options, memory.available_bytes), (
        memory.available_bytes
    )


def _smallest_tp(ask: VllmAsk) -> int | None:
    for tp in _SIZES:
        try:
            _pool(ask, tp)
        except HybridplanError:
            continue
        return tp
    return None


def _largest_context(ask: VllmAsk) -> int:
    """Longest max_model_len that would boot on the asked cards, 0 for none."""
    try:
        auto = replace(ask, options=replace(ask.options, max_model_len=AUTO_FIT))
        return _pool(auto, ask.deployment.tp)[0].limits.max_model_len
    except RefusalError:
        return 0


def fit(ask: VllmAsk) -> FitResult:
    """Answer yes or no at the asked size, and what is possible around it.

    Raises InputError for sizes the model cannot be cut into and for missing figures.
    """
    tp = ask.deployment.tp
    wanted = ask.options.max_model_len or ask.spec.max_tokens
    reason = change = ""
    concurrency, available, fits = 0.0, 0, True
    try:
        pool, available = _pool(ask, tp)
        concurrency = pool.max_concurrency
        reason = (
            f"{pool.num_blocks:,} blocks of {pool.bytes_per_block:,} B hold {concurrency:.2f} "
            f"requests of {wanted:,} tokens"
        )
    except RefusalError as refusal:
        fits, reason = False, refusal.sentence
    smallest = _smallest_tp(ask) if ask.memory.kv_memory_bytes is None else (tp if fits else None)
    context = _largest_context(ask)
    if not fits:
        change = _change(tp, smallest, context)
    gpu = ask.memory.gpu.name if ask.memory.gpu else "--kv-memory"
    return FitResult(
        schema_version=SCHEMA_VERSION,
        model=ask.spec.name,
        deployment=ask.deployment,
        gpu=gpu,
        max_model_len=wanted,
        fits=fits,
        smallest_tp=smallest,
        largest_context_tokens=context,
        largest_concurrency=concurrency,
        available_bytes=available,
        reason=reason,
        change=change,
    )


def _change(tp: int, smallest: int | None, context: int) -> str:
    if context:
        return f"--max-model-len {context} fits on this size"
    if smallest is not None and smallest > tp:
        return f"--tp {smallest} fits"
    return f"no tensor parallel size up to {_SIZES[-1]} fits; use a larger card or smaller weights"
