"""The memory lines a boot log will have, in the version's own wording.

Wording read from the log strings of vLLM 0.32.0 and 0.33.0 (``platforms/interface.py``,
``v1/core/kv_cache_planning.py``, ``v1/core/kv_cache_utils.py``); the two lines of older releases
from logs in public threads.
"""

from __future__ import annotations

from hybridplan.ledger.vllm.backends import DEFAULT_BLOCK_TOKENS
from hybridplan.ledger.vllm.plan import PoolPlan
from hybridplan.ledger.vllm.pool import GIB
from hybridplan.ledger.vllm.rules import rules_of

LAYOUT_LINE = ("0.32", "0.33")


def boot_log(plan: PoolPlan) -> tuple[str, ...]:
    """Lines in the order the engine prints them, without its time stamps and prefixes.

    Of a pipeline, the first rank's memory stands for all.
    """
    memory = f"Available KV cache memory: {gib(plan.ranks[0].available_bytes)} GiB"
    return (*_kernels(plan), *_alignment(plan), memory, *_groups(plan), *_capacity(plan))


def gib(size_bytes: int) -> str:
    """Bytes as vLLM's ``format_gib`` writes them: at most two decimals, none padded."""
    return str(round(size_bytes / GIB, 2))


def _kernels(plan: PoolPlan) -> list[str]:
    kernel = plan.gdn_kernel
    if kernel is None:
        return []
    return [
        f"Using {kernel.name} GDN prefill kernel (requested={kernel.requested}, "
        f"head_k_dim={kernel.key_dim})."
    ]


def _alignment(plan: PoolPlan) -> list[str]:
    found = plan.alignment
    if found is None:
        return []
    lines = []
    if not found.given and found.start_tokens != DEFAULT_BLOCK_TOKENS:
        names = "/".join(plan.backends)
        lines.append(f"Setting kv cache block size to {found.start_tokens} for {names} backend(s).")
    if found.raised:
        lines.append(
            f"Setting attention block size to {found.block_tokens} tokens to ensure that attention "
            "page size is >= mamba page size."
        )
    if found.state_page_bytes is not None:
        lines.append(
            f"Padding mamba page size by {found.padding_percent:.2f}% to ensure that mamba page "
            "size and attention page size are exactly equal."
        )
    return lines


def _groups(plan: PoolPlan) -> list[str]:
    lines = [f"Using {plan.layout} KV cache layout."] if plan.version in LAYOUT_LINE else []
    for group in plan.groups:
        if group.padding_layers:
            share = group.padding_layers / group.bucket_layers * 100
            lines.append(
                f"Add {group.padding_layers} padding layers, may waste at most {share:.2f}% "
                "KV cache memory"
            )
    return lines


def _capacity(plan: PoolPlan) -> list[str]:
    lines = []
    for from_memory in plan.overridden_blocks:
        lines.append(
            f"Overriding num_gpu_blocks={from_memory} with "
            f"num_gpu_blocks_override={plan.num_blocks}"
        )
    length = plan.limits.max_model_len
    if plan.auto_fit_from is not None:
        lines.append(_auto_fit(plan, plan.auto_fit_from))
    tokens = f"GPU KV cache size: {plan.kv_tokens:,} tokens"
    ratio = f"Maximum concurrency for {length:,} tokens per request: {plan.max_concurrency:.2f}x"
    return [*lines, *((tokens, ratio) if plan.version == "oldest" else (f"{tokens}, {ratio}",))]


def _auto_fit(plan: PoolPlan, asked: int) -> str:
    rank = min(plan.ranks, key=lambda rank: rank.available_bytes // rank.bytes_per_block)
    reserved = rank.bytes_per_block if rules_of(plan.version).reserves_null_block else 0
    memory = f"available KV cache memory ({gib(rank.available_bytes - reserved)} GiB GPU)"
    length = plan.limits.max_model_len
    if length == asked:
        return f"Auto-fit max_model_len: full model context length {asked} fits in {memory}"
    return f"Auto-fit max_model_len: reduced from {asked} to {length} to fit in {memory}"
