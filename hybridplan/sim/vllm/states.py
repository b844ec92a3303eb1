"""How many recurrent states were kept and how many of them were ever used."""

from __future__ import annotations

from hybridplan.sim.outcome import StateUse
from hybridplan.sim.vllm.coordinator import Lookup
from hybridplan.sim.vllm.keys import Key
from hybridplan.sim.vllm.scheduler import Scheduler


class StateCounter:
    """Counts publications in the first group of each Mamba set; the others follow it."""

    def __init__(self, scheduler: Scheduler) -> None:
        config = scheduler.config
        self._bytes = 0
        self._leads: set[int] = set()
        for spec_set in scheduler.coordinator.sets:
            if spec_set.is_mamba:
                self._leads.add(spec_set.members[0])
                self._bytes += sum(config.groups[m].block_bytes for m in spec_set.members)
        self._kept = 0
        self._used = 0
        self._unused: set[int] = set()
        if self._leads:
            for lead in self._leads:
                scheduler.pool.on_publish[lead].append(self.published)
            scheduler.pool.on_evict.append(self.evicted)
            scheduler.pool.on_move.append(self.moved)

    def published(self, block: int, group: int, key: Key, position_tokens: int) -> None:
        self._kept += 1
        self._unused.add(block)

    def evicted(self, block: int, keys: list[tuple[int, Key]], overwritten: bool) -> None:
        self._unused.discard(block)

    def moved(self, source: int, target: int, keys: list[tuple[int, Key]]) -> None:
        if source in self._unused:
            self._unused.discard(source)
            self._unused.add(target)

    def hit(self, lookup: Lookup) -> None:
        """A request was admitted on what ``lookup`` found."""
        for lead in self._leads:
            blocks = lookup.blocks[lead]
            if blocks and blocks[-1] in self._unused:
                self._unused.discard(blocks[-1])
                self._used += 1

    @property
    def use(self) -> StateUse:
        return StateUse(kept=self._kept, ever_hit=self._used, bytes_per_state=self._bytes)
