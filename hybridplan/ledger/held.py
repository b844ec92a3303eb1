"""What a layer can hold: caches that grow with the sequence, and states that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal, TypeAlias

from hybridplan.config.spec import Window
from hybridplan.ledger.dtypes import element_bytes

CacheName: TypeAlias = Literal["kv", "mla", "index", "compressed"]
StateName: TypeAlias = Literal[
    "state", "conv", "token_shift", "ngram_conv", "tail_ring", "compressor"
]


# What a request's fixed bytes are split into; every other state counts as "other".
STATE_PARTS = {"state": "state", "conv": "conv", "ngram_conv": "conv"}


@dataclass(frozen=True, slots=True)
class TokenCache:
    """A cache that grows with the sequence, as one rank holds it in one layer.

    ``heads`` x (``key_dim`` + ``value_dim``) elements make an entry (MLA: 1 head, value_dim 0).
    ``bytes_per_entry`` includes scales of packed formats. ``copies`` ranks of the tensor parallel
    group hold the same bytes. ``window_tokens`` bounds the tokens held; ``sink_tokens`` are held
    besides (learnt prefixes). ``context_ranks`` share the tokens (DCP). ``pending_bytes`` are kept
    for each token of an unfinished entry.
    """

    name: CacheName
    heads: int
    key_dim: int
    value_dim: int
    dtype: str
    bytes_per_entry: int
    tokens_per_entry: int = 1
    window: Window | None = None
    window_tokens: int | None = None
    sink_tokens: int = 0
    copies: int = 1
    context_ranks: int = 1
    step_tokens: int = 1
    pending_bytes: int = 0

    @property
    def elements_per_entry(self) -> int:
        """Elements of one entry on this rank, scales left out."""
        return self.heads * (self.key_dim + self.value_dim)

    def held_tokens(self, tokens: int) -> int:
        """Tokens this rank keeps of a sequence of ``tokens`` (the fullest DCP rank)."""
        held = -(-tokens // self.step_tokens) * self.step_tokens
        if self.window_tokens is not None:
            held = min(held, self.window_tokens)
        return -(-(held + self.sink_tokens) // self.context_ranks)

    def bytes(self, tokens: int) -> int:
        """Bytes of a sequence of ``tokens``: whole entries, and what waits for the next one."""
        entries, pending = divmod(self.held_tokens(tokens), self.tokens_per_entry)
        return entries * self.bytes_per_entry + pending * self.pending_bytes


@dataclass(frozen=True, slots=True)
class State:
    """A fixed-size tensor per request, as one rank holds it in one layer.

    ``copies`` ranks hold the same bytes. ``checkpointed`` False: not part of a cached prefix.
    ``mixer`` is the kind of the mixer that it belongs to.
    """

    name: StateName
    shape: tuple[int, ...]
    dtype: str
    copies: int = 1
    checkpointed: bool = True
    mixer: str = ""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * element_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class LayerCaches:
    """All one layer keeps between steps. ``reads_layer``: it reads that layer's KV, stores none."""

    index: int
    kinds: tuple[str, ...]
    tokens: tuple[TokenCache, ...]
    states: tuple[State, ...]
    reads_layer: int | None = None

    def token_bytes(self, tokens: int) -> int:
        """Bytes of the per-token caches for a sequence of ``tokens``."""
        return sum(cache.bytes(tokens) for cache in self.tokens)

    @property
    def state_bytes(self) -> int:
        """Bytes of everything that does not grow."""
        return sum(state.bytes for state in self.states)


def number(value: Fraction) -> float:
    """An int where the fraction is one."""
    return value.numerator if value.denominator == 1 else float(value)


def token_rate(layers: Sequence[LayerCaches], *, windowed: bool | None = None) -> float:
    """Bytes a token adds on one rank: in all caches, or in those with (without) a window."""
    rate = Fraction(0)
    for layer in layers:
        for cache in layer.tokens:
            if windowed is None or (cache.window_tokens is not None) == windowed:
                share = cache.tokens_per_entry * cache.context_ranks
                rate += Fraction(cache.bytes_per_entry, share)
    return number(rate)
