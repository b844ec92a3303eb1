"""What every group manager does; vLLM's ``SingleTypeKVCacheManager``.

A manager owns no request: it reads and writes the request's ``BlockTable`` of its group. The base
class follows the rules of full attention for allocation and of no window for release; kinds
override what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridplan.sim.vllm.keys import Key
from hybridplan.sim.vllm.pool import NULL_BLOCK, BlockPool
from hybridplan.sim.vllm.sequence import BlockTable
from hybridplan.sim.vllm.sequence import Sequence as Seq
from hybridplan.sim.vllm.types import VllmCacheConfig, VllmGroup

AllocateHook = Callable[[Seq, int, list[int]], None]
SkipHook = Callable[[Seq, int, Key, int], None]


class GroupManager:
    """Tables, needs and publication of one group.

    ``on_allocate(sequence, group, blocks)`` and ``on_skip(sequence, group, key, position_tokens)``
    are called when set: the latter for a full block that exists and is not to be published.
    """

    def __init__(
        self, index: int, group: VllmGroup, config: VllmCacheConfig, pool: BlockPool
    ) -> None:
        self.index = index
        self.group = group
        self.config = config
        self.pool = pool
        self.block = group.block_tokens
        self.hash_tokens = config.hash_block_tokens
        self.per_block = max(self.block // self.hash_tokens, 1)
        self.alignment = config.hit_alignment_tokens
        self.drops = False
        self.admission_cap: int | None = None
        self.published_this_step: set[Key] = set()
        self.copies: list[tuple[int, int]] = []
        self.on_allocate: AllocateHook | None = None
        self.on_skip: SkipHook | None = None

    def skipped_tokens(self, computed: int) -> int:
        """Tokens at the left that no later query of this group reads."""
        return 0

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
        """Blocks the pool must have free to give ``seq`` room for ``slots`` tokens.

        ``main`` leaves out draft slots. ``hits`` are the blocks of a prefix hit of ``computed``
        tokens not yet in the table (empty for a running request). Changes nothing, except that a
        Mamba manager notes the checkpoint of the coming chunk when ``admission`` is false.
        """
        required = -(-slots // self.block)
        if admission and self.admission_cap is not None:
            required = min(required, self.admission_cap)
        table = seq.tables[self.index]
        have = len(table.blocks)
        if table.num_published is not None:
            return required - have if required > have else 0
        skipped = self.skipped_tokens(computed) // self.block
        count = max(required - max(skipped, len(hits) + have), 0)
        if hits:
            count += self._evictable(hits[max(0, skipped - have) :])
            count += 1 if computed % self.block else 0
        return count

    def _evictable(self, hits: Sequence[int]) -> int:
        refs = self.pool.refs
        return sum(1 for block in hits if block and not refs[block])

    def add_hits(self, seq: Seq, hits: list[int], computed: int) -> None:
        """Put the blocks of a prefix hit of ``computed`` tokens into an empty table."""
        table = seq.tables[self.index]
        skipped = self.skipped_tokens(computed) // self.block
        if skipped > 0:
            hits = hits[skipped:]
        self.pool.touch(hits)
        table.blocks.extend([NULL_BLOCK] * skipped)
        table.blocks.extend(hits)
        table.num_published = len(table.blocks)
        if hits and computed % self.block:
            column = computed // self.block
            table.partial = (column, hits[-1])
            table.num_published = column

    def allocate(self, seq: Seq, slots: int, main: int) -> None:
        """Extend the table to ``slots`` tokens; the caller has checked ``needed``."""
        table = seq.tables[self.index]
        if table.partial is not None:
            column, source = table.partial
            table.partial = None
            self.copy_on_write(table, column, source, self.take(seq, 1)[0])
        count = -(-slots // self.block) - len(table.blocks)
        if count > 0:
            table.blocks.extend(self.take(seq, count))

    def take(self, seq: Seq, count: int) -> list[int]:
        blocks = self.pool.take(count, self.index)
        if self.on_allocate is not None and blocks:
            self.on_allocate(seq, self.index, blocks)
        return blocks

    def copy_on_write(self, table: BlockTable, column: int, source: int, target: int) -> None:
        """Give the request its own copy of a shared tail block.

        Both ends stay referenced until the copy has run: the source keeps its hit reference.
        """
        table.blocks[column] = target
        self.copies.append((source, target))
        self.pool.hold(target)

    def release(self, seq: Seq, processed: int) -> None:
        """Free what lies left of the window once ``processed`` tokens are final."""
        skipped = self.skipped_tokens(processed)
        if skipped <= 0:
            return
        blocks = seq.tables[self.index].blocks
        freed = []
        for column in range(min(skipped // self.block, len(blocks)) - 1, -1, -1):
            if not blocks[column]:
                break
            freed.append(blocks[column])
            blocks[column] = NULL_BLOCK
        if freed:
            self.pool.free(freed)

    def settled(self, seq: Seq, start: int, processed: int) -> bool:
        """Whether a decode step at ``start`` would leave the table as it is.

        Asked away from block edges only, so nothing is about to be published.
        """
        table = seq.tables[self.index]
        blocks = table.blocks
        if table.partial is not None or start // self.block >= len(blocks):
            return False
        skipped = self.skipped_tokens(processed) // self.block
        return skipped <= 0 or not blocks[skipped - 1]

    def publish(self, seq: Seq, tokens: int, boundaries: Sequence[int]) -> None:
        """Make the full blocks of the first ``tokens`` tokens findable (``cache_blocks``).

        ``boundaries`` are the positions where a replay of this prompt can resume.
        """
        table = seq.tables[self.index]
        start = table.num_published or 0
        full = min(tokens, seq.num_keys * self.hash_tokens) // self.block
        if start >= full:
            return
        blocks = table.blocks
        columns = [column for column in range(start, full) if blocks[column]]
        if columns:
            self.publish_columns(seq, table, columns, boundaries)
        table.num_published = full

    def publish_columns(
        self, seq: Seq, table: BlockTable, columns: list[int], boundaries: Sequence[int]
    ) -> None:
        """Publish those of the full, non-null ``columns`` that retention keeps."""
        first = columns[0]
        mask = self.kept_columns(first, columns[-1] + 1, self._reachable(seq, boundaries))
        pool, index, keys, per_block = self.pool, self.index, seq.keys, self.per_block
        for column in columns:
            block = table.blocks[column]
            key = keys[(column + 1) * per_block - 1]
            if mask is not None and not mask[column - first]:
                if self.on_skip is not None:
                    self.on_skip(seq, index, key, (column + 1) * self.block)
                continue
            if pool.key_of[block] is not None:
                pool.unpublish(block)
            pool.publish(block, index, key, (column + 1) * self.block)

    def _reachable(self, seq: Seq, boundaries: Sequence[int]) -> list[int]:
        reachable = list(boundaries)
        if seq.junction:
            reachable.append(seq.junction)
            if self.drops and self.config.version != "0.32":
                reachable.append(seq.junction - self.block)
        return reachable

    def kept_columns(self, start: int, end: int, reachable: Sequence[int]) -> list[bool] | None:
        """Which full columns to publish (``reachable_block_mask``); None means all."""
        return None

    def free(self, seq: Seq) -> None:
        """Give every block back, last column first, and forget the table."""
        table = seq.tables[self.index]
        if table.blocks:
            self.pool.free(reversed(table.blocks))
        table.clear()
