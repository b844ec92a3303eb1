"""Full attention and MLA; vLLM's ``FullAttentionManager``."""

from __future__ import annotations

from collections.abc import Sequence

from hybridplan.sim.vllm.keys import Key
from hybridplan.sim.vllm.manager import GroupManager
from hybridplan.sim.vllm.pool import BlockPool
from hybridplan.sim.vllm.positions import ceil_div
from hybridplan.sim.vllm.sequence import Sequence as Seq


class FullAttentionManager(GroupManager):
    """Keeps every block; publishes the prompt's tail when hashes are finer than blocks."""

    def publish(self, seq: Seq, tokens: int, boundaries: Sequence[int]) -> None:
        unit = self.hash_tokens
        if self.block == unit:
            self._publish_full(seq, tokens)
            return
        super().publish(seq, tokens, boundaries)
        limit = seq.num_prompt - (0 if self.drops else 1)
        position = min(limit // unit, seq.num_keys) * unit
        if position <= 0 or position > tokens or position % self.block == 0:
            return
        blocks = seq.tables[self.index].blocks
        column = position // self.block
        if column >= len(blocks) or not blocks[column]:
            return
        block, key = blocks[column], seq.keys[position // unit - 1]
        pool = self.pool
        if (
            pool.key_of[block] is not None
            and (self.index, key) not in pool.keys_of(block)
            and pool.key_position[block] < position
        ):
            pool.unpublish(block)
        pool.publish(block, self.index, key, position)

    def _publish_full(self, seq: Seq, tokens: int) -> None:
        """Hashes as coarse as blocks: new full blocks carry no key yet."""
        table = seq.tables[self.index]
        start = table.num_published or 0
        full = min(tokens // self.block, seq.num_keys)
        if start < full:
            self.pool.publish_run(
                table.blocks[start:full],
                self.index,
                seq.keys[start:full],
                (start + 1) * self.block,
                self.block,
            )
            table.num_published = full


def find_full(
    pool: BlockPool,
    groups: Sequence[int],
    keys: Sequence[Key],
    num_keys: int,
    *,
    max_tokens: int,
    block: int,
    alignment: int,
    unit: int,
    drop: bool,
) -> tuple[list[list[int]], int, int]:
    """Longest run of published blocks from the left, in all ``groups`` at once.

    Returns each group's blocks, the hit, and what matched before a draft's drop, both in tokens.
    ``FullAttentionManager.find_longest_cache_hit``.
    """
    per_block = block // unit
    tables: list[list[int]] = [[] for _ in groups]
    limit = min(max_tokens // block, num_keys // per_block)
    full = 0
    if len(groups) == 1:
        cached, out = pool.cached[groups[0]], tables[0]
        for column in range(limit):
            found = cached.get(keys[(column + 1) * per_block - 1])
            if found is None:
                break
            out.append(found if isinstance(found, int) else found[0])
        full = len(out)
    else:
        while full < limit and _append_all(pool, groups, keys[(full + 1) * per_block - 1], tables):
            full += 1
    hit = full * block
    if alignment < block and block % alignment == 0:
        scale = block // alignment
        first = full * scale
        last = min(first + scale - 1, max_tokens // alignment, num_keys)
        for index in range(last - 1, first - 1, -1):
            if _append_all(pool, groups, keys[index], tables):
                hit = (index + 1) * alignment
                break
    matched = hit
    if drop and hit > 0:
        hit -= min(alignment, block)
    hit -= hit % alignment
    keep = ceil_div(hit, block)
    for table in tables:
        del table[keep:]
    return tables, hit, matched


def _append_all(pool: BlockPool, groups: Sequence[int], key: Key, tables: list[list[int]]) -> bool:
    found = [pool.lookup(group, key) for group in groups]
    if not all(found):
        return False
    for table, block in zip(tables, found, strict=True):
        table.append(block)
    return True
