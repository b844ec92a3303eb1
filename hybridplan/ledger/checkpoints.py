"""What it costs to keep a state at a token position so that another request can start there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridplan.errors import InputError
from hybridplan.ledger.caches import LayerCaches

DEFAULT_EVERY_TOKENS = (256, 1024, 4096)


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """One checkpoint every ``every_tokens``, against the KV of those tokens, on one rank.

    ``ratio`` is checkpoint / KV (None where the model has no KV); ``state_share`` is the
    checkpoint's part of both together.
    """

    every_tokens: int
    kv_bytes: int
    ratio: float | None
    state_share: float | None


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """``checkpoint_bytes``: the states of every layer, unpadded, on one tensor parallel rank."""

    checkpoint_bytes: int
    costs: tuple[CheckpointCost, ...]


def checkpoint_bytes(layers: Sequence[LayerCaches]) -> int:
    """Bytes of one checkpoint: all states that belong to a prefix (a tail ring does not)."""
    return sum(s.bytes for layer in layers for s in layer.states if s.checkpointed)


def checkpoints(
    layers: Sequence[LayerCaches], every_tokens: Sequence[int] = DEFAULT_EVERY_TOKENS
) -> Checkpoints:
    """The cost of a checkpoint every so many tokens, for each of ``every_tokens``."""
    held = checkpoint_bytes(layers)
    costs = []
    for tokens in every_tokens:
        if tokens < 1:
            raise InputError(f"a checkpoint every {tokens} tokens is not possible; 1 is the least")
        kv = sum(layer.token_bytes(tokens) for layer in layers)
        costs.append(
            CheckpointCost(
                tokens,
                kv,
                held / kv if kv else None,
                held / (held + kv) if held + kv else None,
            )
        )
    return Checkpoints(held, tuple(costs))
