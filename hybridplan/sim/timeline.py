"""A replay over time: hit rate and pool use in a bounded number of stretches."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.sim.outcome import EngineUse
from hybridplan.sim.replay import Engine, Progress
from hybridplan.sim.result import Point

MOST_POINTS = 100


@dataclass(frozen=True, slots=True)
class _Mark:
    """Cumulative counts at one moment; block-steps are blocks summed over steps."""

    finished: int
    prompt_tokens: int
    hit_tokens: int
    steps: int
    block_steps: tuple[float, ...]
    cached_blocks: int
    evictions: int


class Timeline:
    """Marks every so many requests; twice as far apart whenever there are MOST_POINTS of them, so
    that neither memory nor the picture grows with the trace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._marks: list[_Mark] = []
        self._every = 1

    def see(self, progress: Progress) -> None:
        """Call after every finished request, and once at the end."""
        if progress.finished % self._every:
            return
        if self._marks and self._marks[-1].finished == progress.finished:
            return
        self._mark(progress)
        if len(self._marks) >= MOST_POINTS:
            del self._marks[::2]
            self._every *= 2

    def _mark(self, progress: Progress) -> None:
        use: EngineUse = self._engine.use()
        steps = max(progress.steps, 1)
        self._marks.append(
            _Mark(
                progress.finished,
                progress.prompt_tokens,
                progress.hit_tokens,
                steps,
                tuple(group.mean_blocks * steps for group in use.groups),
                use.cached_blocks,
                use.evictions,
            )
        )

    def points(self, last: Progress | None) -> tuple[Point, ...]:
        """Every stretch so far; ``last`` closes the final one."""
        if last is not None and (not self._marks or self._marks[-1].finished < last.finished):
            self._mark(last)
        points = []
        before = _Mark(0, 0, 0, 0, (0.0,) * len(self._engine.use().groups), 0, 0)
        for mark in self._marks:
            steps = mark.steps - before.steps
            points.append(
                Point(
                    finished=mark.finished,
                    prompt_tokens=mark.prompt_tokens - before.prompt_tokens,
                    hit_tokens=mark.hit_tokens - before.hit_tokens,
                    mean_blocks=tuple(
                        round((now - then) / steps, 3) if steps else 0.0
                        for now, then in zip(mark.block_steps, before.block_steps, strict=True)
                    ),
                    cached_blocks=mark.cached_blocks,
                    evictions=mark.evictions - before.evictions,
                )
            )
            before = mark
        return tuple(points)
