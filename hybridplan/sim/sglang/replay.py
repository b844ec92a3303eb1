"""A trace of requests served by SGLang's cache, one outcome a request.

Requests are admitted in trace order. By default each finishes before the next begins; with
``max_running_requests`` several decode in step, one token each a step, and a new one is admitted
as soon as a place, its KV and its state slots are there. Admission reserves a request's whole
length, so none is ever retracted: SGLang admits on an estimate (`new_token_ratio`) and may
retract. Arrival times only order the trace, and a prefill takes no decode step.

Prompts at a unit above one token give the lower bound of `sim.request`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hybridplan.errors import InputError
from hybridplan.sim.ceiling import InfiniteCache
from hybridplan.sim.outcome import LossCause, RequestOutcome
from hybridplan.sim.request import Request
from hybridplan.sim.sequence import SequenceReader, TokenSequence
from hybridplan.sim.sglang.cache import Admitted, SglangCache
from hybridplan.sim.sglang.config import SglangCacheConfig

_BOUNDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class SglangOutcome:
    """What the cache did for one request, beside what every engine's outcome says.

    ``restored_tokens`` of the hit came back from the host tier, ``states_kept`` states were taken
    into the tree, and the evictions are those it caused. In ``outcome`` the difference between
    ``kv_hit_tokens`` and ``hit_tokens`` was lost for want of a state, and ``junction_tokens`` is
    the branch point whose state prefill was asked to keep.
    """

    outcome: RequestOutcome
    restored_tokens: int = 0
    states_kept: int = 0
    evicted_states: int = 0
    evicted_kv_tokens: int = 0


class _Live:
    """A running request: KV it will have at its end, decode steps left, evictions so far."""

    __slots__ = (
        "admitted",
        "ceiling_tokens",
        "evicted_kv_tokens",
        "evicted_states",
        "key",
        "kv_end",
        "left",
        "lost",
        "request",
    )

    def __init__(self, key: str, request: Request, admitted: Admitted) -> None:
        self.key = key
        self.request = request
        self.admitted = admitted
        self.kv_end = _kv_end(request)
        self.left = max(0, request.output_tokens - 1)
        self.ceiling_tokens: int | None = None
        self.lost: tuple[tuple[LossCause, int], ...] = ()
        self.evicted_states = admitted.evicted_states
        self.evicted_kv_tokens = admitted.evicted_kv_tokens


class SglangReplay:
    """Serves requests and yields their outcomes in the order they finish.

    ``explain`` adds to each outcome the ceiling of an infinite cache and where the rest was lost:
    to eviction, as far as the same cache with boundless pools hits more, and else to the rules.
    It needs requests one at a time. Raises InputError if the state slots do not even hold one
    request.
    """

    def __init__(
        self, config: SglangCacheConfig, max_running_requests: int = 1, explain: bool = False
    ) -> None:
        by_slots = config.state_slots // config.slots_per_request
        if by_slots < 1:
            raise InputError(
                f"{config.state_slots} state slots hold no request: {config.strategy} may need"
                f" {config.slots_per_request} for one; give at least {config.slots_per_request}"
            )
        if max_running_requests < 1:
            raise InputError(f"max_running_requests is {max_running_requests}, not at least 1")
        self.config = config
        self.max_running_requests = min(max_running_requests, by_slots)
        self.cache = SglangCache(config)
        self._boundless: SglangCache | None = None
        self._ceiling: InfiniteCache | None = None
        if explain:
            if max_running_requests > 1:
                raise InputError(
                    f"losses are explained for requests one at a time, not {max_running_requests}"
                )
            self._ceiling = InfiniteCache()
            self._boundless = SglangCache(
                replace(
                    config,
                    kv_tokens=_BOUNDLESS,
                    state_slots=_BOUNDLESS,
                    host_kv_tokens=0,
                    host_state_slots=0,
                )
            )
        self._reader = SequenceReader()
        self._live: list[_Live] = []
        self._serial = 0

    def serve(self, requests: Iterable[Request]) -> Iterator[SglangOutcome]:
        """Outcomes as they come. May be called again: the cache stays as it is."""
        for request in requests:
            sequence = self._reader.read(request)
            while self._live and not self._fits(request):
                yield from self._run_to_next_finish()
            if not self._fits(request):
                yield self._refuse(request)
                continue
            self._serial += 1
            key = f"{self._serial}/{request.request_id}"
            admitted = self.cache.start(key, sequence, request.prompt.length_tokens)
            self.cache.decode(key, min(1, request.output_tokens))  # sampled by the prefill
            live = _Live(key, request, admitted)
            self._explain(live, sequence)
            self._live.append(live)
            if len(self._live) == self.max_running_requests:
                yield from self._run_to_next_finish()
        while self._live:
            yield from self._run_to_next_finish()

    def _fits(self, request: Request) -> bool:
        if len(self._live) >= self.max_running_requests:
            return False
        tree, page = self.cache.tree, self.config.page_tokens
        reserved = sum(
            _pages(live.kv_end, page) - _pages(self.cache.running[live.key].kv_end, page)
            for live in self._live
        )
        room = tree.kv_free + tree.kv_evictable - reserved
        return _pages(_kv_end(request), page) + page <= room

    def _run_to_next_finish(self) -> Iterator[SglangOutcome]:
        self._step(min(live.left for live in self._live))
        done = [live for live in self._live if live.left == 0]
        self._live = [live for live in self._live if live.left]
        for live in done:
            yield self._finish(live)

    def _step(self, steps: int) -> None:
        """Decode ``steps`` tokens of every running request, as if token by token in turn."""
        tree, page = self.cache.tree, self.config.page_tokens
        need = sum(
            _pages(running.kv_end + steps, page) - _pages(running.kv_end, page)
            for running in (self.cache.running[live.key] for live in self._live)
        )
        if len(self._live) == 1 or tree.kv_free - need >= page:
            self._decode(steps)
        elif page == 1:
            # Whoever runs short evicts the next leaf, so only the sum matters.
            evicted_states, evicted_kv = tree.evicted_states, tree.evicted_kv_tokens
            tree.evict_kv(need - tree.kv_free)
            self._live[0].evicted_states += tree.evicted_states - evicted_states
            self._live[0].evicted_kv_tokens += tree.evicted_kv_tokens - evicted_kv
            self._decode(steps)
        else:
            for _ in range(steps):
                self._decode(1)

    def _decode(self, steps: int) -> None:
        for live in self._live:
            decoded = self.cache.decode(live.key, steps)
            live.left -= steps
            live.evicted_states += decoded.evicted_states
            live.evicted_kv_tokens += decoded.evicted_kv_tokens

    def _finish(self, live: _Live) -> SglangOutcome:
        finished, admitted = self.cache.finish(live.key), live.admitted
        return SglangOutcome(
            _outcome(
                live.request,
                hit_tokens=admitted.hit_tokens,
                kv_hit_tokens=admitted.kv_hit_tokens,
                ceiling_tokens=live.ceiling_tokens,
                lost=live.lost,
                junction_tokens=admitted.branch_tokens or 0,
                prefill_chunks=admitted.prefill_chunks,
            ),
            admitted.restored_tokens,
            finished.states_kept,
            live.evicted_states + finished.evicted_states,
            live.evicted_kv_tokens + finished.evicted_kv_tokens,
        )

    def _refuse(self, request: Request) -> SglangOutcome:
        needed = _kv_end(request) + self.config.page_tokens
        why = f"it needs {needed} KV tokens and the pool holds {self.config.kv_tokens}"
        return SglangOutcome(_outcome(request, refused=why))

    def _explain(self, live: _Live, sequence: TokenSequence) -> None:
        if self._ceiling is None or self._boundless is None:
            return
        request, prompt_tokens = live.request, live.request.prompt.length_tokens
        twin = self._boundless.start(live.key, sequence, prompt_tokens)
        self._boundless.decode(live.key, request.output_tokens)
        self._boundless.finish(live.key)
        ceiling = self._ceiling.reusable_tokens(request)
        self._ceiling.remember(request)
        hit = live.admitted.hit_tokens
        last = max(0, ceiling - max(0, prompt_tokens - 1))
        evicted = min(ceiling - last - hit, max(0, twin.hit_tokens - hit))
        live.ceiling_tokens = ceiling
        causes = (
            (LossCause.LAST_TOKEN, last),
            (LossCause.EVICTED, evicted),
            (LossCause.NO_CHUNK_END, ceiling - last - hit - evicted),
        )
        live.lost = tuple((cause, tokens) for cause, tokens in causes if tokens)


def _outcome(request: Request, **counts: Any) -> RequestOutcome:
    return RequestOutcome(
        request.request_id,
        request.prompt.length_tokens,
        request.output_tokens,
        arrival_s=request.arrival_s,
        session=request.session,
        turn=request.turn,
        **counts,
    )


def _kv_end(request: Request) -> int:
    """Tokens that will have KV: the last output token never gets any."""
    return request.prompt.length_tokens + max(0, request.output_tokens - 1)


def _pages(tokens: int, page_tokens: int) -> int:
    """Tokens rounded up to whole pages."""
    return -(-tokens // page_tokens) * page_tokens
