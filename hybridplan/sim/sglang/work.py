"""What each step of the SGLang replay computes, noted for a clock."""

from __future__ import annotations

from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.time.clock import Pass


class WorkNotes:
    """Passes of one step: prefills first, cut at ``chunked_prefill_size`` tokens a pass in the
    order of admission, then one decode pass, as SGLang's batches do not mix the two."""

    def __init__(self, chunk_tokens: int | None, state_bytes: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._state_bytes = state_bytes
        self._passes: list[Pass] = []
        self._room = 0

    def begin(self) -> None:
        """A new step."""
        self._passes, self._room = [], 0

    def prefill(self, order: int, start: int, tokens: int, copied: bool) -> None:
        """A request admitted with ``start`` tokens hit and ``tokens`` to compute."""
        while tokens:
            if not self._room:
                self._passes.append(Pass(StepWork(), []))
                self._room = self._chunk_tokens or tokens
            cut = min(tokens, self._room)
            found = self._passes[-1]
            found.work.chunks.append((start, cut))
            start, tokens, self._room = start + cut, tokens - cut, self._room - cut
            if copied:
                found.work.copied_bytes += 2 * self._state_bytes
                copied = False
            if not tokens:
                found.work.head_rows += 1
                found.first = (*found.first, order)

    def decode(self, contexts: list[int]) -> None:
        """The decode pass, last in its step."""
        if contexts:
            self._passes.append(Pass(StepWork(contexts, head_rows=len(contexts))))

    def passes(self) -> list[Pass]:
        """Of the last step."""
        return self._passes or [Pass(StepWork())]
