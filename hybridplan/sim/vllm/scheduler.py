"""One scheduling step: vLLM's ``Scheduler.schedule`` and ``allocate_slots``, policy FCFS."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hybridplan.sim.vllm.coordinator import Coordinator, Lookup
from hybridplan.sim.vllm.pool import BlockPool
from hybridplan.sim.vllm.sequence import Sequence
from hybridplan.sim.vllm.split import ChunkSplit
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig


@dataclass(slots=True)
class Scheduled:
    """One request's part of a step: tokens [start, start + tokens), ``drafts`` of them unverified.

    ``outputs`` is what the model returns for it, filled in when the step is executed.
    """

    seq: Sequence
    start: int
    tokens: int
    drafts: int
    outputs: int = 0


class Step:
    """What one call of the scheduler decided. ``tokens`` is the sum over ``parts``."""

    __slots__ = ("admitted", "copies", "parts", "preempted", "skip_drafts", "tokens")

    def __init__(self, skip_drafts: bool) -> None:
        self.parts: list[Scheduled] = []
        self.admitted: list[tuple[Sequence, Lookup]] = []
        self.preempted: list[Sequence] = []
        self.copies: list[tuple[int, int]] = []
        self.skip_drafts = skip_drafts
        self.tokens = 0


class Scheduler:
    """Running list, waiting queue and the allocation of both."""

    def __init__(self, config: VllmCacheConfig, *, skipping: bool = True) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, len(config.groups))
        self.coordinator = Coordinator(config, self.pool)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.skipping = skipping
        self.on_admit: Callable[[Sequence, Lookup], None] | None = None
        """Called when a waiting request is sure to start, before the pool changes for it."""
        self._notes_checkpoints = any(group.checkpoint_blocks for group in config.groups)
        self._smallest_block = min(group.block_tokens for group in config.groups)
        self._most_extra_blocks = 3 + max(
            g.spec_blocks + g.checkpoint_blocks for g in config.groups
        )
        self._checkpoints_at_prefill_end = config.retention_interval_tokens == 0 and any(
            group.checkpoint_blocks for group in config.groups
        )
        self._keeps_in_flight = config.async_depth > 1
        self._edges = tuple(
            dict.fromkeys(
                (g.block_tokens, g.window_tokens, g.extra_retained_tokens,
                 g.kind is GroupKind.CHUNKED)
                for g in config.groups
                if g.kind is not GroupKind.RING
            )
        )  # fmt: skip
        self._split = ChunkSplit(config) if config.splits_for_mamba else None

    def schedule(self) -> Step:
        """Fill one step: running requests first, then waiting ones in order."""
        config = self.config
        step = Step(config.skips_useless_drafts)
        self.coordinator.new_step()
        crowded = len(self.running) + len(self.waiting) > 1
        threshold = config.long_prefill_threshold_tokens if crowded else 0
        budget, prefill_scheduled = self._schedule_running(step, threshold)
        if self.waiting and not step.preempted:
            self._schedule_waiting(step, threshold, budget, prefill_scheduled)
        step.copies = self.coordinator.drain_copies()
        if step.copies:
            self.pool.free([block for pair in step.copies for block in pair])
        for part in step.parts:
            seq = part.seq
            seq.computed += part.tokens
            seq.in_flight += part.tokens
            seq.is_prefill_chunk = seq.computed < seq.num_tokens + seq.placeholders
        return step

    def _schedule_running(self, step: Step, threshold: int) -> tuple[int, bool]:
        config, running, split = self.config, self.running, self._split
        budget = config.max_batched_tokens
        last_position = config.max_model_len - 1
        lookahead = config.lookahead_tokens
        prefill_scheduled = False
        index = 0
        while index < len(running) and budget > 0:
            seq = running[index]
            if (
                seq.placeholders > 0
                and seq.computed + 2 - seq.placeholders >= seq.num_prompt + seq.max_tokens
            ):
                index += 1
                continue
            start = seq.computed
            tokens = seq.num_tokens + seq.drafts + seq.placeholders - start
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, budget, last_position - start)
            if split is not None and (start < seq.num_prompt or start < seq.num_tokens - 1):
                tokens = split(seq, start, tokens)
            if tokens <= 0:
                index += 1
                continue
            if start + tokens + lookahead > seq.quiet_end and not self._make_room(
                seq, tokens, step
            ):
                break
            prefill_scheduled |= seq.is_prefill_chunk
            budget -= tokens
            step.tokens += tokens
            index += 1
            if step.skip_drafts:
                step.skip_drafts = _drafts_useless(seq, start, tokens)
            drafts = 0
            if seq.drafts:
                unverified = tokens + start - seq.num_tokens - seq.placeholders
                drafts = min(seq.drafts, max(unverified, 0))
                seq.drafts = 0
            step.parts.append(Scheduled(seq, start, tokens, drafts))
        return budget, prefill_scheduled

    def _make_room(self, seq: Sequence, tokens: int, step: Step) -> bool:
        """Allocate for a running request, preempting from the end of the list if it must."""
        while not self.allocate(seq, tokens, None):
            victim = self.running.pop()
            self._preempt(victim)
            step.preempted.append(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self.coordinator.free(seq)
        seq.recomputed += seq.computed
        seq.computed = 0
        seq.drafts = 0
        seq.stale = seq.in_flight
        seq.placeholders = 0
        seq.preemptions += 1
        seq.running = False
        seq.quiet_end = -1
        self.waiting.appendleft(seq)

    def _schedule_waiting(
        self, step: Step, threshold: int, budget: int, prefill_scheduled: bool
    ) -> None:
        config, waiting, running = self.config, self.waiting, self.running
        had_running = bool(step.parts)
        set_aside: list[Sequence] = []
        while waiting and budget > 0 and len(running) < config.max_seqs:
            seq = waiting[0]
            if seq.stale:
                set_aside.append(waiting.popleft())
                continue
            lookup = self.coordinator.lookup(seq)
            seq.junction = lookup.junction_tokens
            hit = lookup.hit_tokens
            tokens = seq.num_tokens - hit
            padded = 0
            if (
                config.draft_tokens
                and tokens == 1
                and not prefill_scheduled
                and (had_running or hit > 0)
            ):
                rows = 1 + config.draft_tokens
                if hit + rows + 1 <= config.max_model_len:
                    if rows > budget:
                        break
                    tokens = padded = rows
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, budget)
            if self._split is not None:
                tokens = self._split(seq, hit, tokens)
                if tokens == 0:
                    break
                if padded and tokens != padded:
                    tokens, padded = 1, 0
            if not self.allocate(seq, tokens, lookup):
                break
            waiting.popleft()
            running.append(seq)
            seq.running = True
            seq.computed = hit
            seq.recomputed -= hit if seq.preemptions else 0
            budget -= tokens
            step.tokens += tokens
            if step.skip_drafts:
                step.skip_drafts = _drafts_useless(seq, hit, tokens)
            step.admitted.append((seq, lookup))
            step.parts.append(Scheduled(seq, hit, tokens, padded - 1 if padded else 0))
        waiting.extendleft(reversed(set_aside))

    def allocate(self, seq: Sequence, tokens: int, lookup: Lookup | None) -> bool:
        """Give ``seq`` blocks for its next ``tokens`` tokens and publish what they complete.

        ``lookup`` is given for a request that leaves the waiting queue. Returns False, having
        changed nothing but what left the window, when the pool cannot serve it.
        """
        config, coordinator, pool = self.config, self.coordinator, self.pool
        before = pool.changes
        coordinator.acting = seq
        hit = 0 if lookup is None else lookup.hit_tokens
        start = seq.computed + hit
        main = start + tokens
        slots = min(main + config.lookahead_tokens, config.max_model_len)
        prefill_end = seq.prefill_end if self._checkpoints_at_prefill_end else 0
        watermark = 0
        if lookup is not None:
            watermark = config.watermark_blocks if self.running else 0
            if config.reserve_full_prompt and not self._surely_fits(seq.num_tokens, watermark):
                whole = min(seq.num_tokens, config.max_model_len)
                need = self._needed(seq, whole, whole, lookup, start, True, prefill_end)
                if need + watermark > pool.free_blocks:
                    return False
        coordinator.release(seq, max(0, start - seq.in_flight))
        may_checkpoint = (
            self._notes_checkpoints and main >= prefill_end and tokens > config.hash_block_tokens
        )
        if lookup is not None or may_checkpoint or not self._surely_fits(slots, 0):
            need = self._needed(seq, slots, main, lookup, start, False, prefill_end)
            if need + watermark > pool.free_blocks:
                return False
        elif self._notes_checkpoints:
            for table in seq.tables:
                table.checkpoint = None
        if lookup is not None and self.on_admit is not None:
            self.on_admit(seq, lookup)
        if lookup is not None and any(lookup.blocks):
            for manager, blocks in zip(coordinator.managers, lookup.blocks, strict=True):
                manager.add_hits(seq, blocks, hit)
        for manager in coordinator.managers:
            manager.allocate(seq, slots, main)
        if config.prefix_caching:
            coordinator.publish(seq, min(main, seq.num_tokens))
        if self.skipping:
            self._look_ahead(seq, start, main, lookup is None and pool.changes == before)
        return True

    def _surely_fits(self, tokens: int, spare_blocks: int) -> bool:
        """Whether the pool is free enough for any request of ``tokens``; spares exact counting."""
        blocks = tokens // self._smallest_block + self._most_extra_blocks
        return len(self.config.groups) * blocks + spare_blocks <= self.pool.free_blocks

    def needed_for_whole_prompt(self, seq: Sequence, lookup: Lookup) -> int:
        """Blocks that admitting ``seq`` takes, watermark left out."""
        whole = min(seq.num_tokens, self.config.max_model_len)
        return self._needed(seq, whole, whole, lookup, lookup.hit_tokens, True, seq.prefill_end)

    def _needed(
        self,
        seq: Sequence,
        slots: int,
        main: int,
        lookup: Lookup | None,
        computed: int,
        admission: bool,
        prefill_end: int,
    ) -> int:
        need = 0
        hits = self.coordinator.no_blocks if lookup is None else lookup.blocks
        for manager, blocks in zip(self.coordinator.managers, hits, strict=True):
            need += manager.needed(seq, slots, main, blocks, computed, admission, prefill_end)
        return need

    def _look_ahead(self, seq: Sequence, start: int, main: int, unchanged: bool) -> None:
        """Note until which slot the request's decode steps will leave every table alone.

        With drafts the next start is not known, so a step without change must be seen first.
        """
        if self.config.draft_tokens:
            seq.quiet_end = self._quiet_end(seq, start, seq.in_flight) if unchanged else -1
            return
        end = self._quiet_end(seq, main, seq.in_flight + main - start)
        if end >= 0:
            processed = main - seq.in_flight - (main - start if self._keeps_in_flight else 0)
            for manager in self.coordinator.managers:
                if not manager.settled(seq, main, processed):
                    end = -1
                    break
        seq.quiet_end = end

    def _quiet_end(self, seq: Sequence, start: int, in_flight: int) -> int:
        """Last slot of the stretch from ``start`` on in which no block edge is near; -1 if none.

        Tables change only near an edge (the state left behind goes one step later, late by what is
        in flight) or when a window passes one.
        """
        if start < seq.num_prompt or start < seq.num_tokens - 1:
            return -1
        lag = in_flight if self._keeps_in_flight else 0
        end = seq.stop_at + seq.max_tokens
        for block, window, extra, is_chunked in self._edges:
            inside = start % block
            if inside < 2 + lag:
                return -1
            edge = start - inside + block - 1
            if edge < end:
                end = edge
            if is_chunked:
                end = min(end, start - lag + (lag - start - 1) % window)
            elif window:
                passed = start - lag - window + 1 - extra
                end = min(end, start - lag + (-passed - 1) % block)
        return end


def _drafts_useless(seq: Sequence, start: int, tokens: int) -> bool:
    """Whether drafts proposed after this part are sure never to be verified (0.33, V2 runner)."""
    if start + tokens < seq.num_tokens:
        return True
    sure = seq.outputs + 1 + (1 if seq.placeholders > 0 else 0)
    return sure >= seq.max_tokens
