"""Recurrent states; vLLM's ``MambaManager`` in its modes ``align`` and ``none``, and ``all``."""

from __future__ import annotations

from collections.abc import Sequence

from hybridplan.sim.vllm.keys import Key
from hybridplan.sim.vllm.manager import GroupManager
from hybridplan.sim.vllm.pool import NULL_BLOCK, BlockPool
from hybridplan.sim.vllm.positions import can_export_checkpoint, ceil_div, checkpoint_position
from hybridplan.sim.vllm.sequence import BlockTable
from hybridplan.sim.vllm.sequence import Sequence as Seq
from hybridplan.sim.vllm.types import VllmCacheConfig, VllmGroup


class MambaManager(GroupManager):
    """What the modes share: only the last token's state is needed, and same-step states wait."""

    def skipped_tokens(self, computed: int) -> int:
        return computed - 1

    def waits_for_this_step(self, hits: list[int]) -> bool:
        """Whether the hit's state is written by this very step, so it cannot be read yet."""
        if not hits or not self.published_this_step:
            return False
        key = self.pool.key_of[hits[-1]]
        return key is not None and key in self.published_this_step

    def publish(self, seq: Seq, tokens: int, boundaries: Sequence[int]) -> None:
        table = seq.tables[self.index]
        start = table.num_published or 0
        full = min(tokens, seq.num_keys * self.hash_tokens) // self.block
        live: list[int] = []
        if start < full:
            blocks = table.blocks
            live = [column for column in range(start, full) if blocks[column]]
            if live:
                self.publish_columns(seq, table, live, boundaries)
            table.num_published = full
        self._publish_tail(seq, table, tokens)
        key_of = self.pool.key_of
        for column in live:
            key = key_of[table.blocks[column]]
            if key is not None:
                self.published_this_step.add(key)

    def _publish_tail(self, seq: Seq, table: BlockTable, tokens: int) -> None:
        """Publish a state that is no full column's."""


class MambaNoneManager(MambaManager):
    """Mode ``none``: one block of max_model_len tokens, plus one per draft."""

    def needed(
        self,
        seq: Seq,
        slots: int,
        main: int,
        hits: list[int],
        computed: int,
        admission: bool,
        prefill_end: int,
    ) -> int:
        if self.waits_for_this_step(hits):
            return self.pool.num_blocks + 1
        slots += self.block * self.group.spec_blocks
        return super().needed(seq, slots, main, hits, computed, admission, prefill_end)

    def allocate(self, seq: Seq, slots: int, main: int) -> None:
        super().allocate(seq, slots + self.block * self.group.spec_blocks, main)


class MambaAllManager(MambaNoneManager):
    """The removed mode ``all``: a state in every block, each published, older ones released."""


class MambaAlignManager(MambaManager):
    """Mode ``align``: a state per chunk end, at block boundaries and at the prompt's tail."""

    def __init__(
        self, index: int, group: VllmGroup, config: VllmCacheConfig, pool: BlockPool
    ) -> None:
        super().__init__(index, group, config, pool)
        self._spec = group.spec_blocks

    def needed(
        self,
        seq: Seq,
        slots: int,
        main: int,
        hits: list[int],
        computed: int,
        admission: bool,
        prefill_end: int,
    ) -> int:
        if self.published_this_step and self.waits_for_this_step(hits):
            return self.pool.num_blocks + 1
        table = seq.tables[self.index]
        spec = self._spec
        count = -(-main // self.block) + spec - len(hits) - len(table.blocks)
        partial = table.partial is not None or bool(hits and computed % self.block)
        if partial:
            count = count + 1 if count > 0 else 1
        checkpoint = None
        if self.group.checkpoint_blocks:
            if main >= prefill_end and main - computed > self.hash_tokens:
                checkpoint = self._checkpoint(table, computed, main)
            if not admission:
                table.checkpoint = checkpoint
        if count > 0:
            cap = 1 + partial + (checkpoint is not None) + (0 if table.allocated else spec)
            if count > cap:
                count = cap
        return count + self._evictable(hits) if hits else count

    def _checkpoint(self, table: BlockTable, start: int, end: int) -> tuple[int, int] | None:
        """(position, column) of the state that the chunk [start, end) exports from its inside."""
        position = checkpoint_position(
            end,
            self.alignment,
            drop_draft_block=self.config.drop_draft_block,
            hash_lookahead_tokens=self.config.hash_lookahead_tokens,
        )
        column = ceil_div(end, self.block) - 2
        blocks = table.blocks
        if (
            position <= 0
            or column < 0
            or not can_export_checkpoint(
                start,
                end,
                position,
                self.hash_tokens,
                self.block,
                self.group.checkpoint_alignment_tokens,
            )
        ):
            return None
        scratch = table.allocated and column >= len(blocks) - self.group.spec_blocks
        return (
            (position, column) if column >= len(blocks) or not blocks[column] or scratch else None
        )

    def allocate(self, seq: Seq, slots: int, main: int) -> None:
        table = seq.tables[self.index]
        blocks = table.blocks
        spec = self._spec
        required = -(-main // self.block) + spec
        before = len(blocks)
        if required <= before and table.partial is None and table.checkpoint is None:
            table.allocated = True
            return
        if table.allocated:
            table.last_state = before - 1 - spec
        elif before > 0:
            table.last_state = before - 1
        gap_end = required - spec - 1
        if table.checkpoint is not None:
            gap_end -= 1
        if before < gap_end:
            blocks.extend([NULL_BLOCK] * (gap_end - before))
        if table.allocated and spec:
            for column in range(before - spec, min(before, gap_end)):
                blocks.append(blocks[column])
                blocks[column] = NULL_BLOCK
        count = required - len(blocks)
        if count < 0:
            count = 0
        if table.partial is not None:
            column, source = table.partial
            target, *taken = self.take(seq, count + 1)
            if table.allocated:
                self._move_tail(source, target)
            else:
                self.copy_on_write(table, column, source, target)
            blocks.extend(taken)
            table.partial = None
        elif count:
            blocks.extend(self.take(seq, count))
        table.allocated = True

    def _move_tail(self, source: int, target: int) -> None:
        """A running request keeps writing ``source``: its copy ``target`` takes over the keys."""
        self.pool.move_keys(source, target)
        self.copies.append((source, target))
        self.pool.hold(source)
        key = self.pool.key_of[target]
        if key is not None:
            self.published_this_step.add(key)

    def settled(self, seq: Seq, start: int, processed: int) -> bool:
        table = seq.tables[self.index]
        blocks, state = table.blocks, table.last_state
        if (
            not table.allocated
            or table.partial is not None
            or table.checkpoint is not None
            or start // self.block + 1 + self._spec > len(blocks)
        ):
            return False
        running = (processed - 1) // self.block
        if table.retired < running and any(blocks[table.retired : running]):
            return False
        return state is None or not blocks[state] or state >= -(-processed // self.block) - 1

    def release(self, seq: Seq, processed: int) -> None:
        table = seq.tables[self.index]
        blocks = table.blocks
        last = (processed - 1) // self.block
        if last > table.retired:
            if last > len(blocks):
                last = len(blocks)
            freed = []
            for column in range(last - 1, table.retired - 1, -1):
                if blocks[column]:
                    freed.append(blocks[column])
                    blocks[column] = NULL_BLOCK
            if freed:
                self.pool.free(freed)
            table.retired = max(last, table.retired)
        state = table.last_state
        if state is not None and blocks[state] and state < -(-processed // self.block) - 1:
            self.pool.free((blocks[state],))
            blocks[state] = NULL_BLOCK

    def kept_columns(self, start: int, end: int, reachable: Sequence[int]) -> list[bool] | None:
        interval = self.config.retention_interval_tokens
        if interval is None:
            return None
        mask = [False] * (end - start)
        if interval:
            per_segment = interval // self.block
            if per_segment <= 1:
                return None
            first = (start + per_segment) // per_segment * per_segment - 1
            for column in range(first, end, per_segment):
                mask[column - start] = True
        for boundary in reachable:
            column = boundary // self.alignment * self.alignment // self.block - 1
            if start <= column < end:
                mask[column - start] = True
        return mask

    def _publish_tail(self, seq: Seq, table: BlockTable, tokens: int) -> None:
        if table.checkpoint is not None:
            self._publish_checkpoint(seq, table, *table.checkpoint)
            return
        unit = self.hash_tokens
        if tokens <= 0 or tokens % unit:
            return
        if tokens != self._prompt_tail(seq) and not (
            self.config.junction_checkpoints
            and tokens == seq.junction
            and seq.computed < tokens <= seq.num_prompt
        ):
            return
        column = ceil_div(tokens, self.block) - 1
        if column >= len(table.blocks) or not table.blocks[column]:
            return
        block, pool = table.blocks[column], self.pool
        keyed_here = pool.key_of[block] is not None and pool.key_position[block] == tokens
        if keyed_here and self.config.version != "0.32":
            return
        key = seq.keys[tokens // unit - 1]
        if (
            pool.key_of[block] is not None
            and pool.key_position[block] < tokens
            and (self.index, key) not in pool.keys_of(block)
        ):
            pool.unpublish(block)
        pool.publish(block, self.index, key, tokens)
        self.published_this_step.add(key)
        if tokens % self.block:
            table.partial = (column, block)
            table.num_published = column

    def _publish_checkpoint(self, seq: Seq, table: BlockTable, position: int, column: int) -> None:
        """Key the exported state, or drop the keys of a block that a transient one overwrites."""
        block, pool = table.blocks[column], self.pool
        kept = position == self._prompt_position(seq, self.alignment) or position == seq.junction
        if not kept and position % self.block == 0:
            at = position // self.block - 1
            mask = self.kept_columns(at, at + 1, ())
            kept = mask is None or mask[0]
        if not kept:
            pool.lose(block, overwritten=True)
            return
        if pool.key_of[block] is not None and pool.key_position[block] == position:
            return
        key = seq.keys[position // self.hash_tokens - 1]
        pool.unpublish(block)
        pool.publish(block, self.index, key, position)
        self.published_this_step.add(key)

    def _prompt_tail(self, seq: Seq) -> int:
        if seq.prompt_tail < 0:
            seq.prompt_tail = self._prompt_position(seq, self.hash_tokens)
        return seq.prompt_tail

    def _prompt_position(self, seq: Seq, unit: int) -> int:
        return checkpoint_position(
            seq.num_prompt,
            unit,
            drop_draft_block=self.config.drop_draft_block,
            hash_lookahead_tokens=self.config.hash_lookahead_tokens,
        )


def find_state(
    pool: BlockPool,
    groups: Sequence[int],
    keys: Sequence[Key],
    num_keys: int,
    *,
    max_tokens: int,
    block: int,
    alignment: int,
    unit: int,
) -> tuple[list[list[int]], int]:
    """Rightmost boundary where every group holds a state.

    Returns each group's blocks (nulls, then the state) and the hit in tokens.
    ``MambaManager.find_longest_cache_hit``.
    """
    inside = alignment < block and block % alignment == 0
    step = 1 if inside else block // unit
    tokens = alignment if inside else block
    first = pool.cached[groups[0]]
    others = groups[1:]
    for index in range(min(max_tokens // tokens, num_keys // step) - 1, -1, -1):
        key = keys[(index + 1) * step - 1]
        if key not in first or (not inside and (index + 1) * block % alignment):
            continue
        found = [pool.lookup(groups[0], key), *(pool.lookup(group, key) for group in others)]
        if all(found):
            hit = (index + 1) * tokens
            column = (hit - 1) // block
            return [[NULL_BLOCK] * column + [state] for state in found], hit
    return [[] for _ in groups], 0
