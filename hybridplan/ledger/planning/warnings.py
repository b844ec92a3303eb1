"""What an expert would say of a vLLM plan before it boots."""

from __future__ import annotations

from hybridplan.config.spec import Attention, LatentAttention
from hybridplan.ledger.planning.ask import VllmAsk
from hybridplan.ledger.vllm.plan import PoolPlan


def of(ask: VllmAsk, pool: PoolPlan, one_more_draft: PoolPlan | None) -> tuple[str, ...]:
    """Sentences, most consequential first. ``one_more_draft``: the pool with one draft more."""
    said = [*_block(ask, pool), *_seqs(ask, pool), *_hits(ask, pool), *_draft(pool, one_more_draft)]
    said += [
        *_replication(ask),
        *_latent(ask),
        *drafter_weights(ask),
        *_sparse_layers(ask),
        *_generation(ask),
    ]
    if ask.memory.gpu is not None and ask.memory.gpu.arch.startswith("gfx"):
        said.append(
            f"{ask.memory.gpu.title}: attention is taken to be TRITON_ATTN with kernel blocks of "
            "16 tokens (assumed); name another with --attention-backend"
        )
    return (*said, *pool.notes)


def _block(ask: VllmAsk, pool: PoolPlan) -> list[str]:
    budget = ask.max_num_batched_tokens
    if not pool.prefix_caching or budget is None or pool.block_tokens <= budget:
        return []
    return [
        f"the block of {pool.block_tokens:,} tokens is larger than max_num_batched_tokens "
        f"({budget:,}): releases before 0.32 refuse to start, later ones prefill in pieces and "
        f"stop at every block; use --max-num-batched-tokens {pool.block_tokens} or more"
    ]


def _seqs(ask: VllmAsk, pool: PoolPlan) -> list[str]:
    seqs = ask.max_num_seqs
    if seqs is None or not pool.alignment or not pool.alignment.state_bytes:
        return []
    states = [
        blocks
        for group, blocks in zip(pool.groups, pool.blocks_per_request, strict=True)
        if group.kind not in ("full", "mla", "sliding", "chunked", "ring")
    ]
    running = pool.usable_blocks // (sum(states) + 1)
    if seqs <= running:
        return []
    return [
        f"max_num_seqs is {seqs:,}, but states alone ({sum(states)} blocks a request) and one "
        f"block of KV stop at {running:,} running requests; more wait or are preempted"
    ]


def _hits(ask: VllmAsk, pool: PoolPlan) -> list[str]:
    if not pool.prefix_caching or not pool.alignment or not pool.alignment.state_bytes:
        return []
    unit = pool.units.hit_alignment_tokens
    drop = pool.version == "0.32" and ask.deployment.drafts > 0
    first = unit * 2 if drop else unit
    dropped = " (the last block is dropped when drafting)" if drop else ""
    return [
        f"prompts that share fewer than {first:,} tokens never hit{dropped}; the second prompt of "
        "a shared prefix still pays it in full and leaves the state the third one hits"
    ]


def _draft(pool: PoolPlan, more: PoolPlan | None) -> list[str]:
    if more is None:
        return []
    lost = pool.kv_tokens - more.kv_tokens
    block = (
        f"keeps the block at {more.block_tokens:,} tokens"
        if more.block_tokens == pool.block_tokens
        else f"moves the block from {pool.block_tokens:,} to {more.block_tokens:,} tokens"
    )
    return [
        f"one more draft token {block} and costs {lost:,} of the pool's {pool.kv_tokens:,} tokens"
    ]


def _replication(ask: VllmAsk) -> list[str]:
    heads = {
        mixer.kv_heads
        for layer in ask.spec.layers
        for mixer in layer.mixers
        if isinstance(mixer, Attention) and mixer.kv_source_layer is None
    }
    few = [count for count in heads if count < ask.deployment.tp]
    if not few:
        return []
    return [
        f"with {min(few)} KV heads, tp {ask.deployment.tp} stores each KV head on "
        f"{ask.deployment.tp // min(few)} ranks; beyond tp {min(few)} a rank's KV stops shrinking"
    ]


def _latent(ask: VllmAsk) -> list[str]:
    tp, dcp = ask.deployment.tp, ask.deployment.dcp
    latents = (isinstance(m, LatentAttention) for layer in ask.spec.layers for m in layer.mixers)
    if tp // dcp < 2 or not any(latents):
        return []
    return [
        f"MLA keeps one latent for all heads, so tp {tp} stores each on {tp // dcp} ranks; --dcp, "
        "not --tp, shares it out"
    ]


def drafter_weights(ask: VllmAsk) -> list[str]:
    """What a drafter given by hand leaves out of the memory taken off."""
    if ask.options.draft_layers is None or ask.memory.kv_memory_bytes is not None:
        return []
    if ask.memory.weights_bytes is not None:
        return []
    return ["the drafter's own weights are not counted; state the whole with --weights-memory"]


def _generation(ask: VllmAsk) -> list[str]:
    if ask.memory.gpu is not None:
        return []
    return [
        f"no card is named, so attention backends are those of {ask.options.generation}; --gpu "
        "beside --kv-memory names the card, --generation its kind"
    ]


def _sparse_layers(ask: VllmAsk) -> list[str]:
    """vLLM 0.33 models/hy_v4 reads ``layer_types``; its index layers come from another field."""
    if ask.spec.model_type != "hy_v4":
        return []
    return [
        "index keys are counted where indexer_types says full; vLLM keeps them only in layers that "
        "layer_types of config.json calls sparse, and attends densely without that field"
    ]
