"""Arithmetic of token positions shared by the chunk split and the Mamba manager."""

from __future__ import annotations


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def checkpoint_position(
    tokens: int, unit_tokens: int, *, drop_draft_block: bool, hash_lookahead_tokens: int
) -> int:
    """Where the reusable state of a prompt of ``tokens`` lies, in tokens.

    vLLM's ``get_mamba_prefill_checkpoint_position``: the last unit boundary that leaves a token to
    compute (or the hash's lookahead), one unit lower if drafts drop a block.
    """
    if drop_draft_block:
        return max(tokens // unit_tokens * unit_tokens - unit_tokens, 0)
    return max((tokens - max(1, hash_lookahead_tokens)) // unit_tokens * unit_tokens, 0)


def can_export_checkpoint(
    start: int,
    end: int,
    position: int,
    hash_tokens: int,
    block_tokens: int,
    alignment_tokens: int | None,
) -> bool:
    """Whether a chunk [start, end) can export its state at ``position`` without stopping there.

    vLLM's ``is_mamba_prefill_checkpoint_valid``.
    """
    return (
        alignment_tokens is not None
        and start % hash_tokens == 0
        and ceil_div(end, block_tokens) - 2 > (start - 1) // block_tokens
        and start + hash_tokens <= position
        and start < position < end
        and (position - start) % alignment_tokens == 0
    )
