"""Which flags would win back most of the loss: a few changes, each really re-run.

The losses decide which changes are worth a re-run; the re-run decides what they are worth. Work is
bounded by a number of re-runs and by the size of what is re-run, never by the clock, so the same
input gives the same advice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hybridplan.errors import HybridplanError
from hybridplan.sim.arrival import Arrival
from hybridplan.sim.changes import Change, combined, vllm_changes
from hybridplan.sim.changes_sglang import sglang_changes
from hybridplan.sim.outcome import LossCause, RequestOutcome, Summary
from hybridplan.sim.replay import Progress, Replay
from hybridplan.sim.request import Request
from hybridplan.sim.result import Advice, Suggestion
from hybridplan.sim.setup import EngineAsk, VllmFlags, build
from hybridplan.sim.time.clock import Clock

Watch = Callable[[str, Progress, int | None], None]
"""Told the stage ("replay", "upper bound", "advice 2 of 6: --flag"), where it is, and how many
requests it has (None: those of the trace)."""

HEAD_WORK = 40_000
MOST_TRIED = 8
MOST_SHOWN = 3
FINE_UNIT_TOKENS = 64
_REQUEST_WORK = 20
LEAST_GAIN = 0.001
"""Of the prompt tokens; a change that gains less is not worth a flag."""
NEARLY = 0.9
"""Of a gain; what gets this far with fewer flags is preferred."""


@dataclass(slots=True)
class _Run:
    """Totals of one run."""

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    lost_tokens: int = 0

    @property
    def rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Head:
    """The first requests of a trace, up to a fixed amount of replay work (hash blocks, and a fixed
    share for each request), and what a main replay that ran them one at a time gave."""

    def __init__(self, work_tokens: int, *, whole: bool = False) -> None:
        self.requests: list[Request] = []
        self.is_whole = True
        self._whole = whole
        self._block = work_tokens
        self._work = 0
        self._outcomes = 0
        self._main = _Run()

    def see(self, outcome: RequestOutcome) -> None:
        """Note an outcome of the main replay; call in trace order."""
        self._outcomes += 1
        if self._outcomes > len(self.requests) or outcome.refused is not None:
            return
        main = self._main
        main.requests += 1
        main.prompt_tokens += outcome.prompt_tokens
        main.hit_tokens += outcome.hit_tokens
        main.lost_tokens += sum(tokens for _, tokens in outcome.lost)

    @property
    def seen(self) -> _Run | None:
        """The head's share of the main replay; None unless every outcome of it was noted."""
        return self._main if self._outcomes >= len(self.requests) > 0 else None

    @property
    def coarsest_unit_tokens(self) -> int:
        """The largest unit of these requests' prefix ids."""
        return max((request.prompt.unit_tokens for request in self.requests), default=1)

    def filled(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The same requests, noted while they pass."""
        for request in requests:
            if self.is_whole:
                tokens = request.prompt.length_tokens + request.output_tokens
                self._work += tokens // self._block + _REQUEST_WORK
                if self._work > HEAD_WORK and self.requests and not self._whole:
                    self.is_whole = False
                else:
                    self.requests.append(request)
            yield request


def advise(
    ask: EngineAsk,
    arrival: Arrival,
    summary: Summary,
    head: Head,
    watch: Watch | None,
    all_requests: Callable[[], Iterable[Request]],
    clock_of: Callable[[EngineAsk], Clock | None] = lambda ask: None,
) -> tuple[Advice, bool]:
    """The best changes for what ``summary`` lost; False beside it when Ctrl-C cut it short.

    ``clock_of`` gives the clock of a re-run, as a change may change what a step takes.
    """
    search = _Search(ask, arrival, summary, head, watch, all_requests, clock_of)
    complete = True
    try:
        search.run()
    except KeyboardInterrupt:
        complete = False
    return search.advice(), complete


class _Search:
    def __init__(
        self,
        ask: EngineAsk,
        arrival: Arrival,
        summary: Summary,
        head: Head,
        watch: Watch | None,
        all_requests: Callable[[], Iterable[Request]],
        clock_of: Callable[[EngineAsk], Clock | None],
    ) -> None:
        self._ask = ask
        self._arrival = arrival
        self._summary = summary
        self._head = head
        self._watch = watch
        self._all = all_requests
        self._clock_of = clock_of
        self._tried: list[tuple[Suggestion, Change]] = []
        self._refused: list[str] = []
        self._left_out: list[Change] = []
        self._whole = _Run(
            summary.requests, summary.prompt_tokens, summary.hit_tokens, summary.lost_tokens
        )
        self._base: _Run | None = self._whole if head.is_whole else None
        self._stage = ""

    @property
    def _tells_units(self) -> bool:
        """Whether the trace can tell blocks and units of different size apart."""
        return self._summary.exact_identity or self._head.coarsest_unit_tokens <= FINE_UNIT_TOKENS

    def run(self) -> None:
        lost, prompts = self._summary.lost_tokens, self._summary.prompt_tokens
        if lost < LEAST_GAIN * prompts:
            return
        changes = self._changes()
        for number, change in enumerate(changes, 1):
            self._stage = f"advice {number} of {len(changes)}: {' '.join(change.flags)}"
            self._try(change)
        best = self._best()
        if len(best) > 1:
            both = combined(best[0][1], best[1][1])
            if both is not None:
                self._stage = f"advice, both together: {' '.join(both.flags)}"
                self._try(both)

    def advice(self) -> Advice:
        shown = [found for found, _ in self._best()[:MOST_SHOWN]]
        return Advice(
            suggestions=tuple(shown),
            tried=tuple(found for found, _ in self._tried),
            refused=tuple(self._refused),
            requests=self._base.requests if self._base else 0,
            whole_trace=self._head.is_whole,
            note=self._note(),
        )

    def _changes(self) -> list[Change]:
        if isinstance(self._ask.flags, VllmFlags):
            found = vllm_changes(
                self._ask, build(self._ask).setup, self._summary, self._tells_units
            )
        else:
            found = sglang_changes(self._ask, self._summary)
        if not self._head.is_whole:
            self._left_out = [change for change in found if change.costly]
            found = [change for change in found if not change.costly]
        return found[:MOST_TRIED]

    def _try(self, change: Change) -> None:
        on_whole = change.needs_whole and not self._head.is_whole
        if self._base is None and not on_whole:
            self._base = self._head.seen
        if self._base is None and not on_whole:
            stage, self._stage = self._stage, "advice: as it is"
            self._base = self._replay(self._ask, self._head.requests, losses=True)
            self._stage = stage
        base = self._whole if on_whole else self._base
        assert base is not None
        try:
            requests = self._all() if on_whole else self._head.requests
            found = self._replay(change.apply(self._ask), requests)
        except HybridplanError as error:
            self._refused.append(f"{' '.join(change.flags)}: {error.sentence}")
            return
        gained = found.hit_tokens - base.hit_tokens
        suggestion = Suggestion(
            flags=change.flags,
            why=change.why,
            price=change.price,
            requests=base.requests,
            base_rate=base.rate,
            hit_rate=found.rate,
            gained_tokens=gained,
            recovered=gained / base.lost_tokens if base.lost_tokens else None,
        )
        # More prompts may be refused under other flags: rates then speak of different requests.
        if found.prompt_tokens != base.prompt_tokens:
            self._refused.append(
                f"{' '.join(change.flags)}: it serves {found.requests:,} of"
                f" {base.requests:,} requests"
            )
            return
        self._tried.append((suggestion, change))

    def _replay(self, ask: EngineAsk, requests: Iterable[Request], *, losses: bool = False) -> _Run:
        total = len(requests) if isinstance(requests, list) else None

        def see(progress: Progress) -> None:
            if self._watch is not None:
                self._watch(self._stage, progress, total)

        engine = build(ask).engine(losses=losses)
        replay = Replay(
            requests, engine, arrival=self._arrival, clock=self._clock_of(ask), progress=see,
            progress_every=50,
        )  # fmt: skip
        for _ in replay:
            pass
        got = replay.summary()
        return _Run(got.requests, got.prompt_tokens, got.hit_tokens, got.lost_tokens)

    def _best(self) -> list[tuple[Suggestion, Change]]:
        """The best change of each topic that is worth its while, best first.

        One that gains next to nothing over a change with fewer flags is left out.
        """
        worth = [pair for pair in self._tried if _is_worth(pair[0])]
        worth = [pair for pair in worth if not any(_replaces(other, pair) for other in worth)]
        worth.sort(key=lambda pair: (-_gain(pair[0]), len(pair[0].flags)))
        topics: dict[str, tuple[Suggestion, Change]] = {}
        for pair in worth:
            topics.setdefault(pair[1].topic, pair)
        return list(topics.values())

    def _note(self) -> str:
        """What the search could not tell, or why no flag helps."""
        lost = dict(self._summary.lost)
        total = self._summary.lost_tokens
        waiting = lost.get(LossCause.NOT_COMPUTED_YET, 0)
        if total and 2 * waiting > total:
            return (
                "most of the loss is prompts that arrive while the first of their kind is still"
                " computed: no cache flag helps, spacing or routing them does"
            )
        said = []
        if self._left_out:
            flags = ", ".join(" ".join(change.flags) for change in self._left_out)
            said.append(
                f"only --advice full tells what more states do to a pool that evicts: {flags}"
            )
        if self._tried and not self._tells_units:
            said.append(
                "rates here are lower bounds; the trace is too coarse to tell what another block or"
                " --prefix-match-unit would gain"
            )
        return "; ".join(said)


def _gain(found: Suggestion) -> float:
    return found.hit_rate - found.base_rate


def _is_worth(found: Suggestion) -> bool:
    return _gain(found) >= LEAST_GAIN and (found.recovered is None or found.recovered >= 0.01)


def _replaces(one: tuple[Suggestion, Change], other: tuple[Suggestion, Change]) -> bool:
    """Whether the first change has fewer of the same flags and does nearly as well."""
    fewer = set(one[0].flags) < set(other[0].flags)
    return fewer and _gain(one[0]) >= NEARLY * _gain(other[0])
