"""Caches of sparse attention: index keys, and the compressed KV of DeepSeek-V4.

Sources: vLLM 0.33 ``models/deepseek_v4`` (rows, compressor state), ``models/glm5next`` (tail ring);
SGLang 0.5.23 ``mem_cache/deepseek_v4_memory_pool.py``; transformers 5.24 ``modeling_deepseek_v4``
and ``modeling_glm5_next``, whose caches keep what the serving engines keep in rings.
"""

from __future__ import annotations

from hybridplan.config.spec import CompressedAttention, Indexer, Mixer, ModelSpec, Window
from hybridplan.ledger import conventions
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import element_bytes
from hybridplan.ledger.held import State, TokenCache
from hybridplan.ledger.kv_formats import compressed_row_bytes, quantised_index_bytes

_OVERLAP_RATIO = 4  # at this ratio a pool also looks back at the one before it


def index_caches(
    indexer: Indexer | None, spec: ModelSpec, deployment: Deployment, *, latent: bool = False
) -> list[TokenCache]:
    """Index keys: fp8 with a scale in the serving engines, plain model dtype in the others.

    vLLM keeps Qwen's pooled keys and MiniMax-M3's in bf16 (``resolve_indexer_kv_dtype("bf16")``).

    ``latent``: the keys belong to MLA (GLM's pools) and not to K and V heads (Qwen's).
    """
    if indexer is None or not indexer.owned:
        return []
    width, pooled = indexer.head_dim, indexer.tokens_per_entry
    if deployment.engine == "vllm" and indexer.form in ("qsa", "block"):
        dtype, key_bytes = "bfloat16", width * element_bytes("bfloat16")
    elif deployment.engine in ("vllm", "sglang"):
        dtype, key_bytes = "uint8", quantised_index_bytes(indexer.head_dim)
    else:
        dtype = conventions.model_dtype(spec, deployment)
        positions_bytes = 0
        if deployment.engine == "transformers" and indexer.tail_ring:
            # Kept for every token, and pooled anew in each step: GLM's key, gate and a valid mark;
            # Qwen's key and its three positions as int64.
            width, pooled = (2 * width + 1, 1) if latent else (width, 1)
            positions_bytes = 0 if latent else 3 * 8
        key_bytes = width * element_bytes(dtype) + positions_bytes
    return [
        TokenCache(
            "index",
            indexer.key_heads,
            width,
            0,
            dtype,
            indexer.key_heads * key_bytes,
            tokens_per_entry=pooled,
            copies=deployment.tp // deployment.dcp,
            context_ranks=deployment.dcp,
            step_tokens=conventions.growth_step_tokens(deployment),
        )
    ]


def tail_ring(mixer: Mixer, deployment: Deployment) -> list[State]:
    """The ring where tokens of an unfinished index pool wait, bf16 (vllm.md 1.1).

    GLM's holds key and gate, in a power of two of pools; Qwen's holds the key and, for a model with
    images, its three positions as int64, in as many pools as are needed.
    """
    indexer = getattr(mixer, "indexer", None)
    if indexer is None or not (indexer.owned and indexer.tail_ring):
        return []
    if deployment.engine == "transformers":
        return []
    tokens = ring_tokens(indexer, deployment.drafts)
    parts = 1 if indexer.form == "qsa" else 2
    shape = (parts, tokens, indexer.head_dim)
    return [State("tail_ring", shape, "bfloat16", deployment.tp, checkpointed=False)]


def ring_tokens(indexer: Indexer, drafts: int) -> int:
    """Tokens of that ring: an open pool and the drafts, in whole pools."""
    pool = indexer.tokens_per_entry
    if indexer.form == "qsa":
        return -(-(pool + drafts) // pool) * pool
    pools = 1
    while pools * pool < pool + drafts:
        pools *= 2
    return pools * pool


def compressed_caches(
    mixer: CompressedAttention, spec: ModelSpec, deployment: Deployment
) -> list[TokenCache]:
    """The window, the compressed entries and their index keys; no rank holds a part of a row."""
    dtype = conventions.compressed_kv_dtype(spec, deployment)
    row = compressed_row_bytes(mixer.head_dim, dtype)
    # transformers stores K and V of a window without compressed entries apart, though equal.
    twice = deployment.engine == "transformers" and not mixer.compress_ratio
    window = Window("sliding", mixer.window_tokens)
    caches = [
        TokenCache(
            "kv",
            1,
            mixer.head_dim,
            mixer.head_dim if twice else 0,
            dtype,
            row * (2 if twice else 1),
            window=window,
            window_tokens=conventions.window_tokens(window, deployment),
            copies=deployment.tp,
        )
    ]
    if mixer.compress_ratio and mixer.kv_owned:
        caches.append(
            TokenCache(
                "compressed",
                1,
                mixer.head_dim,
                0,
                dtype,
                row,
                tokens_per_entry=mixer.compress_ratio,
                copies=deployment.tp,
                pending_bytes=_pending_bytes(mixer, spec, deployment),
            )
        )
    return caches + index_caches(mixer.indexer, spec, deployment)


def _series(mixer: CompressedAttention) -> int:
    return 2 if mixer.compress_ratio == _OVERLAP_RATIO else 1


def _widths(mixer: CompressedAttention) -> list[int]:
    """Widths that are compressed: of the entries, and of the index keys that go with them."""
    indexer = mixer.indexer
    return [mixer.head_dim] + ([indexer.head_dim] if indexer and indexer.owned else [])


def _pending_bytes(mixer: CompressedAttention, spec: ModelSpec, deployment: Deployment) -> int:
    """transformers: value and gate of each token that has no entry yet."""
    if deployment.engine != "transformers":
        return 0
    size = element_bytes(conventions.model_dtype(spec, deployment))
    return sum(2 * _series(mixer) * width * size for width in _widths(mixer))


def compressor_states(mixer: CompressedAttention, deployment: Deployment) -> list[State]:
    """The compressor's own state: value and score, fp32, of the tokens a pool looks at."""
    ratio = mixer.compress_ratio
    if ratio < 2 or not mixer.kv_owned:
        return []
    series = _series(mixer)
    if deployment.engine == "transformers":
        # Only what the next pool reads of the last one: values in bf16, gates in fp32.
        if series == 1:
            return []
        return [
            State("compressor", (ratio, width), dtype, deployment.tp)
            for width in _widths(mixer)
            for dtype in ("bfloat16", "float32")
        ]
    rows = series * ratio
    if deployment.engine == "sglang" and deployment.drafts:
        rows *= 2
    return [
        State("compressor", (rows, 2 * series * width), "float32", deployment.tp)
        for width in _widths(mixer)
    ]
