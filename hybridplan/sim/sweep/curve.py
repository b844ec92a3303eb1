"""Hit rate over memory for one configuration: the whole curve, and how each point was obtained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import HybridplanError, InputError
from hybridplan.sim.outcome import Summary
from hybridplan.sim.prepared import Prepared, open_settings_trace, prepare
from hybridplan.sim.replay import Engine, Replay
from hybridplan.sim.request import Request
from hybridplan.sim.settings import Value, axis_name, canonical
from hybridplan.sim.sweep.grid import expand, model_of
from hybridplan.sim.sweep.shards import SAMPLES, Estimate, estimate, sample, sampling_depth, shrunk
from hybridplan.sim.sweep.stack import Stack, is_stack, lru_curve
from hybridplan.sim.traces.facts import TraceInfo
from hybridplan.sim.traces.trace import Trace
from hybridplan.sim.vllm.keys import Reading
from hybridplan.sim.vllm.replayed import ReplayedVllm

SCHEMA_VERSION = 1
POINTS = 13
PARTS = (32, 16)
"""Samples of 1/32 where the pool is large enough for them, else of 1/16, else a full run."""
LEAST_SAMPLED_REQUESTS = 25
"""Below that many requests a sample tells nothing, and a full run costs little."""
_RESOLUTION = 0.0005
"""Of the hit rate, which is shown in tenths of points."""
_HEADROOM = 1.25
_MOST_BYTES = 1 << 50
How: TypeAlias = Literal["one pass", "sampled", "full run", "refused"]
Watch: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Hit rate at one memory. ``low`` and ``high`` are the 95 % interval of a sampled point, and
    equal the rate elsewhere. ``full_hit_rate`` is that of a full run made as a check."""

    memory_bytes: int
    pool: str
    how: How
    hit_rate: float | None
    low: float | None
    high: float | None
    full_hit_rate: float | None
    refused: str | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Everything ``hybridplan sweep --curve memory`` prints.

    ``exact`` tells whether the points are those of full replays, ``why`` the reason. ``ceiling``
    is the rate with unlimited memory under the same policy. ``worst_error`` is the largest
    difference between a checked point and its full run, in hit rate; None without checks.
    ``outside`` counts checked points whose full run lies outside their interval by more than 0.05
    points.
    """

    schema_version: int
    trace: TraceInfo
    model: str
    policy: str
    settings: Mapping[str, Value]
    exact: bool
    why: str
    ceiling: float
    points: tuple[CurvePoint, ...]
    checked: int
    worst_error: float | None
    outside: int


def memory_curve(
    asked: Mapping[str, object], *, checks: int = 2, watch: Watch | None = None
) -> Curve:
    """Hit rate over memory of one configuration.

    Args:
        asked: a grid with one value for each setting but kv_memory, whose values become the
            points; without it they are spread from the smallest useful memory to the largest.
        checks: points of a curve that are run in full too, spread over it.
        watch: told how many replays are done and how many there will be at most.

    Raises InputError for another grid, or arrivals that run requests side by side.
    """
    given = {axis_name(name): value for name, value in asked.items() if name != "cells"}
    sizes = given.pop("kv_memory", None)
    if "cells" in asked or "gpu" in given:
        raise InputError("a curve is over kv_memory for one configuration; drop cells and gpu")
    cells = expand(given).cells
    if len(cells) != 1:
        raise InputError(
            f"a curve is of one configuration and {len(cells)} were given; keep one value of each"
        )
    base = dict(cells[0].settings)
    if base["arrival"] != "sequential":
        raise InputError(
            f"a curve replays requests one at a time, not {base['arrival']}; drop the arrival, or"
            " sweep --kv-memory over the sizes wanted"
        )
    timed = next((name for name in ("calibration", "rate") if base.get(name) is not None), None)
    if timed is not None:
        raise InputError(
            f"a curve is of hit rates and knows no times; drop {timed} {base[timed]}, or sweep"
            " --kv-memory over the sizes wanted"
        )
    spec = model_of(str(base["model"]))
    work = _Work(base, spec, open_settings_trace(base), watch)
    memories = _sizes(sizes) or work.spread()
    points = work.points(memories, checks)
    errors = [
        abs(point.full_hit_rate - point.hit_rate)
        for point in points
        if point.full_hit_rate is not None and point.hit_rate is not None
    ]
    return Curve(
        schema_version=SCHEMA_VERSION,
        trace=work.trace.info,
        model=spec.name,
        policy=str(base["engine"]),
        settings=base,
        exact=work.is_exact(points),
        why=work.why(points),
        ceiling=work.whole.hit_rate,
        points=points,
        checked=len(errors),
        worst_error=max(errors, default=None),
        outside=sum(not _covered(point) for point in points),
    )


def _covered(point: CurvePoint) -> bool:
    """Whether the interval of a sampled point holds the full run, where there was one."""
    full, low, high = point.full_hit_rate, point.low, point.high
    if point.how != "sampled" or full is None or low is None or high is None:
        return True
    return low - _RESOLUTION <= full <= high + _RESOLUTION


def _sizes(values: object) -> list[int]:
    if values is None:
        return []
    listed = values if isinstance(values, (list, tuple)) else [values]
    found = {canonical({"kv_memory": value})[0]["kv_memory"] for value in listed}
    return sorted(int(size) for size in found if size is not None)


class _Work:
    """One configuration, its unlimited run, and what was learnt about sampling its trace."""

    def __init__(
        self, base: dict[str, Value], spec: ModelSpec, trace: Trace, watch: Watch | None
    ) -> None:
        self._base, self._spec, self.trace = base, spec, trace
        self._watch, self._done, self._most = watch, 0, POINTS
        self._unlimited = prepare(base, spec)
        engine, self.whole = self._replay(self._unlimited.make(Reading.LOWER, False))
        self._longest = max(
            (r.prompt.length_tokens + r.output_tokens for r in trace.requests()), default=1
        )
        self._engine = engine
        self._depth: int | None = None
        self._samples: dict[tuple[int, int], tuple[int, int]] = {}
        self.stack: Stack | None = None
        if isinstance(engine, ReplayedVllm) and is_stack(engine.config):
            self.stack = lru_curve(trace.requests(), engine.config)

    def spread(self) -> list[int]:
        """Memories from the least the engine starts with to where nothing is evicted any more."""
        per_block = self._unlimited.bytes_per_block
        use = self.whole.use
        running = sum(group.peak_blocks for group in use.groups) * per_block
        state = use.states.kept_bytes if not isinstance(self._engine, ReplayedVllm) else 0
        most = int((use.cached_blocks * per_block + state + running) * _HEADROOM) + 1
        least = max(int(running * _HEADROOM), most // 256, 1)
        while least < _MOST_BYTES and not self._starts(least):
            least *= 2
        most = max(most, 4 * least)
        step = (most / least) ** (1 / (POINTS - 1))
        return sorted({int(least * step**i) for i in range(POINTS)})

    def _starts(self, memory: int) -> bool:
        try:
            self._make(memory)
        except HybridplanError:
            return False
        return True

    def points(self, memories: list[int], checks: int) -> tuple[CurvePoint, ...]:
        """Every memory's point; ``checks`` of those that were not run in full are, too."""
        self._most = len(memories) + 1
        found = [self._point(memory) for memory in memories]
        open_ = [i for i, point in enumerate(found) if point.how in ("one pass", "sampled")]
        count = min(checks, len(open_))
        chosen = {open_[(2 * k + 1) * len(open_) // (2 * count)] for k in range(count)}
        for index in sorted(chosen):
            point = found[index]
            full = self._replay(self._make(point.memory_bytes)[1])[1].hit_rate
            found[index] = CurvePoint(
                point.memory_bytes, point.pool, point.how, point.hit_rate, point.low, point.high,
                full, None,
            )  # fmt: skip
        return tuple(found)

    def is_exact(self, points: Iterable[CurvePoint]) -> bool:
        if self.stack is not None:
            return not self.stack.twins
        return all(point.how != "sampled" for point in points)

    def why(self, points: tuple[CurvePoint, ...]) -> str:
        """How the curve came about, in one sentence."""
        if self.stack is not None:
            if self.stack.twins:
                return (
                    "one pass over the LRU stack; not exact, because"
                    f" {self.stack.twins:,} requests compute blocks that are still cached"
                )
            return (
                "one pass over the LRU stack; exact, because the model is all full attention and"
                " requests run one at a time, so no eviction depends on the pool's size"
            )
        if self.is_exact(points):
            return "full replays: the pools or the trace are too small for samples"
        return (
            f"{SAMPLES} disjoint samples of 1/{PARTS[0]} or 1/{PARTS[1]} of the prefix trees"
            f" (cut at {self._depth} units) on pools shrunk alike; states and KV share the"
            " memory, so the policy is no stack; small pools are replayed in full"
        )

    def _point(self, memory: int) -> CurvePoint:
        try:
            prepared, engine = self._make(memory)
        except HybridplanError as error:
            return CurvePoint(memory, "", "refused", None, None, None, None, error.sentence)
        if self.stack is not None and prepared.num_blocks is not None:
            return self._from_stack(memory, prepared, prepared.num_blocks)
        found = self._sampled(memory)
        if found is not None:
            low, high = found.hit_rate - found.half_width, found.hit_rate + found.half_width
            return CurvePoint(
                memory, prepared.pool, "sampled", found.hit_rate, max(low, 0.0), min(high, 1.0),
                None, None,
            )  # fmt: skip
        try:
            rate = self._replay(engine)[1].hit_rate
        except HybridplanError as error:
            return CurvePoint(memory, "", "refused", None, None, None, None, error.sentence)
        return CurvePoint(memory, prepared.pool, "full run", rate, rate, rate, None, None)

    def _from_stack(self, memory: int, prepared: Prepared, blocks: int) -> CurvePoint:
        stack = self.stack
        assert stack is not None
        if blocks < stack.least_blocks:
            why = f"the longest request takes {stack.least_blocks - 1:,} blocks beside the null one"
            return CurvePoint(memory, prepared.pool, "refused", None, None, None, None, why)
        rate = stack.hit_tokens(blocks) / stack.prompt_tokens if stack.prompt_tokens else 0.0
        return CurvePoint(memory, prepared.pool, "one pass", rate, rate, rate, None, None)

    def _sampled(self, memory: int) -> Estimate | None:
        for parts in PARTS:
            if self.whole.requests < parts * LEAST_SAMPLED_REQUESTS:
                continue
            small = shrunk(self._make(memory)[1], parts, self.whole.use)
            if small is None:
                continue
            if self._depth is None:
                self._depth = sampling_depth(self.trace.requests())
            lost = []
            for number in range(SAMPLES):
                engine = shrunk(self._make(memory)[1], parts, self.whole.use)
                assert engine is not None
                most_tokens, prompt_tokens = self._unlimited_sample(parts, number)
                got = self._run(engine, self._sample(parts, number))
                lost.append((most_tokens - got.hit_tokens, prompt_tokens))
            self._tick()
            return estimate(self.whole.hit_rate, lost, parts)
        return None

    def _sample(self, parts: int, number: int) -> Iterator[Request]:
        assert self._depth is not None
        return sample(self.trace.requests(), self._depth, parts, number)

    def _unlimited_sample(self, parts: int, number: int) -> tuple[int, int]:
        """Hit and prompt tokens of a sample with unlimited memory."""
        known = self._samples.get((parts, number))
        if known is None:
            engine = self._unlimited.make(Reading.LOWER, False)
            summary = self._run(engine, self._sample(parts, number))
            known = self._samples[parts, number] = summary.hit_tokens, summary.prompt_tokens
        return known

    def _make(self, memory: int) -> tuple[Prepared, Engine]:
        settings = {**self._base, "kv_memory": memory}
        if "max_model_len" not in settings:
            # Small pools refuse the model's own length; the trace's longest request is enough.
            limit = min(self._longest + 1, self._spec.max_tokens or self._longest + 1)
            settings = canonical({**settings, "max_model_len": limit})[0]
        prepared = prepare(settings, self._spec)
        return prepared, prepared.make(Reading.LOWER, False)

    def _replay(self, engine: Engine) -> tuple[Engine, Summary]:
        summary = self._run(engine, self.trace.requests())
        self._tick()
        return engine, summary

    @staticmethod
    def _run(engine: Engine, requests: Iterable[Request]) -> Summary:
        replay = Replay(requests, engine)
        for _ in replay:
            pass
        return replay.summary()

    def _tick(self) -> None:
        self._done += 1
        if self._watch is not None:
            self._watch(self._done, max(self._most, self._done))
