"""Counts of single calls: a matrix product, a convolution, a recurrent or attention kernel.

``hybridplan.measure`` counts the steps it times with these, and ``work_model`` those it predicts.
Activations and convolution windows take 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridplan.ledger.work.features import Counts
from hybridplan.ledger.work.shapes import AttentionShape, RecurrentShape


def product(inputs: int, outputs: int, rows: int, weight_bytes: int | None = None) -> Counts:
    """[rows, inputs] times [inputs, outputs]; ``weight_bytes`` where not bf16."""
    weights = 2 * inputs * outputs if weight_bytes is None else weight_bytes
    moved = 2 * rows * (inputs + outputs)
    return Counts(launches=1, bytes=weights + moved, dense_flop=2 * rows * inputs * outputs)


def gate(outer: int, inner: int, rows: int) -> Counts:
    """An MLP's activation between its products, ``outer`` wide before it and ``inner`` after."""
    return Counts(launches=2, bytes=2 * rows * (outer + 3 * inner))


def convolution(channels: int, taps: int, rows: int, requests: int) -> Counts:
    """A short convolution; each request's window is read and written."""
    windows = 4 * (taps - 1) * channels * requests
    return Counts(launches=1, bytes=4 * rows * channels + windows)


def recurrent_step(shape: RecurrentShape, state_bytes: int, rows: int, requests: int) -> Counts:
    """One token of each request; ``state_bytes`` of one, read and written."""
    return Counts(launches=1, bytes=2 * state_bytes * requests + shape.io_bytes(rows))


def recurrent_prefill(shape: RecurrentShape, state_bytes: int, lengths: Sequence[int]) -> Counts:
    """Tokens of each request; its last chunk of the recurrence is computed whole."""
    return Counts(
        launches=2,
        bytes=2 * state_bytes * len(lengths) + shape.io_bytes(sum(lengths)),
        scan_flop=sum(shape.prefill_flop(tokens) for tokens in lengths),
    )


def kv_write(kv_bytes_per_token: int, caches: int, rows: int) -> Counts:
    """New keys and values read and written into ``caches`` pools (2, or 1 latent)."""
    return Counts(launches=caches, bytes=2 * rows * kv_bytes_per_token)


def attention_step(
    shape: AttentionShape, kv_bytes_per_token: int, contexts: int, rows: int
) -> Counts:
    """One token of each request over ``contexts`` tokens together."""
    return Counts(launches=2, bytes=contexts * kv_bytes_per_token + rows * shape.row_bytes)


def attention_prefill(
    shape: AttentionShape,
    kv_bytes_per_token: int,
    pairs: int,
    rows: int,
    requests: int,
    before: int = 0,
) -> Counts:
    """Chunks of ``rows`` tokens and ``pairs`` causal pairs; ``before`` tokens of KV come first."""
    return Counts(
        launches=4 * requests,
        bytes=(4 * rows + before) * kv_bytes_per_token + 4 * rows * shape.HQ * shape.D,
        attention_flop=pairs * shape.pair_flop,
    )
