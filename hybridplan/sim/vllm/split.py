"""How a prefill chunk is cut for Mamba states; ``Scheduler._mamba_block_aligned_split``."""

from __future__ import annotations

from hybridplan.sim.vllm.positions import can_export_checkpoint, checkpoint_position
from hybridplan.sim.vllm.sequence import Sequence
from hybridplan.sim.vllm.types import VllmCacheConfig


class ChunkSplit:
    """The cut of one engine. ``__call__`` returns the tokens to compute, 0 meaning not now."""

    def __init__(self, config: VllmCacheConfig) -> None:
        self._config = config
        self._block = config.split_block_tokens
        self._hash = config.hash_block_tokens
        self._partial = config.splits_partial_tail
        self._unit = self._hash if self._partial else config.scheduler_block_tokens
        self._internal = config.internal_checkpoints
        self._junction_inside = self._partial and config.junction_checkpoints
        limit, threshold = config.max_batched_tokens, config.long_prefill_threshold_tokens
        self._chunk_limit = min(limit, threshold) if threshold > 0 else limit

    def _position(self, tokens: int, unit: int) -> int:
        config = self._config
        return checkpoint_position(
            tokens,
            unit,
            drop_draft_block=config.drop_draft_block,
            hash_lookahead_tokens=config.hash_lookahead_tokens,
        )

    def __call__(self, seq: Sequence, start: int, tokens: int) -> int:
        prefill_end = seq.prefill_end
        if start >= prefill_end:
            return tokens
        block = self._block
        end = start + tokens
        last = self._position(seq.num_tokens, block)
        inside = (
            self._internal
            and end >= prefill_end
            and can_export_checkpoint(
                start,
                end,
                self._position(prefill_end, self._unit),
                self._hash,
                block,
                self._config.checkpoint_alignment_tokens,
            )
        )
        if inside:
            last = 0
        if end < prefill_end:
            aligned = end // block * block
            if aligned > start or block <= self._chunk_limit:
                end = aligned
        stops = [last]
        if start % block and not inside:
            stops.append((start // block + 1) * block)
        if self._partial and not inside:
            tail = self._position(seq.num_prompt, self._hash)
            if last < tail < seq.num_prompt:
                stops.append(tail)
        junction = seq.junction
        if start < junction < end:
            at_junction = self._junction_inside and junction <= seq.num_prompt
            stops.append(junction if at_junction else start + (junction - start) // block * block)
        return max(min((s for s in stops if start < s < end), default=end) - start, 0)
