"""Where reusable tokens went: each token between the hit and the ceiling gets one cause.

The ledger listens to the pool and to column publication. At a request's first admission it walks
down from the ceiling: last token, block edges, drafts, missing KV, missing state. Each step lowers
one running bound, so the causes sum to the loss by construction. What it remembers (keys lost to
eviction, boundaries where nothing was kept) grows with the distinct content of the trace.
"""

from __future__ import annotations

from collections import Counter

from hybridplan.sim.outcome import LossCause
from hybridplan.sim.vllm.coordinator import Lookup, SpecSet
from hybridplan.sim.vllm.keys import Key
from hybridplan.sim.vllm.scheduler import Scheduler
from hybridplan.sim.vllm.sequence import Sequence
from hybridplan.sim.vllm.sliding_window import blocks_for_hit
from hybridplan.sim.vllm.types import GroupKind


class LossLedger:
    """Remembers what became of keys and explains a lookup. One per scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._config = scheduler.config
        groups = len(self._config.groups)
        self._gone: list[dict[Key, LossCause]] = [{} for _ in range(groups)]
        scheduler.pool.on_evict.append(self.evicted)
        for spec_set in scheduler.coordinator.sets:
            scheduler.coordinator.managers[spec_set.members[0]].on_skip = self.skipped

    def evicted(self, block: int, keys: list[tuple[int, Key]], overwritten: bool) -> None:
        cause = LossCause.OVERWRITTEN if overwritten else LossCause.EVICTED
        cached = self._scheduler.pool.cached
        for group, key in keys:
            if key not in cached[group]:
                self._gone[group][key] = cause

    def skipped(self, seq: Sequence, group: int, key: Key, position_tokens: int) -> None:
        """A full block existed and retention left it out."""
        gone = self._gone[group]
        if key in gone or key in self._scheduler.pool.cached[group]:
            return
        decoding = position_tokens > seq.num_prompt
        is_state = self._config.groups[group].kind.is_mamba
        gone[key] = LossCause.DECODE_STATE if is_state and decoding else LossCause.NOT_RETAINED

    def explain(self, seq: Sequence, lookup: Lookup, ceiling: int) -> Counter[LossCause]:
        """Causes of ``ceiling - lookup.hit_tokens``, in tokens. Call at the first admission."""
        down = _Descent(ceiling, lookup.hit_tokens)
        if not self._config.prefix_caching:
            down.to(0, LossCause.OUTSIDE_CACHE)
            return down.lost
        unit = self._alignment()
        prompt = seq.num_prompt
        whole_prompt = ceiling >= prompt
        edge = _edge_cause(ceiling, unit, whole_prompt)
        if whole_prompt:
            last = prompt - 1
            down.to(last if prompt % unit else last - last % unit, LossCause.LAST_TOKEN)
        down.to(down.top - down.top % unit, edge)
        reach = ceiling - self._config.hash_lookahead_tokens
        down.to(reach - reach % unit, LossCause.DRAFT_DROP)
        self._explain_kv(seq, lookup, ceiling, down)
        down.to(lookup.kv_hit_tokens, LossCause.DRAFT_DROP)
        if down.top > lookup.hit_tokens:
            down.to(lookup.hit_tokens, self._missing_state(seq, down.top))
        return down.lost

    def _alignment(self) -> int:
        config = self._config
        return (
            config.groups[0].block_tokens
            if len(config.groups) == 1
            else config.hit_alignment_tokens
        )

    def _explain_kv(self, seq: Sequence, lookup: Lookup, ceiling: int, down: _Descent) -> None:
        """From what was shared down to what full attention matched."""
        full_sets = [s for s in self._scheduler.coordinator.sets if s.is_full]
        if not full_sets:
            return
        matched = lookup.kv_matched_tokens
        cause = LossCause.NOT_COMPUTED_YET
        for spec_set in full_sets:
            block = spec_set.group.block_tokens
            end = (matched // block + 1) * block
            if end > min(ceiling, seq.num_prompt - 1):
                cause = _edge_cause(ceiling, block, ceiling >= seq.num_prompt)
                continue
            index = end // self._config.hash_block_tokens - 1
            missing = self._missing_key(seq, spec_set, index) if index < seq.num_keys else None
            if missing is not None:
                cause = missing
                break
        down.to(max(matched - matched % self._alignment(), lookup.kv_hit_tokens), cause)

    def _missing_key(self, seq: Sequence, spec_set: SpecSet, index: int) -> LossCause | None:
        """Why a set lacks the key at ``index``; None when it has it."""
        key = seq.keys[index]
        cached = self._scheduler.pool.cached
        for member in spec_set.members:
            if key in cached[member]:
                continue
            known = self._gone[member].get(key)
            if known is not None:
                return known
            return self._pending_cause(index, key)
        return None

    def _pending_cause(self, index: int, key: Key) -> LossCause:
        """Never published: its first owner is on its way, or was sent back to the queue."""
        for queue in (self._scheduler.running, self._scheduler.waiting):
            for other in queue:
                if other.preemptions and index < len(other.keys) and other.keys[index] == key:
                    return LossCause.PREEMPTED
        return LossCause.NOT_COMPUTED_YET

    def _missing_state(self, seq: Sequence, position: int) -> LossCause:
        """Why the groups other than full attention cannot resume at ``position``."""
        unit = self._config.hash_block_tokens
        for spec_set in self._scheduler.coordinator.sets:
            group = spec_set.group
            if spec_set.is_full:
                continue
            block = group.block_tokens
            if spec_set.is_mamba:
                ends = [position]
            else:
                need = max(blocks_for_hit(group.window_tokens, block, drop=spec_set.drops), 1)
                right = position // block * block + (block if spec_set.drops else 0)
                ends = [right - block * back for back in range(need)]
            for end in ends:
                index = end // unit - 1
                if 0 <= index < seq.num_keys and end > 0:
                    cause = self._missing_key(seq, spec_set, index)
                    if cause is LossCause.NOT_COMPUTED_YET:
                        is_state = spec_set.is_mamba
                        return LossCause.NO_CHUNK_END if is_state else LossCause.OUT_OF_WINDOW
                    if cause is not None:
                        return cause
            if group.kind in (GroupKind.SLIDING, GroupKind.CHUNKED) and spec_set.drops:
                return LossCause.DRAFT_DROP
        return LossCause.NO_CHUNK_END


class _Descent:
    """A bound that only falls, from the ceiling to the hit; each fall has a cause."""

    __slots__ = ("_hit", "lost", "top")

    def __init__(self, ceiling: int, hit: int) -> None:
        self.top = ceiling
        self._hit = hit
        self.lost: Counter[LossCause] = Counter()

    def to(self, bottom: int, cause: LossCause) -> None:
        bottom = max(bottom, self._hit)
        if bottom < self.top:
            self.lost[cause] += self.top - bottom
            self.top = bottom


def _edge_cause(shared: int, block: int, whole_prompt: bool) -> LossCause:
    if whole_prompt or shared < block:
        return LossCause.BELOW_ONE_BLOCK
    return LossCause.FORK_INSIDE_BLOCK
