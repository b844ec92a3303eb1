"""The block size of a hybrid model: attention pages as large as a state, states padded to match.

Source: vLLM ``platforms/interface.py`` (``update_block_size_for_backend``,
``_align_hybrid_block_size``, ``_check_aligned_block_size``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from hybridplan.errors import RefusalError
from hybridplan.ledger.vllm.backends import Backend, default_block
from hybridplan.ledger.vllm.page import CacheMode
from hybridplan.ledger.vllm.rules import VersionRules


@dataclass(frozen=True, slots=True)
class Alignment:
    """The chosen block and how it came about. Sizes in tokens or bytes as named.

    ``granularity_tokens`` is what the block was rounded to; ``state_page_bytes`` the padded state
    (None: nothing padded). ``raised``: the hybrid rule enlarged the block;
    ``given``: the user set the block it started from.
    """

    block_tokens: int
    state_block_tokens: int | None
    state_page_bytes: int | None
    start_tokens: int
    granularity_tokens: int
    token_bytes: int
    state_bytes: int
    raised: bool
    given: bool = False

    @property
    def padding_percent(self) -> float:
        """How much larger the padded state is, in percent."""
        if self.state_page_bytes is None:
            return 0.0
        return 100 * (self.state_page_bytes - self.state_bytes) / self.state_bytes


def align(
    backends: Sequence[Backend],
    *,
    token_bytes: int,
    state_bytes: int,
    mla: bool,
    mode: CacheMode,
    rules: VersionRules,
    checkpoint_alignment_tokens: int | None = None,
    start_tokens: int | None = None,
    chunk_tokens: int = 0,
    max_model_len: int,
) -> Alignment:
    """Resolve the block of a model whose attention backends are ``backends``, in layer order.

    ``token_bytes`` is the attention page of one token in one layer, ``state_bytes`` one state
    (0: the model has none). ``start_tokens`` is the user's ``--block-size``, ``chunk_tokens`` the
    kernel chunk that mode "all" cuts blocks by. Raises RefusalError
    where a backend cannot take the aligned block.
    """
    start = default_block(backends) if start_tokens is None else start_tokens
    if not state_bytes or not backends:
        state_block = start if mode != "none" else max_model_len
        return Alignment(
            block_tokens=start,
            state_block_tokens=state_block if state_bytes else None,
            state_page_bytes=None,
            start_tokens=start,
            granularity_tokens=1,
            token_bytes=token_bytes,
            state_bytes=state_bytes,
            raised=False,
            given=start_tokens is not None,
        )
    granularity = max(backends[0].smallest_tokens, start)
    if mla:
        granularity = max(granularity, rules.mla_block_tokens)
    if mode == "align" and rules.aligns_to_checkpoints:
        granularity = lcm(granularity, checkpoint_alignment_tokens or 1)
    if mode == "all":
        granularity = lcm(granularity, chunk_tokens or 1)
    shared = lcm(*(backend.smallest_tokens for backend in backends))
    block = granularity * -(-state_bytes // (granularity * token_bytes))
    block = max(start, -(-block // shared) * shared)
    if block != start:
        _check(backends, block)
    padded = block * token_bytes
    return Alignment(
        block_tokens=block,
        state_block_tokens=block if mode != "none" else max_model_len,
        state_page_bytes=padded if padded != state_bytes else None,
        start_tokens=start,
        granularity_tokens=lcm(granularity, shared),
        token_bytes=token_bytes,
        state_bytes=state_bytes,
        raised=block > start,
        given=start_tokens is not None,
    )


def _check(backends: Sequence[Backend], block: int) -> None:
    rejecting = [backend.name for backend in backends if not backend.accepts(block)]
    if rejecting:
        raise RefusalError(
            f"the aligned block of {block} tokens cannot be cut into kernel blocks of "
            f"{', '.join(rejecting)}; choose another attention backend or --block-size"
        )
