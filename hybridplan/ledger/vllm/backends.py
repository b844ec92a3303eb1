"""Attention backends: the blocks their kernels take, the layouts they read, how rows must align.

Source: vLLM 0.33 ``platforms/cuda.py`` (priorities) and ``v1/attention/backends`` (each backend's
``get_supported_kernel_block_sizes``, ``supported_kv_cache_layouts``, ``customize_spec``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import lcm

from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.vllm.options import Generation
from hybridplan.ledger.vllm.page import AttentionCache, KernelBlock, MultipleOf

DEFAULT_BLOCK_TOKENS = 16
_HEAD_MAJOR = ("LBHNC", "BLHNC")
_PACKED = ("BLHNC",)


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend on one GPU generation.

    ``kernel_blocks`` in tokens. ``stride_rows``: blocks must lie whole multiples of that many
    token rows apart. ``stride_tokens``: the same in kernel blocks of that many tokens.
    ``layouts`` None: any.
    """

    name: str
    kernel_blocks: tuple[KernelBlock, ...]
    layouts: tuple[str, ...] | None = None
    stride_rows: int | None = None
    stride_tokens: int | None = None

    @property
    def smallest_tokens(self) -> int:
        """Smallest kernel block, a MultipleOf counted by its base."""
        return min(_base(block) for block in self.kernel_blocks)

    def accepts(self, block_tokens: int) -> bool:
        """Whether a pool block of that size can be cut into kernel blocks."""
        return any(block_tokens % _base(block) == 0 for block in self.kernel_blocks)

    def preferred(self, default_tokens: int = DEFAULT_BLOCK_TOKENS) -> int:
        """The default block if accepted, else the smallest."""
        return default_tokens if self.accepts(default_tokens) else self.smallest_tokens

    def largest_within(self, tokens: int) -> int:
        """Largest kernel block of at most ``tokens``; the smallest where none fits."""
        sizes = [
            b if isinstance(b, int) else max(b.tokens, tokens // b.tokens * b.tokens)
            for b in self.kernel_blocks
        ]
        fitting = [size for size in sizes if size <= tokens]
        return max(fitting) if fitting else min(sizes)

    def customize(self, cache: AttentionCache) -> AttentionCache:
        """The layer's cache with this backend's stride rule."""
        rule: int | MultipleOf | None = None
        if self.stride_rows is not None:
            rule = self.stride_rows * cache.entry_content_bytes
        elif self.stride_tokens is not None:
            rule = MultipleOf(self.stride_tokens)
        elif all(isinstance(block, int) for block in self.kernel_blocks):
            rule = MultipleOf(max(_base(block) for block in self.kernel_blocks))
        return replace(cache, stride_alignment=rule)


def _base(block: KernelBlock) -> int:
    return block if isinstance(block, int) else block.tokens


def _any(tokens: int) -> tuple[KernelBlock, ...]:
    return (MultipleOf(tokens),)


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("FLASH_ATTN", _any(16)),
        Backend("FLASHINFER", (16, 32, 64)),
        Backend("TRITON_ATTN", _any(16)),
        Backend("FLEX_ATTENTION", _any(16), layouts=("LBNHC",)),
        Backend("FLASH_ATTN_MLA", _any(16)),
        Backend("TRITON_MLA", _any(16)),
        Backend("FLASHMLA", (64,)),
        Backend("FLASHINFER_MLA", (32, 64)),
        Backend("TOKENSPEED_MLA", (32, 64)),
        Backend("CUTLASS_MLA", (128,)),
        Backend("FLASH_ATTN_MLA_SPARSE", _any(64), stride_rows=1),
        Backend("FLASHMLA_SPARSE", _any(64), stride_rows=1),
        Backend("FLASHINFER_MLA_SPARSE_SM90", _any(64), stride_rows=1),
        Backend("FLASHINFER_MLA_SPARSE_SM120", _any(64), stride_rows=64),
        Backend("FLASHINFER_MLA_SPARSE", _any(32), stride_rows=32),
        Backend("KPOOL_TAIL", _any(1), layouts=_PACKED),
        Backend("QSA_TRITON", _any(16)),
        Backend("QSA_STATE", _any(1), layouts=("BLNHC", "BLHNC")),
        Backend("MINIMAX_M3_SPARSE", (128,)),
        Backend("MINIMAX_M3_SPARSE_INDEXER", (128,)),
    )
}


def indexer_backend(tokens_per_entry: int, generation: Generation) -> Backend:
    """The DSA indexer's backend; a pooled one (GLM kpool) counts blocks in unpooled tokens."""
    if tokens_per_entry == 1:
        return Backend("DEEPSEEK_V32_INDEXER", (64,))
    sizes = (64,) if generation == "sm120" else (32, 64)
    return Backend("DEEPSEEK_V32_INDEXER", tuple(size * tokens_per_entry for size in sizes))


def on_generation(name: str, generation: Generation, cache_dtype: str) -> Backend:
    """A backend of the table with what the GPU generation and KV dtype change about it.

    Raises InputError for an unknown name.
    """
    if name not in BACKENDS:
        raise InputError(
            f"attention backend {name!r} is not known; known are {', '.join(BACKENDS)}"
        )
    backend = BACKENDS[name]
    if name == "FLASHINFER" and generation == "sm100":
        return replace(backend, layouts=_HEAD_MAJOR)
    if name == "FLASHMLA_SPARSE" and cache_dtype.endswith("ds_mla"):
        if generation == "sm100":
            return replace(backend, kernel_blocks=(64,))
        return replace(backend, stride_rows=None, stride_tokens=64)
    return backend


def default_block(backends: Sequence[Backend]) -> int:
    """The block vLLM starts from without ``--block-size``, in tokens.

    Raises RefusalError where the backends share no block.
    """
    if not backends:
        return DEFAULT_BLOCK_TOKENS
    if len(backends) == 1:
        return backends[0].preferred()
    if all(backend.accepts(DEFAULT_BLOCK_TOKENS) for backend in backends):
        return DEFAULT_BLOCK_TOKENS
    sizes = [[_base(block) for block in backend.kernel_blocks] for backend in backends]
    for candidate in sorted({lcm(*combination) for combination in product(*sizes)}):
        if all(backend.accepts(candidate) for backend in backends):
            return candidate
    raise RefusalError(
        "the attention backends share no block size: "
        + "; ".join(f"{b.name} takes {sorted(map(_base, b.kernel_blocks))}" for b in backends)
    )
