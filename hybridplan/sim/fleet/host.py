"""A host tier behind vLLM's block pool: an assumed policy, not a replay of a connector.

Taken from vLLM's offloading connector (``v1/offloading``): whole blocks, an LRU order on the host,
a lookup of the device first and of the host for what follows, hits cut to what every group can
use, and device blocks taken when the request is scheduled. Assumed: a block goes to the host when
the device evicts it (the connector stores earlier), a load begins when the request arrives and ends
before it is scheduled, and loaded blocks are cached on the device like computed ones. Loads wait in
line for the link; stores do not hold them up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from hybridplan.errors import InputError
from hybridplan.sim.request import Request
from hybridplan.sim.vllm.coordinator import Coordinator, Lookup
from hybridplan.sim.vllm.keys import Key
from hybridplan.sim.vllm.pool import NULL_BLOCK, BlockPool
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.sequence import Sequence

_FIRST_HOST_NUMBER = 1 << 48
Name: TypeAlias = "tuple[int, Key]"
"""Group and key of a block."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the host could add to a request's prefix.

    ``device_tokens`` would be a hit without the host, ``hit_tokens`` with ``blocks`` of it,
    group by group and shallow ones first.
    """

    sequence: Sequence
    device_tokens: int
    hit_tokens: int
    blocks: tuple[Name, ...]
    moved_bytes: int


class HostStore:
    """Blocks on the host under their names, the least recently stored or loaded evicted first.

    Each has a number of its own, beyond those of any device block.
    """

    def __init__(self, capacity_bytes: int, block_bytes: int) -> None:
        if capacity_bytes < block_bytes:
            raise InputError(
                f"a host tier of {capacity_bytes:,} B does not hold one block of {block_bytes:,} B;"
                " give at least that"
            )
        self.most_blocks = capacity_bytes // block_bytes
        self.block_bytes = block_bytes
        self.stored_blocks = 0
        self.evictions = 0
        self._numbers: OrderedDict[Name, int] = OrderedDict()
        self._names: dict[int, tuple[Name, int]] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, name: Name) -> int | None:
        """The number of a block, None where the host does not have it."""
        return self._numbers.get(name)

    def name(self, number: int) -> Name | None:
        """The name behind a number, None for a device block."""
        found = self._names.get(number)
        return found[0] if found else None

    def position(self, name: Name) -> int:
        """The prefix length in tokens that a block here stands for."""
        return self._names[self._numbers[name]][1]

    def store(self, name: Name, position_tokens: int) -> None:
        """Take in a block that the device evicted; a block already here only becomes recent."""
        if name not in self._numbers:
            number = _FIRST_HOST_NUMBER + self.stored_blocks
            self.stored_blocks += 1
            if len(self._numbers) == self.most_blocks:
                _, old = self._numbers.popitem(last=False)
                del self._names[old]
                self.evictions += 1
            self._numbers[name] = number
            self._names[number] = (name, position_tokens)
        self._numbers.move_to_end(name)

    def touch(self, names: Iterable[Name]) -> None:
        """Make blocks that are here recent, the last one most."""
        for name in names:
            if name in self._numbers:
                self._numbers.move_to_end(name)


class _Both:
    """One group's names on device or host, as a lookup reads ``BlockPool.cached``."""

    def __init__(self, pool: BlockPool, store: HostStore, group: int) -> None:
        self._pool = pool
        self._store = store
        self._group = group

    def get(self, key: Key) -> int | list[int] | None:
        found = self._pool.cached[self._group].get(key)
        return self._store.number((self._group, key)) if found is None else found

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None


class _UnitedPool(BlockPool):
    """Looked up, never changed: blocks of the host have their own numbers."""

    def __init__(self, pool: BlockPool, store: HostStore) -> None:
        super().__init__(2, len(pool.cached))
        self.cached = [_Both(pool, store, group) for group in range(len(pool.cached))]  # type: ignore[misc]


class HostTier:
    """The host tier of one engine. Listens to its pool; changes it in ``restore`` only.

    What was loaded for a request (``loaded``) is put on the device when the scheduler looks the
    request up, so that it takes no room before. ``stateless_tokens`` adds up, over requests asked
    for, the KV on device or host behind the last usable state.
    """

    def __init__(self, engine: ReplayedVllm, capacity_bytes: int, block_bytes: int) -> None:
        self.store = HostStore(capacity_bytes, block_bytes)
        self._engine = engine.engine
        self._pool = engine.engine.pool
        self._both = Coordinator(engine.config, _UnitedPool(self._pool, self.store))
        self.stateless_tokens = 0
        self._asked = 0
        self._loads: dict[int, Load] = {}
        # The scheduler asks this very object, and others have hooked its managers already.
        coordinator = engine.engine.scheduler.coordinator
        self._on_device = coordinator.lookup
        coordinator.lookup = self._lookup  # type: ignore[method-assign]
        self._pool.on_evict.append(self.evicted)

    def evicted(self, block: int, keys: list[tuple[int, Key]], overwritten: bool) -> None:
        """The pool reuses a block: keep it here under its first name."""
        if not overwritten:
            group, key = keys[0]
            self.store.store((group, key), self._pool.key_position[block])

    def find(self, request: Request) -> Load | None:
        """What the host would add to the device's hit; None where it adds nothing."""
        config = self._engine.config
        self._asked += 1
        sequence = Sequence(
            request,
            -self._asked,
            len(config.groups),
            hash_tokens=config.hash_block_tokens,
            lookahead=config.hash_lookahead_tokens,
            max_model_len=config.max_model_len,
            reading=self._engine.reading,
        )
        device = self._on_device(sequence)
        both = self._both.lookup(sequence)
        self.stateless_tokens += both.kv_hit_tokens - both.hit_tokens
        if both.hit_tokens <= device.hit_tokens:
            return None
        blocks, _ = self._parts(both)
        return Load(
            sequence,
            device.hit_tokens,
            both.hit_tokens,
            blocks,
            len(blocks) * self.store.block_bytes,
        )

    def _parts(self, found: Lookup) -> tuple[tuple[Name, ...], list[int]]:
        """The host's blocks and the device's of a prefix found on both."""
        names, held = [], []
        for ids in found.blocks:
            for number in ids:
                name = self.store.name(number)
                if name is not None:
                    names.append(name)
                elif number != NULL_BLOCK:
                    held.append(number)
        return tuple(names), held

    def loaded(self, load: Load) -> None:
        """A load has ended, and its request may be queued; ``ended`` must follow."""
        self._loads[id(load.sequence.request)] = load

    def ended(self, load: Load) -> None:
        """The load's request has ended."""
        del self._loads[id(load.sequence.request)]

    def _lookup(self, seq: Sequence) -> Lookup:
        load = self._loads.get(id(seq.request))
        if load is not None and not seq.preemptions:
            self.restore(load)
        return self._on_device(seq)

    def restore(self, load: Load) -> bool:
        """Cache what a load brings on the device.

        False, changing nothing, where there is no room or part of the prefix is gone by now.
        """
        pool = self._pool
        found = self._both.lookup(load.sequence)
        missing, held = self._parts(found)
        if found.hit_tokens < load.hit_tokens:
            return False
        positions = [self.store.position(name) for name in missing]
        pool.touch(held)
        enough = pool.free_blocks >= len(missing)
        if enough:
            self.store.touch(reversed(missing))
            taken = []
            for (group, key), position in zip(missing, positions, strict=True):
                block = pool.take(1, group)[0]
                pool.publish(block, group, key, position)
                taken.append(block)
            pool.free(reversed(taken))
        pool.free(reversed(held))
        return enough
