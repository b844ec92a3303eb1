"""Does it fit: smallest tensor parallel size, largest context, largest concurrency."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.errors import HybridplanError, RefusalError
from hybridplan.ledger.planning.ask import VllmAsk
from hybridplan.ledger.planning.result import SCHEMA_VERSION, FitResult
from hybridplan.ledger.planning.vllm import check_state_blocks
from hybridplan.ledger.planning.warnings import drafter_weights
from hybridplan.ledger.vllm.options import AUTO_FIT
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm

_SIZES = (1, 2, 4, 8, 16, 32)
_MORE_THAN_ANY_BYTES = 1 << 60


def _pool(ask: VllmAsk, tp: int, *, boots: bool = True) -> tuple[PoolPlan, int]:
    """The pool at that size and the bytes it was cut from.

    ``boots`` False leaves out the check that decode graphs make after it.
    """
    at = replace(ask, deployment=replace(ask.deployment, tp=tp)).resolved()
    available = at.budget().available_bytes
    pool = plan_vllm(at.spec, at.deployment, at.options, available)
    if boots:
        check_state_blocks(at, pool)
    return pool, available


def _smallest_tp(ask: VllmAsk) -> int | None:
    for tp in _SIZES:
        try:
            _pool(ask, tp)
        except HybridplanError:
            continue
        return tp
    return None


def _longest(ask: VllmAsk) -> PoolPlan | None:
    """The pool of the longest max_model_len the asked cards hold, None where there is none."""
    try:
        auto = replace(ask, options=replace(ask.options, max_model_len=AUTO_FIT))
        return _pool(auto, ask.deployment.tp, boots=False)[0]
    except RefusalError:
        return None


def fit(ask: VllmAsk) -> FitResult:
    """Answer yes or no at the asked size, and what is possible around it.

    Raises InputError for sizes the model cannot be cut into and for missing figures, RefusalError
    where the engine refuses the configuration whatever the memory.
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
        reason = "; ".join([reason, *drafter_weights(ask)])
    except RefusalError as refusal:
        fits, reason = False, refusal.sentence
    smallest = _smallest_tp(ask) if ask.memory.kv_memory_bytes is None else (tp if fits else None)
    longest = _longest(ask)
    if longest is None and smallest is None:
        _check_memory_would_help(ask)
    context = longest.limits.max_model_len if longest else 0
    if not fits:
        change = _change(ask, smallest, longest, wanted)
    card = ask.memory.gpu
    gpu = card.name if card is not None and ask.memory.kv_memory_bytes is None else "--kv-memory"
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


def _check_memory_would_help(ask: VllmAsk) -> None:
    """Raise what vLLM refuses even of a rank that has more than any."""
    options = replace(ask.resolved().options, max_model_len=AUTO_FIT)
    plan_vllm(ask.spec, ask.deployment, options, _MORE_THAN_ANY_BYTES)


def _change(ask: VllmAsk, smallest: int | None, longest: PoolPlan | None, wanted: int) -> str:
    if longest is not None:
        flags = []
        if longest.limits.max_model_len < wanted:
            flags.append(f"--max-model-len {longest.limits.max_model_len}")
        try:
            check_state_blocks(ask.resolved(), longest)
        except RefusalError:
            flags.append(f"--max-num-seqs {longest.num_blocks}")
        return f"{' '.join(flags)} fits on this size"
    if smallest is not None and smallest > ask.deployment.tp:
        return f"--tp {smallest} fits"
    if ask.memory.kv_memory_bytes is not None:
        return "no length fits in --kv-memory; give more"
    return f"no tensor parallel size up to {_SIZES[-1]} fits; use a larger card or smaller weights"
