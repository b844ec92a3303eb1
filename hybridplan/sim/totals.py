"""Running totals of a replay and the summary made of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hybridplan.sim.outcome import LossCause, RequestOutcome, Summary

if TYPE_CHECKING:
    from hybridplan.sim.replay import Engine


class Totals:
    """Sums over finished requests. Constant memory."""

    def __init__(self) -> None:
        self.requests = 0
        self.refused = 0
        self.prompt_tokens = 0
        self.hit_tokens = 0
        self._output_tokens = 0
        self._kv_hit_tokens = 0
        self._ceiling_tokens = 0
        self._has_ceiling = True
        self._lost: Counter[LossCause] = Counter()
        self._requests_hit = 0
        self._preemptions = 0
        self._recomputed_tokens = 0
        self._requests_waited = 0
        self._waited_steps = 0
        self._waited_s = 0.0
        self._peak_running = 0
        self._peak_waiting = 0
        self._sessions = False

    def see(self, running: int, waiting: int) -> None:
        self._peak_running = max(self._peak_running, running)
        self._peak_waiting = max(self._peak_waiting, waiting)

    def add(self, outcome: RequestOutcome) -> None:
        if outcome.refused is not None:
            self.refused += 1
            return
        self.requests += 1
        self.prompt_tokens += outcome.prompt_tokens
        self._output_tokens += outcome.output_tokens
        self.hit_tokens += outcome.hit_tokens
        self._kv_hit_tokens += outcome.kv_hit_tokens
        if outcome.ceiling_tokens is None:
            self._has_ceiling = False
        else:
            self._ceiling_tokens += outcome.ceiling_tokens
        for cause, tokens in outcome.lost:
            self._lost[cause] += tokens
        self._requests_hit += outcome.hit_tokens > 0
        self._preemptions += outcome.preemptions
        self._recomputed_tokens += outcome.recomputed_tokens
        self._requests_waited += outcome.waited_steps > 0
        self._waited_steps += outcome.waited_steps
        self._waited_s += outcome.waited_s or 0.0
        self._sessions |= outcome.session is not None

    def summary(
        self,
        engine: Engine,
        *,
        arrival: str,
        elapsed_s: float | None,
        partial: bool,
        interrupted: bool,
    ) -> Summary:
        assumptions = [f"arrival {arrival}"]
        if self._sessions:
            assumptions.append("a turn starts when the turn before it has finished")
        if not engine.exact_identity:
            assumptions.append(
                f"the trace's unit is coarser than the hash block: hits are the {engine.reading}"
                " reading"
            )
        return Summary(
            requests=self.requests,
            refused=self.refused,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self._output_tokens,
            hit_tokens=self.hit_tokens,
            kv_hit_tokens=self._kv_hit_tokens,
            ceiling_tokens=self._ceiling_tokens if self._has_ceiling else None,
            lost=tuple((cause, self._lost[cause]) for cause in LossCause if self._lost[cause]),
            requests_hit=self._requests_hit,
            preemptions=self._preemptions,
            recomputed_tokens=self._recomputed_tokens,
            requests_waited=self._requests_waited,
            waited_steps=self._waited_steps,
            waited_s=self._waited_s if elapsed_s is not None else None,
            steps=engine.step_index,
            elapsed_s=elapsed_s,
            peak_running=self._peak_running,
            peak_waiting=self._peak_waiting,
            use=engine.use(),
            arrival=arrival,
            reading=engine.reading,
            exact_identity=engine.exact_identity,
            assumptions=tuple(assumptions),
            partial=partial,
            interrupted=interrupted,
        )
