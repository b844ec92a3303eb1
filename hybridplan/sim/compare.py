"""Every policy on one trace at one memory, beside what is possible at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from fractions import Fraction

from hybridplan.config.find import load
from hybridplan.config.spec import ModelSpec
from hybridplan.errors import HybridplanError, InputError
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.sglang.plan import slot_bytes
from hybridplan.sim.arrival import Closed, parse_arrival
from hybridplan.sim.bound import cache_bounds
from hybridplan.sim.bound.placement import optimal_placement, overlap_histogram
from hybridplan.sim.bound.trie import Trie
from hybridplan.sim.cell import Row, replay_cell, time_ask
from hybridplan.sim.policies import EVERY, parse_policy
from hybridplan.sim.prepared import memory_bytes, open_settings_trace, wanted
from hybridplan.sim.replay import Progress
from hybridplan.sim.settings import Value, canonical
from hybridplan.sim.time.load import other_card
from hybridplan.sim.time.result import TimeResult
from hybridplan.sim.time.slo import Slo
from hybridplan.sim.traces.facts import TraceInfo

SCHEMA_VERSION = 1
PLACED_STATES = (1, 2, 4, 8, 16, 32)
_MOST_PLACES = 4096
Watch = Callable[[str, Progress, int | None], None]


@dataclass(frozen=True, slots=True)
class CompareAsk:
    """``settings`` are those of a configuration (trace, model, memory, flags) less the engine.

    Each policy's latencies are judged by ``slo``; with a calibration, ``baseline`` replays each
    again without hits, to tell what they are worth in time.
    """

    settings: Mapping[str, object]
    policies: Sequence[str] = EVERY
    bounds: bool = True
    slo: Slo | None = None
    baseline: bool = True


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy's row, or the sentence with which its engine refused to start.

    ``of_best`` is its hit tokens over the best any cache of this memory can reach. ``time`` is what
    ``simulate`` says of it, with a calibration or an SLO. With a calibration ``steps_ahead`` counts
    the steps in flight while its next one is planned, as modelled: with 0 (SGLang, whose overlap
    is not) the very next step sees an arrival.
    """

    policy: str
    row: Row | None
    refused: str | None
    of_best: float | None = None
    time: TimeResult | None = None
    steps_ahead: int | None = None

    @property
    def keeps_slo(self) -> bool | None:
        """None where there is no SLO, or no row."""
        found = self.time.attained if self.time is not None else None
        return found.kept if found is not None else None


@dataclass(frozen=True, slots=True)
class Best:
    """What no cache of this memory can exceed, in prompt tokens of the whole trace.

    ``infinite``: nothing is ever forgotten. ``kv``: optimal eviction (Belady by bytes) if the
    memory held nothing but KV. ``states``: a bound for the memory full
    of states, whatever the KV; None for a model without them. ``hit_tokens`` is the smallest.
    ``kv_tokens`` and ``state_slots`` are what the memory holds of each alone (None: unlimited).
    ``ordered``: requests run in the trace's order. Where they do not, what eviction loses depends
    on the order each engine found: there ``infinite`` is that of the best order, and ``kv`` and
    ``states`` are None.
    """

    prompt_tokens: int
    kv_tokens: int | None
    state_slots: int | None
    infinite_hit_tokens: int
    kv_hit_tokens: int | None
    states_hit_tokens: int | None
    hit_tokens: int
    ordered: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """The best places for ``states`` checkpoints on one sequence that every request of the trace
    would follow as far as it repeats earlier ones: positions in tokens and the share they save."""

    states: int
    positions_tokens: tuple[int, ...]
    saved_tokens: int
    saved_share: float


@dataclass(frozen=True, slots=True)
class CompareResult:
    """Everything ``hybridplan compare`` prints. ``best`` is None where the trace has none."""

    schema_version: int
    trace: TraceInfo
    model: str
    settings: Mapping[str, Value]
    memory_bytes: int | None
    arrival: str
    rows: tuple[Compared, ...]
    best: Best | None
    placements: tuple[Placed, ...]
    assumptions: tuple[str, ...]
    interrupted: bool


def compare(
    ask: CompareAsk, *, watch: Watch | None = None, executor: Executor | None = None
) -> CompareResult:
    """Replay the trace under each policy and bound it.

    ``executor`` replays policies side by side; ``watch`` is called as they go without one. Ctrl-C
    returns the rows that are done, marked interrupted. Raises InputError for settings that no
    engine knows, a trace that cannot be read, or a clock and an SLO that do not go together.
    """
    names = tuple(dict.fromkeys(parse_policy(name).name for name in ask.policies))
    if not names:
        raise InputError("no policy to compare; name one or more with --policies")
    if "engine" in ask.settings:
        raise InputError("compare replays several engines; choose them with --policies")
    _refuse_unknown(ask.settings, names)
    common, _ = canonical({**ask.settings, "engine": "marconi"})
    spec = load(str(wanted(common, "model")))
    timing = time_ask(common, spec, ask.slo)
    timing.check(parse_arrival(str(common["arrival"])))
    memory = memory_bytes(common, spec)
    trace = open_settings_trace(common)
    each = {name: _at(ask.settings, name, memory) for name in names}
    rows, interrupted = _rows(each, ask, spec, watch, executor)
    best: Best | None = None
    placements: tuple[Placed, ...] = ()
    said: list[str] = []
    if not interrupted:
        try:
            trie = Trie(trace.requests(), spare_tokens=0)
            best, placements = _best(trie, spec, common, memory), _placements(trie)
        except KeyboardInterrupt:
            interrupted = True
        except HybridplanError as error:
            said.append(f"no bounds: {error.sentence}")
    if common.get("gpu") is not None and common.get("kv_memory") is None:
        said.append("the memory is what vLLM's defaults leave on the card, given to every policy")
        if timing.calibration is not None:
            said += other_card(timing.calibration, str(common["gpu"]))
    rows = tuple(_against(row, best) for row in rows)
    shown = {**common, **{n: v for found in each.values() for n, v in found.items()}}
    shown = {n: v for n, v in shown.items() if n not in ("engine", "kv_memory")}
    return CompareResult(
        schema_version=SCHEMA_VERSION,
        trace=trace.info,
        model=spec.name,
        settings=shown,
        memory_bytes=memory,
        arrival=str(common["arrival"]),
        rows=rows,
        best=best,
        placements=placements,
        assumptions=tuple(said),
        interrupted=interrupted,
    )


def _refuse_unknown(settings: Mapping[str, object], names: Sequence[str]) -> None:
    """A setting that none of the policies has would silently change nothing."""
    foreign = [set(canonical({**settings, "engine": name})[1]) for name in names]
    lost = set.intersection(*foreign)
    if lost:
        raise InputError(
            f"{', '.join(sorted(lost))} is a setting of none of {', '.join(names)}; drop it"
        )


def _at(settings: Mapping[str, object], name: str, memory: int | None) -> dict[str, Value]:
    """The settings of one policy, its memory in bytes instead of by card."""
    sized = {
        key: value
        for key, value in settings.items()
        if memory is None or key not in ("memory_utilization", "weights_memory")
    }
    return canonical({**sized, "engine": name, "kv_memory": memory})[0]


def _rows(
    each: Mapping[str, dict[str, Value]],
    ask: CompareAsk,
    spec: ModelSpec,
    watch: Watch | None,
    executor: Executor | None,
) -> tuple[tuple[Compared, ...], bool]:
    found: list[Compared] = []
    how = ask.bounds, ask.slo, ask.baseline
    try:
        if executor is not None:
            futures = [executor.submit(_cell, settings, *how) for settings in each.values()]
            found.extend(future.result() for future in futures)
            return tuple(found), False
        for number, (name, settings) in enumerate(each.items(), 1):
            stage = f"{name}, {number} of {len(each)}"
            found.append(_cell(settings, *how, spec, _seen(watch, stage)))
    except KeyboardInterrupt:
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
        return tuple(found), True
    return tuple(found), False


def _seen(watch: Watch | None, stage: str) -> Callable[[Progress], None] | None:
    return None if watch is None else lambda progress: watch(stage, progress, None)


def _cell(
    settings: dict[str, Value],
    bounds: bool,
    slo: Slo | None,
    baseline: bool,
    spec: ModelSpec | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Compared:
    name = str(settings["engine"])
    try:
        found = replay_cell(
            settings, spec=spec, bounds=bounds, progress=progress, slo=slo, baseline=baseline
        )
    except HybridplanError as error:
        return Compared(name, None, error.sentence)
    return Compared(name, found.row, None, time=found.time, steps_ahead=found.steps_ahead)


def _against(found: Compared, best: Best | None) -> Compared:
    if found.row is None or best is None or not best.hit_tokens:
        return found
    share = found.row.hit_tokens / best.hit_tokens
    return replace(found, of_best=share)


def _best(trie: Trie, spec: ModelSpec, settings: Mapping[str, Value], memory: int | None) -> Best:
    ordered = parse_arrival(str(settings["arrival"])) == Closed(1)
    kv_tokens = slots = None
    if ordered and memory is not None:
        token_bytes, state_bytes = _least_bytes(spec, settings)
        kv_tokens = int(memory // token_bytes) if token_bytes else None
        slots = memory // state_bytes if state_bytes else None
    found = cache_bounds(trie, kv_tokens, slots, ordered=ordered)
    return Best(
        prompt_tokens=found.prompt_tokens,
        kv_tokens=kv_tokens,
        state_slots=slots,
        infinite_hit_tokens=found.infinite_hit_tokens,
        kv_hit_tokens=found.kv_hit_tokens,
        states_hit_tokens=found.state_hit_tokens,
        hit_tokens=found.hit_tokens,
        ordered=ordered,
    )


def _least_bytes(spec: ModelSpec, settings: Mapping[str, Value]) -> tuple[Fraction, int]:
    """Fewest bytes a token's KV and a state can take on a rank, whatever the engine pads.

    Windowed KV is left out: old tokens lose theirs. A bound may charge too little, never too much.
    """
    deployment = Deployment(
        "sglang",
        **{n: settings[n] for n in ("tp", "pp", "dcp", "kv_dtype", "state_dtype", "conv_dtype")
           if settings.get(n) is not None},  # type: ignore[arg-type]
    )  # fmt: skip
    layers = model_caches(spec, deployment)
    token_bytes = sum(
        (
            Fraction(cache.bytes_per_entry, cache.tokens_per_entry * cache.context_ranks)
            for layer in layers
            for cache in layer.tokens
            if cache.window is None
        ),
        Fraction(0),
    )
    return token_bytes, sum(slot_bytes(layers))


def _placements(trie: Trie) -> tuple[Placed, ...]:
    deepest = max(trie.infinite_hits(), default=0)
    if not deepest:
        return ()
    grid = -(-deepest // _MOST_PLACES)
    overlaps = overlap_histogram(trie, grid)
    found = []
    for states in PLACED_STATES:
        placement = optimal_placement(overlaps, states)
        found.append(
            Placed(
                states,
                tuple(position * grid for position in placement.positions),
                placement.saved_tokens * grid,
                placement.saved_share,
            )
        )
        if placement.saved_share >= 1:
            break
    return tuple(found)
