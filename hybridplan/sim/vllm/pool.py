"""vLLM's block pool: reference counts, keys, and a free queue in eviction order.

Rules: ``BlockPool`` and ``FreeKVCacheBlockQueue``. Block 0 is the null block: never counted, never
freed. Blocks freed without a key go to the front of the queue (reused next), keyed ones to the back
(evicted last). Blocks that were never used sit between the two, so memory grows with what was
touched and not with the pool.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from hybridplan.sim.vllm.keys import Key

NULL_BLOCK = 0


class PublishHook(Protocol):
    """Told of a new key: ``position_tokens`` is the prefix length it stands for."""

    def __call__(self, block: int, group: int, key: Key, position_tokens: int, /) -> None: ...


class EvictHook(Protocol):
    """Told of keys that are gone: their block is reused, or overwritten by its owner."""

    def __call__(self, block: int, keys: list[tuple[int, Key]], overwritten: bool, /) -> None: ...


class MoveHook(Protocol):
    """Told that keys now name ``target`` instead of ``source``."""

    def __call__(self, source: int, target: int, keys: list[tuple[int, Key]], /) -> None: ...


class BlockPool:
    """Blocks of all groups. ``cached[group]`` maps a key to the blocks that carry it."""

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.num_blocks = num_blocks
        self.cached: list[dict[Key, int | list[int]]] = [{} for _ in range(num_groups)]
        self.refs = [0]
        self.used = [0] * num_groups
        """Referenced blocks by group."""
        self.peak = [0] * num_groups
        self.taken = [0] * num_groups
        """Blocks ever taken from the queue, by group."""
        self._group_of = [0]
        self.key_of: list[Key | None] = [None]
        self.key_group = [0]
        self.key_position = [0]
        self.extra_keys: dict[int, list[tuple[int, Key]]] = {}
        self.changes = 0
        """Counts every change of references, keys or queue; equal counts mean an equal pool."""
        self.evictions = 0
        self.on_publish: tuple[list[PublishHook], ...] = tuple([] for _ in range(num_groups))
        """Hooks by group."""
        self.on_evict: list[EvictHook] = []
        self.on_move: list[MoveHook] = []
        self._front: list[int] = []
        self._back: OrderedDict[int, None] = OrderedDict()

    @property
    def free_blocks(self) -> int:
        return len(self._front) + self.num_blocks - len(self.refs) + len(self._back)

    @property
    def cached_free_blocks(self) -> int:
        """Free blocks that still carry a key."""
        return len(self._back)

    def free_queue(self) -> list[int]:
        """Block ids from next to be reused to last. For tests; as long as the pool."""
        return [*reversed(self._front), *range(len(self.refs), self.num_blocks), *self._back]

    def lookup(self, group: int, key: Key) -> int:
        """The first block inserted under ``key`` that still carries it; NULL_BLOCK if none."""
        found = self.cached[group].get(key)
        if found is None:
            return NULL_BLOCK
        return found if isinstance(found, int) else found[0]

    def take(self, count: int, group: int) -> list[int]:
        """Pop ``count`` blocks for ``group`` from the front of the queue; their keys are evicted.

        The caller has checked ``free_blocks``.
        """
        self.changes += 1
        self.taken[group] += count
        used = self.used[group] + count
        self.used[group] = used
        if used > self.peak[group]:
            self.peak[group] = used
        front, refs, group_of = self._front, self.refs, self._group_of
        taken: list[int] = []
        while count and front:
            block = front.pop()
            refs[block] = 1
            group_of[block] = group
            taken.append(block)
            count -= 1
        if not count:
            return taken
        fresh = min(count, self.num_blocks - len(refs))
        if fresh:
            taken.extend(range(len(refs), len(refs) + fresh))
            refs.extend([1] * fresh)
            group_of.extend([group] * fresh)
            self.key_of.extend([None] * fresh)
            self.key_group.extend([0] * fresh)
            self.key_position.extend([0] * fresh)
            count -= fresh
        for _ in range(count):
            block, _none = self._back.popitem(last=False)
            self.evictions += 1
            self.lose(block, overwritten=False)
            refs[block] = 1
            group_of[block] = group
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; a free one leaves the queue."""
        self.changes += 1
        refs = self.refs
        for block in blocks:
            if block:
                if not refs[block]:
                    del self._back[block]
                    group = self._group_of[block]
                    self.used[group] += 1
                    if self.used[group] > self.peak[group]:
                        self.peak[group] = self.used[group]
                refs[block] += 1

    def hold(self, block: int) -> None:
        """One more reference to a block in use (an endpoint of a queued copy)."""
        self.refs[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Drop a reference from each block, first to be evicted first."""
        self.changes += 1
        refs, key_of, used, group_of, back = (
            self.refs, self.key_of, self.used, self._group_of, self._back,
        )  # fmt: skip
        unkeyed: list[int] = []
        for block in blocks:
            if not block:
                continue
            left = refs[block] - 1
            refs[block] = left
            if left:
                continue
            used[group_of[block]] -= 1
            if key_of[block] is not None:
                back[block] = None
            else:
                unkeyed.append(block)
        if unkeyed:
            unkeyed.reverse()
            self._front.extend(unkeyed)

    def publish(self, block: int, group: int, key: Key, position_tokens: int) -> None:
        """Make ``block`` findable under ``key``; a second key is added to the first."""
        if self._attach(block, group, key, position_tokens):
            for hook in self.on_publish[group]:
                hook(block, group, key, position_tokens)

    def publish_run(
        self, blocks: list[int], group: int, keys: list[Key], first_tokens: int, step_tokens: int
    ) -> None:
        """Publish blocks in a row, none null or already keyed; the first ends at first_tokens."""
        cached, hooks = self.cached[group], self.on_publish[group]
        key_of, key_group, key_position = self.key_of, self.key_group, self.key_position
        position = first_tokens
        for block, key in zip(blocks, keys, strict=True):
            found = cached.get(key)
            if found is None:
                cached[key] = block
            elif isinstance(found, int):
                cached[key] = [found, block]
            else:
                found.append(block)
            key_of[block] = key
            key_group[block] = group
            key_position[block] = position
            if hooks:
                for hook in hooks:
                    hook(block, group, key, position)
            position += step_tokens
        self.changes += len(blocks)

    def _attach(self, block: int, group: int, key: Key, position_tokens: int) -> bool:
        cached = self.cached[group]
        found = cached.get(key)
        if found is None:
            cached[key] = block
        elif isinstance(found, int):
            if found == block:
                return False
            cached[key] = [found, block]
        elif block in found:
            return False
        else:
            found.append(block)
        self.changes += 1
        if self.key_of[block] is None:
            self.key_of[block] = key
            self.key_group[block] = group
            self.key_position[block] = position_tokens
        else:
            self.extra_keys.setdefault(block, []).append((group, key))
        return True

    def keys_of(self, block: int) -> list[tuple[int, Key]]:
        """All keys of a block, the primary one first."""
        key = self.key_of[block]
        if key is None:
            return []
        return [(self.key_group[block], key), *self.extra_keys.get(block, ())]

    def unpublish(self, block: int) -> list[tuple[int, Key]]:
        """Drop every key of ``block`` and return them."""
        keys = self.keys_of(block)
        if not keys:
            return keys
        self.changes += 1
        self.extra_keys.pop(block, None)
        self.key_of[block] = None
        for group, key in keys:
            found = self.cached[group][key]
            if isinstance(found, int) or len(found) == 1:
                del self.cached[group][key]
            else:
                found.remove(block)
        return keys

    def lose(self, block: int, *, overwritten: bool) -> None:
        """Drop every key of ``block``: it is reused, or its owner overwrites what they named."""
        keys = self.unpublish(block)
        if keys:
            for hook in self.on_evict:
                hook(block, keys, overwritten)

    def move_keys(self, source: int, target: int) -> None:
        """Re-point all keys of ``source`` to ``target``, which has none."""
        position = self.key_position[source]
        keys = self.unpublish(source)
        for group, key in keys:
            self._attach(target, group, key, position)
        for hook in self.on_move:
            hook(source, target, keys)
