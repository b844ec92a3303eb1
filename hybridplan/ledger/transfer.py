"""Bytes that move: prefill to decode, and to the host.

Source: vLLM 0.33 NIXL connector (the prefiller computes n - 1 tokens; of the Mamba group only the
running state is sent, unpadded), SGLang 0.5.23 disaggregation (one slot a request), and the
offload rule of state_recovery.md 5-6. Whole blocks, where an engine moves them, are the plan's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridplan.errors import InputError
from hybridplan.ledger.caches import LayerCaches
from hybridplan.ledger.checkpoints import checkpoint_bytes


@dataclass(frozen=True, slots=True)
class Moved:
    """A prompt of ``tokens`` moved from prefill to decode, bytes of one rank."""

    tokens: int
    kv_bytes: int
    state_bytes: int

    @property
    def total_bytes(self) -> int:
        """KV and state together."""
        return self.kv_bytes + self.state_bytes


@dataclass(frozen=True, slots=True)
class Offload:
    """A cached prefix on the host: KV of ``tokens`` and ``states`` checkpoints, of one rank."""

    tokens: int
    states: int
    host_bytes: int
    state_share: float | None


@dataclass(frozen=True, slots=True)
class Transfer:
    """``break_even_tokens``: up to this length the state is the larger part (None without KV).

    ``moved`` by prompt length; ``offload`` of the longest of them at several state spacings.
    """

    break_even_tokens: int | None
    moved: tuple[Moved, ...]
    offload: tuple[Offload, ...]


def prefill_to_decode(layers: Sequence[LayerCaches], tokens: int) -> Moved:
    """KV of all but the last token, which the decoder computes, and one state per layer."""
    kv = sum(layer.token_bytes(tokens - 1) for layer in layers)
    return Moved(tokens, kv, checkpoint_bytes(layers))


def break_even_tokens(layers: Sequence[LayerCaches]) -> int | None:
    """Tokens whose KV first reaches the bytes of the state; None where it never does.

    Windowed caches stop growing, so this is bisected rather than divided.
    """
    state = checkpoint_bytes(layers)
    low, high = 0, 1 << 40
    if sum(layer.token_bytes(high) for layer in layers) < state:
        return None
    while low < high:
        middle = (low + high) // 2
        if sum(layer.token_bytes(middle) for layer in layers) >= state:
            high = middle
        else:
            low = middle + 1
    return low


def offload(layers: Sequence[LayerCaches], tokens: int, states: int) -> Offload:
    """Host bytes of a prefix of ``tokens`` with ``states`` checkpoints kept beside it."""
    if tokens < 0 or states < 0:
        raise InputError(f"offload of {tokens} tokens and {states} states: both must be 0 or more")
    held = states * checkpoint_bytes(layers)
    total = sum(layer.token_bytes(tokens) for layer in layers) + held
    return Offload(tokens, states, total, held / total if total else None)


def transfer(
    layers: Sequence[LayerCaches], lengths: Sequence[int], every_tokens: Sequence[int]
) -> Transfer:
    """Transfer and offload bytes for prompts of ``lengths``, a state every ``every_tokens``."""
    longest = max(lengths)
    return Transfer(
        break_even_tokens(layers),
        tuple(prefill_to_decode(layers, n) for n in lengths),
        tuple(offload(layers, longest, longest // every) for every in every_tokens),
    )
