"""What one layer keeps in vLLM's pool, and the bytes of its page.

Source: vLLM 0.32 and 0.33, ``v1/kv_cache_interface.py`` (AttentionSpec, MambaSpec and the specs
built on them). All bytes are per rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from math import gcd, prod
from typing import Literal, TypeAlias

from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.dtypes import element_bytes

AttentionKind: TypeAlias = Literal["full", "mla", "sliding", "chunked", "ring"]
CacheMode: TypeAlias = Literal["align", "none", "all"]


@dataclass(frozen=True, slots=True)
class MultipleOf:
    """Any multiple of ``tokens``: of a kernel's block, or of the rows a stride must keep whole."""

    tokens: int


KernelBlock: TypeAlias = int | MultipleOf


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What bounds the blocks of one request.

    ``max_model_len`` and ``in_flight_tokens`` (scheduled but not yet settled: concurrent batches x
    max_num_batched_tokens) are in tokens. ``state_mode`` is vLLM's ``mamba_cache_mode``.
    """

    max_model_len: int
    in_flight_tokens: int
    dcp: int = 1
    state_mode: CacheMode = "none"


@dataclass(frozen=True, slots=True)
class AttentionCache:
    """A cache with pages that grow with the tokens (or a ring of them).

    ``kind``: "full" (GQA/MHA), "mla" (one latent; also an indexer's keys), "sliding" and "chunked"
    (``window_tokens`` or ``chunk_tokens`` says how far), "ring" (one block per request for its
    whole life).
    ``heads`` are the KV heads of this rank; ``head_slots`` replaces them where a backend packs.
    ``entry_bytes`` is the content of one head of one stored entry where a backend packs it;
    otherwise (key_dim + value_dim) x dtype. ``tokens_per_entry`` > 1 pools tokens.
    Either of them on a "full" cache: local attention whose blocks are all kept.
    ``index_leader``: an MLA layer that owns the indexer it reads. ``draft`` belongs to a
    speculative model; it never decides grouping.
    """

    kind: AttentionKind
    block_tokens: int
    heads: int
    key_dim: int
    dtype: str
    value_dim: int = 0
    head_slots: int | None = None
    entry_bytes: int | None = None
    tokens_per_entry: Fraction = Fraction(1)
    padded_page_bytes: int | None = None
    stride_alignment: int | MultipleOf | None = None
    window_tokens: int | None = None
    chunk_tokens: int | None = None
    extra_retained_tokens: int = 0
    role: Literal["attention", "indexer"] = "attention"
    cache_dtype: str | None = None
    index_leader: bool = False
    dcp_sharded: bool = True
    draft: bool = field(default=False, compare=False)

    @property
    def entries(self) -> int:
        """Entries of one page: block_tokens over tokens_per_entry."""
        return int(self.block_tokens // self.tokens_per_entry)

    @property
    def slots(self) -> int:
        """Head slots of one page."""
        return self.heads if self.head_slots is None else self.head_slots

    @property
    def entry_content_bytes(self) -> int:
        """Bytes of one head slot of one entry."""
        if self.entry_bytes is not None:
            return self.entry_bytes
        return (self.key_dim + self.value_dim) * element_bytes(self.dtype)

    @property
    def content_bytes(self) -> int:
        """Bytes of the page before padding."""
        return self.slots * self.entries * self.entry_content_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of the page. Raises RefusalError where the padded size is below the content."""
        return _padded(self.content_bytes, self.padded_page_bytes)

    @property
    def stride_alignment_bytes(self) -> int:
        """What the distance between two blocks must be a multiple of (1: nothing).

        ``get_block_stride_alignment``: a MultipleOf(n) keeps whole kernel blocks of gcd(n, block)
        tokens; a block that is itself one kernel block asks for nothing.
        """
        rule = self.stride_alignment
        if not isinstance(rule, MultipleOf):
            return rule or 1
        kernel_tokens = gcd(rule.tokens, self.block_tokens)
        if kernel_tokens == self.block_tokens:
            return 1
        return replace(self, block_tokens=kernel_tokens).page_bytes

    @property
    def prefix_cacheable(self) -> bool:
        """Whether the group takes part in prefix caching; a ring's content is never shared."""
        return self.kind != "ring"

    def with_block(self, tokens: int) -> AttentionCache:
        """The same cache with blocks of that many tokens."""
        return replace(self, block_tokens=tokens)

    def blocks_per_request(self, limits: RequestLimits) -> int:
        """Blocks one request holds at ``max_model_len`` (``max_memory_usage_bytes`` / page)."""
        if self.kind == "ring":
            return 1
        length = limits.max_model_len
        if self.kind == "chunked":
            assert self.chunk_tokens is not None
            return _cdiv(min(self.chunk_tokens + limits.in_flight_tokens, length), self)
        if self.kind == "sliding":
            assert self.window_tokens is not None
            if self.dcp_sharded and limits.dcp > 1:
                raise InputError(
                    f"dcp is {limits.dcp} with a sliding window of {self.window_tokens} tokens; "
                    "vLLM shards no windowed cache over DCP ranks: set dcp to 1"
                )
            kept = self.window_tokens - 1 + self.extra_retained_tokens
            return _cdiv(min(kept + limits.in_flight_tokens, length), self) + 1
        if self.dcp_sharded and limits.dcp > 1:
            length = -(-length // limits.dcp)
        return _cdiv(length, self)


@dataclass(frozen=True, slots=True)
class StateCache:
    """A recurrent layer's cache: one page is one state, whatever the tokens in its block.

    ``shapes`` and ``dtypes`` are of the tensors kept per state, on this rank.
    ``checkpoint_blocks`` is 1 where the prefill kernel exports a state inside a chunk;
    ``checkpoint_alignment_tokens`` says at which positions it can.
    """

    block_tokens: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    padded_page_bytes: int | None = None
    mode: CacheMode = "none"
    state_type: str = "mamba2"
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0
    checkpoint_alignment_tokens: int | None = None
    replicated: bool = False
    draft: bool = field(default=False, compare=False)

    dcp_sharded = False

    @property
    def content_bytes(self) -> int:
        """Bytes of one state."""
        return state_bytes(self.shapes, self.dtypes)

    @property
    def page_bytes(self) -> int:
        """Bytes of the page. Raises RefusalError where the padded size is below the content."""
        return _padded(self.content_bytes, self.padded_page_bytes)

    @property
    def stride_alignment_bytes(self) -> int:
        """States ask nothing of the distance between blocks."""
        return 1

    @property
    def prefix_cacheable(self) -> bool:
        """States take part in prefix caching."""
        return True

    def with_block(self, tokens: int) -> StateCache:
        """The same cache with blocks of that many tokens."""
        return replace(self, block_tokens=tokens)

    def blocks_per_request(self, limits: RequestLimits) -> int:
        """Blocks one request holds: the running state, drafts, and in "align" mode a checkpoint.

        Mode "all" keeps a state for every block of tokens.
        """
        if limits.state_mode == "all":
            return -(-limits.max_model_len // self.block_tokens)
        if limits.state_mode == "align":
            return 2 + self.speculative_blocks + self.checkpoint_blocks
        return 1 + self.speculative_blocks


LayerCache: TypeAlias = AttentionCache | StateCache


@cache
def state_bytes(shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> int:
    """Bytes of the tensors of one state."""
    return sum(
        prod(shape) * element_bytes(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)
    )


def _cdiv(tokens: int, cache: AttentionCache) -> int:
    return -(-tokens // cache.block_tokens)


def _padded(content_bytes: int, padded_bytes: int | None) -> int:
    if padded_bytes is None:
        return content_bytes
    if padded_bytes < content_bytes:
        raise RefusalError(
            f"a page is padded to {padded_bytes} bytes but its content is {content_bytes} bytes; "
            f"pad to {content_bytes} bytes or more"
        )
    return padded_bytes
