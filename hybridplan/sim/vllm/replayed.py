"""The vLLM engine as ``hybridplan.sim.replay`` drives it: outcomes, losses, use and events."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from hybridplan.errors import RefusalError
from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.ceiling import InfiniteCache
from hybridplan.sim.events import Event, EventSink
from hybridplan.sim.outcome import EngineUse, GroupUse, LossCause, RequestOutcome
from hybridplan.sim.request import Request
from hybridplan.sim.time.clock import Pass
from hybridplan.sim.vllm.coordinator import Lookup
from hybridplan.sim.vllm.engine import VllmEngine
from hybridplan.sim.vllm.keys import Key, Reading
from hybridplan.sim.vllm.losses import LossLedger
from hybridplan.sim.vllm.scheduler import Step
from hybridplan.sim.vllm.sequence import Sequence
from hybridplan.sim.vllm.states import StateCounter
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig
from hybridplan.sim.vllm.work import WorkNotes

MOST_PREEMPTIONS = 1000


class _Record:
    """What is known of a request between its arrival and its end."""

    __slots__ = ("admitted_step", "ceiling", "hit", "junction", "kv_hit", "lost")

    def __init__(self, ceiling: int | None) -> None:
        self.ceiling = ceiling
        self.hit = self.kv_hit = self.junction = 0
        self.admitted_step = -1
        self.lost: tuple[tuple[LossCause, int], ...] = ()


class ReplayedVllm:
    """A vLLM cache and scheduler that explains itself; see ``replay.Engine`` for the contract.

    Args:
        config: what to replay.
        accepted_drafts: accepted drafts per verification of a request, cycled.
        reading: which side to err on where the trace is coarser than the hash block.
        attribute_losses: track the infinite-cache ceiling and the causes of loss. Costs memory in
            proportion to the distinct content of the trace; without it memory is bounded by the
            pool and the requests in flight.
        skipping: False steps every decode step.
        events: receives every cache event.
    """

    def __init__(
        self,
        config: VllmCacheConfig,
        *,
        accepted_drafts: SequenceOf[int] = (0,),
        reading: Reading = Reading.LOWER,
        attribute_losses: bool = True,
        skipping: bool = True,
        events: EventSink | None = None,
    ) -> None:
        self.config = config
        self.engine = VllmEngine(
            config, accepted_drafts=accepted_drafts, reading=reading, skipping=skipping
        )
        removed = any(group.kind is GroupKind.MAMBA_ALL for group in config.groups)
        self.name = f"vllm {config.version}" + (
            " with the removed mamba_cache_mode=all" if removed else ""
        )
        self.reading = reading.value
        self.exact_identity = True
        self._ceiling = InfiniteCache() if attribute_losses else None
        self._losses = LossLedger(self.engine.scheduler) if attribute_losses else None
        self._states = StateCounter(self.engine.scheduler)
        self._events = events
        self._records: dict[int, _Record] = {}
        self._admitted: list[int] = []
        self._finished: list[tuple[int, RequestOutcome]] = []
        groups = len(config.groups)
        self._sum = [0] * groups
        self._seen_changes = 0
        self._used = [0] * groups
        self._unmeasured = 0
        self._work: WorkNotes | None = None
        self.engine.observers.append(self)
        self.engine.scheduler.on_admit = self.starting
        if events is not None:
            for manager in self.engine.scheduler.coordinator.managers:
                manager.on_allocate = self.allocated
            for hooks in self.engine.pool.on_publish:
                hooks.append(self.published)
            self.engine.pool.on_evict.append(self.evicted)
            self.engine.pool.on_move.append(self.moved)

    @property
    def step_index(self) -> int:
        return self.engine.step_index

    @property
    def has_work(self) -> bool:
        return self.engine.has_work

    @property
    def running(self) -> int:
        return self.engine.running

    @property
    def waiting(self) -> int:
        return self.engine.waiting

    def refusal(self, request: Request) -> str | None:
        """Why vLLM would reject the request when it arrives; None when it takes it."""
        length, most = request.prompt.length_tokens, self.config.max_model_len
        if length < 1:
            return "the prompt is empty"
        if length >= most:
            return f"a prompt of {length} tokens leaves no room in max_model_len={most}"
        return None

    def add(self, request: Request) -> int:
        """Queue a request ``refusal`` had nothing against; returns its order number."""
        prompt = request.prompt
        if prompt.ids and (
            self.config.hash_block_tokens % prompt.unit_tokens
            or self.config.hash_lookahead_tokens % prompt.unit_tokens
        ):
            self.exact_identity = False
        ceiling = None
        if self._ceiling is not None:
            ceiling = self._ceiling.reusable_tokens(request)
            if self.reading == Reading.UPPER.value:
                ceiling = min(ceiling + prompt.unit_tokens - 1, prompt.length_tokens)
            self._ceiling.remember(request)
        seq = self.engine.add(request)
        self._records[seq.serial] = _Record(ceiling)
        return seq.serial

    def step(self) -> tuple[int, list[int], list[tuple[int, RequestOutcome]]]:
        """One engine step: tokens scheduled, requests first admitted, outcomes of the finished."""
        self._admitted = []
        self._finished = []
        tokens, _ = self.engine.step()
        self._measure(1)
        return tokens, self._admitted, self._finished

    def skippable_steps(self) -> int:
        return self.engine.skippable_steps()

    def skip(self, steps: int) -> None:
        self.engine.skip(steps)
        self._measure(steps)

    @property
    def steps_in_flight(self) -> int:
        """Steps that run while the next one is planned: 1 with async scheduling."""
        return self.config.async_depth - 1

    def record_work(self) -> None:
        """Note what each step computes; see ``sim.time.server.TimedEngine``."""
        self._work = WorkNotes(self.engine)

    def passes(self) -> tuple[Pass]:
        """What the last step computed."""
        assert self._work is not None
        return self._work.passes()

    def next_work(self) -> StepWork:
        """What the next step computes, where it can be skipped."""
        assert self._work is not None
        return self._work.next_work()

    def _measure(self, steps: int) -> None:
        """Add the blocks in use over ``steps``; equal stretches are added at once."""
        pool = self.engine.pool
        if pool.changes != self._seen_changes:
            self._settle()
            self._seen_changes = pool.changes
            self._used = pool.used.copy()
        self._unmeasured += steps

    def _settle(self) -> None:
        steps, total = self._unmeasured, self._sum
        for group, blocks in enumerate(self._used):
            total[group] += blocks * steps
        self._unmeasured = 0

    def blocked(self) -> RefusalError:
        """Why nothing can be scheduled any more, with the numbers of the request in the way."""
        scheduler = self.engine.scheduler
        if scheduler.running:
            seq = scheduler.running[0]
            return RefusalError(
                f"request {seq.request.request_id} stands at {seq.computed} of {seq.num_tokens}"
                f" tokens and no step of {self.config.max_batched_tokens} tokens can advance it;"
                f" raise max_num_batched_tokens to at least {self.config.split_block_tokens}"
            )
        seq = scheduler.waiting[0]
        lookup = scheduler.coordinator.lookup(seq)
        need = scheduler.needed_for_whole_prompt(seq, lookup)
        free = self.engine.pool.free_blocks
        return RefusalError(
            f"request {seq.request.request_id} of {seq.num_tokens} tokens needs {need} blocks and"
            f" {free} of {self.config.num_blocks} are free with nothing running; raise num_blocks"
            f" to at least {self.config.num_blocks + max(need - free, 1)} or lower max_model_len"
        )

    def use(self) -> EngineUse:
        """Pool, states and evictions so far."""
        self._settle()
        steps = max(self.engine.step_index, 1)
        groups = tuple(
            GroupUse(
                name=group.name or f"group {index}",
                kind=group.kind.value,
                peak_blocks=self.engine.pool.peak[index],
                mean_blocks=self._sum[index] / steps,
                allocated_blocks=self.engine.pool.taken[index],
            )
            for index, group in enumerate(self.config.groups)
        )
        return EngineUse(
            engine=self.name,
            num_blocks=self.config.num_blocks,
            groups=groups,
            states=self._states.use,
            evictions=self.engine.pool.evictions,
            cached_blocks=self.engine.pool.cached_free_blocks,
        )

    def allocated(self, seq: Sequence, group: int, blocks: list[int]) -> None:
        self._emit("allocate", seq.request.request_id, group, tuple(blocks))

    def starting(self, seq: Sequence, lookup: Lookup) -> None:
        """A request leaves the queue; its own blocks are not yet in the pool."""
        record = self._records[seq.serial]
        self._states.hit(lookup)
        if record.admitted_step < 0:
            record.admitted_step = self.engine.step_index
            record.hit, record.kv_hit = lookup.hit_tokens, lookup.kv_hit_tokens
            record.junction = lookup.junction_tokens
            self._admitted.append(seq.serial)
            ceiling = record.ceiling
            if self._losses is not None and ceiling is not None and ceiling > lookup.hit_tokens:
                record.lost = tuple(self._losses.explain(seq, lookup, ceiling).items())
        if self._events is not None and lookup.hit_tokens:
            for group, blocks in enumerate(lookup.blocks):
                found = tuple(block for block in blocks if block)
                if found:
                    self._emit("hit", seq.request.request_id, group, found, lookup.hit_tokens)

    def scheduled(self, step: int, plan: Step) -> None:
        for seq in plan.preempted:
            if seq.preemptions > MOST_PREEMPTIONS:
                raise RefusalError(
                    f"request {seq.request.request_id} was preempted {seq.preemptions} times: the"
                    f" pool of {self.config.num_blocks} blocks holds it but not its second prefill;"
                    " raise num_blocks or set scheduler_reserve_full_isl"
                )
            if self._events is not None:
                self._emit("preempt", seq.request.request_id, step=step)
        if self._events is not None:
            for pair in plan.copies:
                self._emit("copy", blocks=pair, step=step)

    def finished(self, step: int, seq: Sequence) -> None:
        record = self._records.pop(seq.serial)
        request = seq.request
        outcome = RequestOutcome(
            request_id=request.request_id,
            prompt_tokens=seq.num_prompt,
            output_tokens=seq.outputs,
            hit_tokens=record.hit,
            kv_hit_tokens=record.kv_hit,
            ceiling_tokens=record.ceiling,
            lost=record.lost,
            junction_tokens=record.junction,
            prefill_chunks=seq.prefill_chunks + 1,
            preemptions=seq.preemptions,
            recomputed_tokens=max(seq.recomputed, 0),
            arrival_step=seq.arrival_step,
            first_step=record.admitted_step,
            finish_step=step,
            session=request.session,
            turn=request.turn,
        )
        self._finished.append((seq.serial, outcome))
        if self._events is not None:
            self._emit("finish", request.request_id, step=step)

    def published(self, block: int, group: int, key: Key, position_tokens: int) -> None:
        self._emit("publish", self._actor, group, (block,), position_tokens)

    def evicted(self, block: int, keys: list[tuple[int, Key]], overwritten: bool) -> None:
        self._emit("evict", "", keys[0][0], (block,))

    def moved(self, source: int, target: int, keys: list[tuple[int, Key]]) -> None:
        position = self.engine.pool.key_position[target]
        for group, _key in keys:
            self._emit("publish", self._actor, group, (target,), position)

    @property
    def _actor(self) -> str:
        acting = self.engine.scheduler.coordinator.acting
        return acting.request.request_id if acting is not None else ""

    def _emit(
        self,
        kind: str,
        request_id: str = "",
        group: int = -1,
        blocks: tuple[int, ...] = (),
        position_tokens: int = 0,
        step: int | None = None,
    ) -> None:
        if self._events is not None:
            at = self.engine.step_index if step is None else step
            self._events(Event(at, kind, request_id, group, blocks, position_tokens))
