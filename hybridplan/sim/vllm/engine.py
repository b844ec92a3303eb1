"""Steps of an engine: schedule, execute at once, take the outputs in.

``EngineCore.step`` for synchronous scheduling, ``step_with_batch_queue`` for async scheduling, with
a model that computes every scheduled token and accepts drafts as told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from hybridplan.sim.request import Request
from hybridplan.sim.vllm.keys import Reading
from hybridplan.sim.vllm.scheduler import Scheduler, Step
from hybridplan.sim.vllm.sequence import Sequence
from hybridplan.sim.vllm.types import VllmCacheConfig


class EngineObserver(Protocol):
    """Told of each step after the pool has changed for it, and of requests that ended."""

    def scheduled(self, step: int, plan: Step) -> None: ...

    def finished(self, step: int, seq: Sequence) -> None: ...


class VllmEngine:
    """A replayed engine. ``step_index`` counts calls of ``step``, skipped ones included.

    Args:
        config: groups and limits.
        accepted_drafts: accepted drafts per verification of a request, cycled.
        reading: which side to err on where the trace is coarser than the hash block.
        skipping: False steps every decode step (the naive twin).
    """

    def __init__(
        self,
        config: VllmCacheConfig,
        *,
        accepted_drafts: SequenceOf[int] = (0,),
        reading: Reading = Reading.LOWER,
        skipping: bool = True,
    ) -> None:
        self.config = config
        self.reading = reading
        self.scheduler = Scheduler(config, skipping=skipping)
        self.pool = self.scheduler.pool
        self.step_index = 0
        self.observers: list[EngineObserver] = []
        self.unfinished = 0
        self._accepted = tuple(accepted_drafts) or (0,)
        self._skipping = skipping
        self._queue: deque[Step] = deque()
        self._announce_finished = False
        self._serial = 0
        self._steady = False
        self._repeated = 0

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything; also true for one step after the last finish."""
        return bool(self.unfinished or self._announce_finished or self._queue)

    def add(self, request: Request) -> Sequence:
        """Queue a request. The caller has checked that its prompt fits ``max_model_len``."""
        seq = Sequence(
            request,
            self._serial,
            len(self.config.groups),
            hash_tokens=self.config.hash_block_tokens,
            lookahead=self.config.hash_lookahead_tokens,
            max_model_len=self.config.max_model_len,
            reading=self.reading,
        )
        seq.arrival_step = self.step_index
        self._serial += 1
        self.unfinished += 1
        self._steady = False
        self.scheduler.waiting.append(seq)
        return seq

    def step(self) -> tuple[int, list[Sequence]]:
        """One engine step. Returns the tokens it scheduled and the requests it finished."""
        changes = self.pool.changes
        plan: Step | None = None
        finished: list[Sequence] = []
        if self.unfinished or self._announce_finished:
            plan = self.scheduler.schedule()
            self._announce_finished = False
            self._execute(plan)
            for observer in self.observers:
                observer.scheduled(self.step_index, plan)
        if self.config.async_depth == 1:
            if plan is not None:
                finished = self._update(plan)
                self._propose_drafts(plan)
        else:
            finished = self._advance_queue(plan)
        for seq in finished:
            for observer in self.observers:
                observer.finished(self.step_index, seq)
        self.step_index += 1
        self._note_steady(plan, changes, finished)
        return (plan.tokens if plan is not None else 0), finished

    def _advance_queue(self, plan: Step | None) -> list[Sequence]:
        """Async scheduling: take outputs in only when the queue of steps is full."""
        if plan is not None:
            self._queue.append(plan)
            more = plan.tokens > 0 or self.unfinished or self._announce_finished
            if len(self._queue) < self.config.async_depth and more:
                return []
        return self._update(self._queue.popleft()) if self._queue else []

    def _execute(self, plan: Step) -> None:
        """What the model returns, and async scheduling's placeholders for it."""
        is_async = self.config.async_depth > 1
        drafts = self.config.draft_tokens
        for part in plan.parts:
            seq = part.seq
            if seq.is_prefill_chunk:
                seq.prefill_chunks += 1
                continue
            accepted = 0
            if part.drafts:
                wanted = self._accepted[seq.accept_calls % len(self._accepted)]
                accepted = min(wanted, part.drafts)
                seq.accept_calls += 1
            part.outputs = accepted + 1
            if is_async:
                seq.placeholders += 1 + part.drafts
                seq.drafts = drafts

    def _update(self, plan: Step) -> list[Sequence]:
        """``update_from_output``: append tokens, roll back rejected drafts, free the finished."""
        config, scheduler = self.config, self.scheduler
        finished: list[Sequence] = []
        for part in plan.parts:
            seq = part.seq
            seq.in_flight -= part.tokens
            stale = seq.stale > 0
            if stale:
                seq.stale -= part.tokens
            if seq.finished or not part.outputs:
                continue
            if part.drafts and not stale:
                rejected = part.drafts - (part.outputs - 1)
                if seq.computed > 0:
                    seq.computed -= rejected
                if seq.placeholders > 0:
                    seq.placeholders -= rejected
            had_placeholders = seq.placeholders > 0
            was_running = seq.running
            room = seq.stop_at - seq.num_tokens
            appended = min(part.outputs, room)
            seq.num_tokens += appended
            stopped = appended == room
            if config.version == "0.32":
                if not stale and config.async_depth > 1:
                    seq.placeholders -= appended
            elif not stale:
                if stopped:
                    seq.computed -= part.outputs - appended
                if seq.placeholders > 0:
                    seq.placeholders -= part.outputs
            if seq.num_tokens - seq.lookahead >= (seq.num_keys + 1) * seq.hash_tokens:
                seq.update_keys()
            if config.prefix_caching and was_running:
                self._publish_outputs(seq, had_placeholders, stale)
            if stopped:
                finished.append(seq)
                self._finish(seq)
        if finished:
            gone = set(map(id, finished))
            scheduler.running[:] = [s for s in scheduler.running if id(s) not in gone]
        return finished

    def _publish_outputs(self, seq: Sequence, had_placeholders: bool, stale: bool) -> None:
        config = self.config
        if config.version == "0.32":
            if config.async_depth == 1:
                return
            final = seq.computed - seq.placeholders
        else:
            if stale or not (had_placeholders or config.draft_tokens):
                return
            final = seq.computed - seq.in_flight
        if final > seq.quiet_end:
            self.scheduler.coordinator.publish(seq, final)

    def _finish(self, seq: Sequence) -> None:
        seq.finished = True
        self.unfinished -= 1
        self._announce_finished = True
        if not seq.running:
            self.scheduler.waiting.remove(seq)
        seq.running = False
        self.scheduler.coordinator.free(seq)

    def _propose_drafts(self, plan: Step) -> None:
        """Synchronous scheduling: drafts reach the requests after the step."""
        if not self.config.draft_tokens or not plan.tokens:
            return
        count = 0 if plan.skip_drafts else self.config.draft_tokens
        for part in plan.parts:
            if not part.seq.finished:
                part.seq.drafts = 0 if part.seq.is_prefill_chunk else count

    def _note_steady(self, plan: Step | None, changes: int, finished: list[Sequence]) -> None:
        """Whether the next step is sure to repeat this one but for counters.

        With requests waiting one step must be seen to change nothing, with steps in flight as many
        as there are: their outputs are still to come.
        """
        if not self._skipping or plan is None or self.config.draft_tokens:
            self._steady = False
            return
        if self.scheduler.waiting or self.config.async_depth > 1:
            again = self._repeats(plan, changes, finished)
            self._repeated = self._repeated + 1 if again else 0
            self._steady = self._repeated >= max(self.config.async_depth - 1, 1)
        else:
            self._steady = len(self.scheduler.running) <= self.config.max_batched_tokens

    def _repeats(self, plan: Step, changes: int, finished: list[Sequence]) -> bool:
        return (
            not finished
            and self.pool.changes == changes
            and not plan.admitted
            and not plan.preempted
            and len(plan.parts) == len(self.scheduler.running) == plan.tokens
            and all(not p.seq.is_prefill_chunk for p in plan.parts)
        )

    def skippable_steps(self) -> int:
        """Steps from here on that are sure to repeat the last one."""
        if not self._steady or not self.scheduler.running:
            return 0
        late = 2 * (self.config.async_depth - 1)
        steps = self.config.max_model_len
        for seq in self.scheduler.running:
            ahead = min(seq.quiet_end - seq.computed, seq.stop_at - seq.num_tokens - 1 - late)
            if ahead <= 0:
                return 0
            steps = min(steps, ahead)
        return steps

    def skip(self, steps: int) -> None:
        """Repeat the last step ``steps`` times at once; at most ``skippable_steps()``."""
        for seq in self.scheduler.running:
            seq.computed += steps
            seq.num_tokens += steps
            if seq.num_tokens - seq.lookahead >= (seq.num_keys + 1) * seq.hash_tokens:
                seq.update_keys()
        self.step_index += steps
