"""The SGLang cache as ``hybridplan.sim.replay`` drives it: outcomes, losses and use.

The scheduler around the cache is a stand-in, as the rules cover the cache alone: a step admits
whoever fits, first come first served, each with its whole prefill, then decodes one token of every
request that was running. Admission reserves a request's whole length, so none is ever retracted;
SGLang admits on an estimate (`new_token_ratio`) and may retract.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.outcome import EngineUse, GroupUse, RequestOutcome, StateUse
from hybridplan.sim.request import Request
from hybridplan.sim.sequence import SequenceReader, TokenSequence
from hybridplan.sim.sglang.cache import Admitted, SglangCache
from hybridplan.sim.sglang.config import SglangCacheConfig
from hybridplan.sim.sglang.losses import Losses, LossLedger
from hybridplan.sim.sglang.work import WorkNotes
from hybridplan.sim.time.clock import Pass

VERSION = "0.5.23"
_KEPT_OF_CONTEXT = 6
"""`max_req_input_len` is the context less 1 and 5, and a prompt must stay below it."""


class _Queued:
    """A request between its arrival and its end."""

    __slots__ = ("admitted", "arrival_step", "first_step", "key", "kv_end", "left", "order",
                 "request", "sequence")  # fmt: skip

    def __init__(self, order: int, request: Request, sequence: TokenSequence, step: int) -> None:
        self.order = order
        self.key = f"{order}/{request.request_id}"
        self.request = request
        self.sequence = sequence
        self.kv_end = _kv_end(request)
        self.left = max(0, request.output_tokens - 1)
        self.arrival_step = self.first_step = step
        self.admitted: Admitted | None = None

    @property
    def context_tokens(self) -> int:
        """Length of the sequence in its next decode step, that step's token included."""
        request = self.request
        return request.prompt.length_tokens + max(1, request.output_tokens) - self.left


class ReplayedSglang:
    """SGLang's cache under a stream of requests; see ``replay.Engine`` for the contract.

    Args:
        config: strategy, pools and flags. At most `state_slots // slots_per_request` requests
            run at once, as the engine has it.
        max_running_requests: a lower limit than that.
        context_tokens: the longest request the server takes (`context_len`); None: the pool's.
        attribute_losses: track the infinite-cache ceiling and where the rest was lost. Costs a
            second cache with boundless pools.
        skipping: False steps every decode step (the naive twin).

    Raises InputError if the state slots do not even hold one request.
    """

    reading = "lower"
    steps_in_flight = 0

    def __init__(
        self,
        config: SglangCacheConfig,
        *,
        max_running_requests: int | None = None,
        context_tokens: int | None = None,
        attribute_losses: bool = True,
        skipping: bool = True,
    ) -> None:
        most = config.state_slots // config.slots_per_request
        if most < 1:
            raise InputError(
                f"{config.state_slots} state slots hold no request: {config.strategy} may need"
                f" {config.slots_per_request} for one; give at least {config.slots_per_request}"
            )
        if max_running_requests is not None and max_running_requests < 1:
            raise InputError(f"max_running_requests is {max_running_requests}, not at least 1")
        self.config = config
        self.cache = SglangCache(config)
        self.name = f"sglang {VERSION} {config.strategy}"
        if config.host_kv_tokens:
            self.name += " with an assumed host tier"
        self.exact_identity = True
        self.step_index = 0
        self.max_running_requests = min(most, max_running_requests or most)
        self.context_tokens = context_tokens
        self._skipping = skipping
        self._losses = LossLedger(config) if attribute_losses else None
        self._reader = SequenceReader()
        self._orders = 0
        self._waiting: deque[_Queued] = deque()
        self._live: list[_Queued] = []
        self._kv_use = _Use()
        self._state_use = _Use()
        self._work: WorkNotes | None = None

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._live)

    @property
    def running(self) -> int:
        return len(self._live)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def refusal(self, request: Request) -> str | None:
        """Why the request could never run; None when it can."""
        length, context = request.prompt.length_tokens, self.context_tokens
        if length < 1:
            return "the prompt is empty"
        if context is not None and length >= context - _KEPT_OF_CONTEXT:
            return (
                f"a prompt of {length} tokens is too long for a context of {context}: the most are"
                f" {context - _KEPT_OF_CONTEXT - 1}"
            )
        request = self._clipped(request)
        needed = _pages(_kv_end(request), self.config.page_tokens) + self.config.page_tokens
        if needed > self.config.kv_tokens:
            return f"it needs {needed} KV tokens and the pool holds {self.config.kv_tokens}"
        return None

    def add(self, request: Request) -> int:
        """Queue a request ``refusal`` had nothing against; returns its order number."""
        if request.prompt.ids and self.config.page_tokens % request.prompt.unit_tokens:
            self.exact_identity = False
        sequence = self._reader.read(request)
        request = self._clipped(request)
        self._waiting.append(_Queued(self._orders, request, sequence, self.step_index))
        self._orders += 1
        return self._orders - 1

    def step(self) -> tuple[int, list[int], list[tuple[int, RequestOutcome]]]:
        """One engine step: tokens computed, requests admitted, outcomes of the finished."""
        decoding = list(self._live)
        tokens, admitted = 0, []
        if self._work is not None:
            self._work.begin()
        while self._waiting and self._fits(self._waiting[0]):
            queued = self._waiting.popleft()
            tokens += self._start(queued)
            admitted.append(queued.order)
        if self._work is not None:
            self._work.decode([queued.context_tokens for queued in decoding])
        for queued in decoding:
            self._decode(queued, 1)
        done = [queued for queued in self._live if queued.left == 0]
        self._live = [queued for queued in self._live if queued.left]
        self._measure(1, 0)
        finished = [(queued.order, self._finish(queued)) for queued in done]
        self.step_index += 1
        return tokens + len(decoding), admitted, finished

    def skippable_steps(self) -> int:
        """Steps in which nothing is admitted or ends."""
        if not self._skipping or not self._live:
            return 0
        if self._waiting and self._fits(self._waiting[0]):
            return 0
        return min(queued.left for queued in self._live) - 1

    def skip(self, steps: int) -> None:
        """Decode ``steps`` tokens of every running request, as if token by token in turn."""
        tree, page = self.cache.tree, self.config.page_tokens
        grown = sum(
            _pages(end + steps, page) - _pages(end, page)
            for end in (self.cache.running[queued.key].kv_end for queued in self._live)
        )
        if len(self._live) > 1 and tree.kv_free - grown < page:
            if page > 1:
                # A step with less than a page free evicts whether it needs a page or not.
                for _ in range(steps):
                    for queued in self._live:
                        self._decode(queued, 1)
                    self._measure(1, 0)
                    self.step_index += 1
                return
            # Whoever runs short evicts the next leaf, so only the sum matters.
            tree.evict_kv(grown - tree.kv_free)
        for queued in self._live:
            self._decode(queued, steps)
        self._measure(steps, grown)
        self.step_index += steps

    def record_work(self) -> None:
        """Note what each step computes; see ``sim.time.server.TimedEngine``."""
        self._work = WorkNotes(self.config.chunked_prefill_tokens, self.config.state_bytes)

    def passes(self) -> list[Pass]:
        """What the last step computed."""
        assert self._work is not None
        return self._work.passes()

    def next_work(self) -> StepWork:
        """What the next step computes, where it can be skipped."""
        contexts = [queued.context_tokens for queued in self._live]
        return StepWork(contexts, head_rows=len(contexts))

    def blocked(self) -> RefusalError:
        """Why the head of the queue cannot start though nothing runs."""
        queued, tree = self._waiting[0], self.cache.tree
        return RefusalError(
            f"request {queued.request.request_id} needs {queued.kv_end} KV tokens and"
            f" {tree.kv_free + tree.kv_evictable} of {tree.kv_tokens} can be had; give more KV"
        )

    def use(self) -> EngineUse:
        """Pools, states and evictions so far. A block is a page; a state slot is its own."""
        cache, page = self.cache, self.config.page_tokens
        steps = max(self.step_index, 1)
        return EngineUse(
            engine=self.name,
            num_blocks=self.config.kv_tokens // page,
            groups=(
                self._kv_use.of("KV", "full", page, steps, cache.kv_taken_tokens),
                self._state_use.of("states", "state", 1, steps, cache.slots_taken),
            ),
            states=StateUse(cache.states_kept, cache.states_hit, self.config.state_bytes),
            evictions=cache.tree.evictions,
            cached_blocks=cache.tree.kv_evictable // page,
        )

    # Parts

    def _clipped(self, request: Request) -> Request:
        """The request with no more output than the context leaves (`max_req_len - input - 1`)."""
        if self.context_tokens is None:
            return request
        most = max(0, self.context_tokens - 2 - request.prompt.length_tokens)
        if request.output_tokens <= most:
            return request
        return replace(request, output_tokens=most)

    def _fits(self, queued: _Queued) -> bool:
        if len(self._live) >= self.max_running_requests:
            return False
        tree, page = self.cache.tree, self.config.page_tokens
        reserved = sum(
            _pages(live.kv_end, page) - _pages(self.cache.running[live.key].kv_end, page)
            for live in self._live
        )
        room = tree.kv_free + tree.kv_evictable - reserved
        return _pages(queued.kv_end, page) + page <= room

    def _start(self, queued: _Queued) -> int:
        prompt_tokens = queued.request.prompt.length_tokens
        queued.first_step = self.step_index
        queued.admitted = self.cache.start(queued.key, queued.sequence, prompt_tokens)
        self.cache.decode(queued.key, min(1, queued.request.output_tokens))  # the prefill's token
        if self._losses is not None:
            hit_tokens = queued.admitted.hit_tokens
            self._losses.start(queued.key, queued.request, queued.sequence, hit_tokens)
        self._live.append(queued)
        hit_tokens = queued.admitted.hit_tokens
        if self._work is not None:
            self._work.prefill(
                queued.order, hit_tokens, prompt_tokens - hit_tokens, queued.admitted.copied
            )
        return prompt_tokens - hit_tokens

    def _decode(self, queued: _Queued, steps: int) -> None:
        self.cache.decode(queued.key, steps)
        queued.left -= steps

    def _finish(self, queued: _Queued) -> RequestOutcome:
        self.cache.finish(queued.key)
        request, admitted = queued.request, queued.admitted
        assert admitted is not None
        ceiling: int | None = None
        lost: Losses = ()
        if self._losses is not None:
            ceiling, lost = self._losses.finish(queued.key, request)
        return RequestOutcome(
            request_id=request.request_id,
            prompt_tokens=request.prompt.length_tokens,
            output_tokens=request.output_tokens,
            hit_tokens=admitted.hit_tokens,
            kv_hit_tokens=admitted.kv_hit_tokens,
            ceiling_tokens=ceiling,
            lost=lost,
            junction_tokens=admitted.branch_tokens or 0,
            prefill_chunks=admitted.prefill_chunks,
            arrival_step=queued.arrival_step,
            first_step=queued.first_step,
            finish_step=self.step_index,
            session=request.session,
            turn=request.turn,
        )

    def _measure(self, steps: int, grown_tokens: int) -> None:
        """Note what requests hold after ``steps`` steps that took ``grown_tokens`` evenly."""
        tree = self.cache.tree
        held = tree.kv_tokens - tree.kv_free - tree.kv_evictable
        self._kv_use.note(held, steps, grown_tokens)
        self._state_use.note(tree.state_slots - tree.slots_free - tree.states_evictable, steps, 0)


class _Use:
    """Peak and sum over steps of what requests hold. Between two ends of a skip it is taken to
    grow evenly, which for pages above one token is off by less than a page a request."""

    def __init__(self) -> None:
        self.peak = 0
        self.twice_sum = 0

    def note(self, held: int, steps: int, grown: int) -> None:
        self.peak = max(self.peak, held)
        # held - grown * (steps - 1 - k) / steps over k = 0, ..., steps - 1, doubled
        self.twice_sum += 2 * held * steps - grown * (steps - 1)

    def of(self, name: str, kind: str, size: int, steps: int, taken: int) -> GroupUse:
        return GroupUse(
            name=name,
            kind=kind,
            peak_blocks=self.peak // size,
            mean_blocks=self.twice_sum / (2 * steps * size),
            allocated_blocks=taken // size,
        )


def _kv_end(request: Request) -> int:
    """Tokens that will have KV: the last output token never gets any."""
    return request.prompt.length_tokens + max(0, request.output_tokens - 1)


def _pages(tokens: int, page_tokens: int) -> int:
    """Tokens rounded up to whole pages."""
    return -(-tokens // page_tokens) * page_tokens
