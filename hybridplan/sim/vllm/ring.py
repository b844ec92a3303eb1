"""A ring buffer: one block for a request's whole life; vLLM's ``CircularBufferManager``."""

from __future__ import annotations

from collections.abc import Sequence

from hybridplan.sim.vllm.manager import GroupManager
from hybridplan.sim.vllm.sequence import Sequence as Seq


class RingManager(GroupManager):
    """Claims its block at admission. Never hit, never published."""

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
        return 0 if seq.tables[self.index].blocks else 1

    def add_hits(self, seq: Seq, hits: list[int], computed: int) -> None:
        return

    def allocate(self, seq: Seq, slots: int, main: int) -> None:
        blocks = seq.tables[self.index].blocks
        if not blocks:
            blocks.extend(self.take(seq, 1))

    def settled(self, seq: Seq, start: int, processed: int) -> bool:
        return True

    def publish(self, seq: Seq, tokens: int, boundaries: Sequence[int]) -> None:
        return
