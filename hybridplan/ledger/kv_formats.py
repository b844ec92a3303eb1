"""Bytes of one cached token under the storage formats engines offer for KV, latents and index keys.

Sources: vLLM 0.33 page sizes (vllm.md 1.1); llama.cpp block formats (ggml block_q8_0 and kin).
"""

from __future__ import annotations

from hybridplan.errors import InputError
from hybridplan.ledger.dtypes import canonical, element_bytes

_SCALES_BYTES = 8  # one fp32 scale for K and one for V, per token and head
_PER_TOKEN_HEAD_BITS = {"int8_per_token_head": 8, "fp8_per_token_head": 8, "int4_per_token_head": 4}
_LATENT_ROW_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_COMPRESSED_ROW_BYTES = 584
_GGML_BLOCK_ELEMENTS = 32
_GGML_BLOCK_BYTES = {"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}
_INDEX_SCALE_ELEMENTS = 128  # one fp32 scale for this many fp8 index elements

GGML = tuple(_GGML_BLOCK_BYTES)
PACKED = (*_PER_TOKEN_HEAD_BITS, "nvfp4", *_LATENT_ROW_BYTES, *GGML)


def kv_format(name: str) -> str:
    """The format's full name. Raises InputError listing what is known."""
    lowered = name.lower()
    if lowered in PACKED:
        return lowered
    try:
        return canonical(lowered)
    except InputError as error:
        raise InputError(f"{error}; packed KV formats are {', '.join(PACKED)}") from None


def head_bytes(key_dim: int, value_dim: int, dtype: str) -> int:
    """Bytes of K and V of one head and token."""
    if dtype in _PER_TOKEN_HEAD_BITS:
        per_byte = 8 // _PER_TOKEN_HEAD_BITS[dtype]
        return key_dim // per_byte + value_dim // per_byte + _SCALES_BYTES
    if dtype == "nvfp4":
        return sum(dim // 2 + dim // 16 for dim in (key_dim, value_dim))
    if dtype in _GGML_BLOCK_BYTES:
        return _ggml_bytes(key_dim, dtype) + _ggml_bytes(value_dim, dtype)
    if dtype in _LATENT_ROW_BYTES:
        raise InputError(
            f"KV dtype {dtype} packs an MLA latent, and this model has attention with K and V "
            f"heads; fp8 is the nearest that fits both"
        )
    return (key_dim + value_dim) * element_bytes(dtype)


def latent_bytes(width: int, dtype: str) -> int:
    """Bytes of one MLA latent of ``width`` elements; a packed row has one size for any width."""
    if dtype in _LATENT_ROW_BYTES:
        return _LATENT_ROW_BYTES[dtype]
    if dtype in _GGML_BLOCK_BYTES:
        return _ggml_bytes(width, dtype)
    if dtype in PACKED:
        raise InputError(
            f"KV dtype {dtype} needs K and V heads, and this model caches an MLA latent; "
            f"fp8 or fp8_ds_mla fit it"
        )
    return width * element_bytes(dtype)


def compressed_row_bytes(head_dim: int, dtype: str) -> int:
    """Bytes of one DeepSeek-V4 row, K = V; fp8_ds_mla is 448 fp8 + 64 bf16 + 8 of scales."""
    if dtype == "fp8_ds_mla":
        return _COMPRESSED_ROW_BYTES
    return latent_bytes(head_dim, dtype)


def quantised_index_bytes(head_dim: int) -> int:
    """Bytes of one fp8 index key with its scales (132 for 128 elements)."""
    return head_dim + max(1, head_dim // _INDEX_SCALE_ELEMENTS) * 4


def _ggml_bytes(width: int, dtype: str) -> int:
    if width % _GGML_BLOCK_ELEMENTS:
        raise InputError(
            f"KV dtype {dtype} stores blocks of {_GGML_BLOCK_ELEMENTS} elements, and a row here "
            f"has {width}; f16 fits"
        )
    return width // _GGML_BLOCK_ELEMENTS * _GGML_BLOCK_BYTES[dtype]
