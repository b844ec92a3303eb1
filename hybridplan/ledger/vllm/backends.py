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


def gqa_backend(
    generation: Generation,
    cache_dtype: str,
    head_dim: int,
    *,
    sinks: bool = False,
    non_causal: bool = False,
) -> str:
    """vLLM's choice for attention with K and V heads. Raises RefusalError where none serves it."""
    if cache_dtype.endswith("per_token_head"):
        if cache_dtype.startswith("fp8") and generation == "sm80":
            raise RefusalError(
                f"KV dtype {cache_dtype} needs native fp8 (SM 8.9 or newer); on {generation} use "
                "int8_per_token_head"
            )
        return "TRITON_ATTN"
    flashinfer_dims = head_dim in (64, 128, 256, 512)
    if cache_dtype == "nvfp4":
        if not flashinfer_dims:
            raise RefusalError(f"nvfp4 KV needs head_dim 64, 128, 256 or 512; it is {head_dim}")
        return "FLASHINFER"
    quantised = cache_dtype.startswith("fp8")
    flash = head_dim <= 256 and head_dim % 8 == 0
    if quantised:
        flash = flash and generation == "sm90" and cache_dtype != "fp8_e5m2"
    if sinks and generation in ("sm80", "sm89", "sm120"):
        flash = False
    flashinfer = flashinfer_dims and not (sinks and generation in ("sm80", "sm89", "sm90"))
    order = ["FLASH_ATTN", "FLASHINFER"]
    if generation == "sm100" and not non_causal:
        order.reverse()
    allowed = {"FLASH_ATTN": flash, "FLASHINFER": flashinfer}
    return next((name for name in order if allowed[name]), "TRITON_ATTN")


def mla_backend(
    generation: Generation, cache_dtype: str, latent_dim: int, *, sparse: bool, heads: int
) -> tuple[str, str]:
    """vLLM's choice for a latent, and the KV dtype it then stores.

    ``heads`` are query heads per rank. Raises RefusalError where no backend serves it.
    """
    quantised = cache_dtype not in ("auto", "bfloat16", "float16")
    if not sparse:
        if cache_dtype.endswith("ds_mla"):
            raise RefusalError(
                f"KV dtype {cache_dtype} is for sparse MLA; this model's MLA is dense: use fp8"
            )
        if generation == "sm80" and quantised:
            raise RefusalError(f"KV dtype {cache_dtype} for MLA needs SM 8.9 or newer, not sm80")
        dense = {
            "sm90": "FLASHMLA" if quantised else "FLASH_ATTN_MLA",
            "sm100": "FLASHINFER_MLA",
        }
        return dense.get(generation, "TRITON_MLA"), cache_dtype
    packed = cache_dtype.endswith("ds_mla")
    wide = latent_dim == 576
    if generation == "sm90" and cache_dtype != "nvfp4_ds_mla":
        if packed or (wide and quantised):
            return "FLASHMLA_SPARSE", "fp8_ds_mla"
        return ("FLASH_ATTN_MLA_SPARSE" if wide else "FLASHINFER_MLA_SPARSE_SM90"), cache_dtype
    if generation == "sm100":
        if packed and wide:
            return "FLASHMLA_SPARSE", cache_dtype
        if not packed:
            narrow = quantised or heads <= 16 or not wide
            return ("FLASHINFER_MLA_SPARSE" if narrow else "FLASHMLA_SPARSE"), cache_dtype
    if generation == "sm120" and cache_dtype in ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"):
        return "FLASHINFER_MLA_SPARSE_SM120", "fp8_ds_mla"
    raise RefusalError(
        f"no attention backend serves sparse MLA of width {latent_dim} with KV dtype "
        f"{cache_dtype} on {generation}"
    )


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
