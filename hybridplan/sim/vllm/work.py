"""What each vLLM step computes, noted for a clock."""

from __future__ import annotations

from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.time.clock import Pass
from hybridplan.sim.vllm.engine import VllmEngine
from hybridplan.sim.vllm.scheduler import Step
from hybridplan.sim.vllm.sequence import Sequence


class WorkNotes:
    """An observer of the engine; ``last`` are the passes of its last step.

    A copied block counts at the size of the largest group's: the pool hands out block numbers,
    and blocks of all groups take the same bytes in vLLM's uniform pool.
    """

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._block_bytes = max(group.block_bytes for group in engine.config.groups)
        # vLLM reserves slots ahead for drafters that are models, not for n-grams.
        self._proposes = engine.config.draft_tokens > 0 and engine.config.lookahead_tokens > 0
        self._last = Pass(StepWork())
        self._step = -1
        engine.observers.append(self)

    def passes(self) -> tuple[Pass]:
        """Of the last step; an empty one where nothing was scheduled."""
        return (self._last if self._step == self._engine.step_index - 1 else Pass(StepWork()),)

    def scheduled(self, step: int, plan: Step) -> None:
        """Note a step. One that gives a request's first token reaches the end of its prompt."""
        work = StepWork(copied_bytes=2 * len(plan.copies) * self._block_bytes)
        first = []
        for part in plan.parts:
            seq = part.seq
            end = part.start + part.tokens
            if part.tokens == 1:
                work.contexts.append(end)
            elif part.drafts:
                work.windows.append((part.start, part.tokens))
            else:
                work.chunks.append((part.start, part.tokens))
            if part.outputs:
                work.head_rows += 1 + part.drafts
                if part.start < seq.num_prompt <= end:
                    first.append(seq.serial)
        if self._proposes and work.head_rows and not plan.skip_drafts:
            work.proposed = self._engine.config.draft_tokens
        self._last = Pass(work, first)
        self._step = step

    def finished(self, step: int, seq: Sequence) -> None:
        """Nothing to note."""

    def next_work(self) -> StepWork:
        """The decode step that ``skip`` would repeat."""
        contexts = [seq.computed + 1 for seq in self._engine.scheduler.running]
        return StepWork(contexts, head_rows=len(contexts))
