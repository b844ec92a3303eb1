"""Flags of vLLM and SGLang that get more out of a trace than the defaults, each really replayed.

One flag is moved at a time, best value first kept, until no flag gains any more. Work is bounded
by the flags and by the requests searched over, never by the clock; what is recommended is replayed
over the whole trace and dropped if the defaults do better there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import HybridplanError, InputError
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.planning import sglang as sglang_planning
from hybridplan.ledger.planning import vllm as vllm_planning
from hybridplan.ledger.planning.ask import VllmAsk
from hybridplan.ledger.planning.sglang import SglangAsk
from hybridplan.sim.cell import Row, run_cell
from hybridplan.sim.launch import launch_command, launch_flag, spelt
from hybridplan.sim.outcome import LossCause
from hybridplan.sim.policies import parse_policy
from hybridplan.sim.prepared import engine_ask, open_settings_trace, prepare
from hybridplan.sim.replay import Progress
from hybridplan.sim.settings import Value, canonical
from hybridplan.sim.setup import VllmFlags, build
from hybridplan.sim.sweep.grid import model_of
from hybridplan.sim.traces.facts import TraceInfo

SCHEMA_VERSION = 1
ENGINES = ("vllm@0.33", "sglang:auto")
SEARCHED_REQUESTS = 2000
LEAST_GAIN = 0.001
"""Of the prompt tokens; a flag that gains less is not set."""
FINE_UNIT_TOKENS = 64
PRICES = {
    "prefix_cache_retention_interval": "more blocks hold states or windows",
    "max_num_batched_tokens": "prefill steps of another size, which changes speed",
    "prefix_match_unit": "more hashes, and partial blocks are copied",
    "chunked_prefill_size": "prefill steps of another size, which changes speed",
    "mamba_full_memory_ratio": "KV and states share the memory otherwise",
}
_ROUNDS = 2
_LENGTH_STEP = 1024
_FEWER_SEQS = (128, 64, 32, 16, 8, 4, 2, 1)
Watch = Callable[[str, Progress, int | None], None]


@dataclass(frozen=True, slots=True)
class RecommendAsk:
    """``settings`` are a configuration's without the engine. ``concurrency``: requests of the
    trace's mean length that must fit at once; None: half of what the defaults hold.
    ``searched``: requests the search replays; the winner is replayed over all."""

    settings: Mapping[str, object]
    engines: Sequence[str] = ENGINES
    concurrency: int | None = None
    searched: int = SEARCHED_REQUESTS


@dataclass(frozen=True, slots=True)
class Option:
    """One set of flags and what to expect of it. ``concurrency`` counts requests of the trace's
    mean length that fit at once; ``memory_bytes`` is the cache's on a rank."""

    settings: Mapping[str, Value]
    command: str
    row: Row
    concurrency: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Change:
    """A flag that differs from the defaults; ``gain`` is the hit rate it added when it was set,
    ``price`` what it costs besides memory, "" where nothing is known to. ``default`` None: the
    engine's own choice has no number (no unit smaller than the block)."""

    setting: str
    flag: str
    default: Value
    value: Value
    gain: float
    price: str


@dataclass(frozen=True, slots=True)
class Better:
    """What would beat the recommended flags, at a price: the replayed hit rate with it.
    ``bytes`` is further memory on a rank, 0 where it costs something else."""

    what: str
    price: str
    bytes: int
    hit_rate: float


@dataclass(frozen=True, slots=True)
class Recommended:
    """One engine's answer. ``default`` None: it does not start with its defaults, ``refused`` says
    why; ``best`` None: nor with any flags tried. ``tried`` counts replays of the search."""

    engine: str
    default: Option | None
    best: Option | None
    refused: str | None
    changes: tuple[Change, ...]
    better: tuple[Better, ...]
    tried: int
    note: str


@dataclass(frozen=True, slots=True)
class RecommendResult:
    """Everything ``hybridplan recommend`` prints; engines in the order asked."""

    schema_version: int
    trace: TraceInfo
    model: str
    arrival: str
    mean_request_tokens: int
    searched_requests: int
    whole_trace_searched: bool
    engines: tuple[Recommended, ...]
    assumptions: tuple[str, ...]


def recommend(
    ask: RecommendAsk, *, watch: Watch | None = None, executor: Executor | None = None
) -> RecommendResult:
    """Search flags for each engine. ``executor`` replays values of a flag side by side.

    Raises InputError without a memory to plan for, for a card nobody knows, or for an engine with
    nothing to set.
    """
    common, _ = canonical({**ask.settings, "engine": "vllm"})
    if common.get("gpu") is None and common.get("kv_memory") is None:
        raise InputError("recommend needs a memory: name a card with --gpu or a size, --kv-memory")
    if common.get("gpu") is not None:
        find_gpu(str(common["gpu"]))
    if "engine" in ask.settings:
        raise InputError("recommend searches engines; choose them with --engines")
    if ask.searched < 1 or (ask.concurrency is not None and ask.concurrency < 1):
        raise InputError("--search-requests and --concurrency must be 1 or more")
    spec = model_of(str(common["model"]))
    trace = open_settings_trace(common)
    requests = total = longest = 0
    unit = 1
    for request in trace.requests():
        tokens = request.prompt.length_tokens + request.output_tokens
        requests, total, longest = requests + 1, total + tokens, max(longest, tokens)
        unit = max(unit, request.prompt.unit_tokens)
    mean = max(total // requests, 1)
    facts = _Facts(spec, mean, longest, unit, requests <= ask.searched)
    found = tuple(
        _Search(ask, parse_policy(name).name, facts, watch, executor).run() for name in ask.engines
    )
    said = []
    if unit > FINE_UNIT_TOKENS:
        said.append(
            f"the trace knows prompts every {unit:,} tokens only: hash units and dtypes are not"
            " searched, and flags are ranked by the middle of both readings"
        )
    return RecommendResult(
        schema_version=SCHEMA_VERSION,
        trace=trace.info,
        model=spec.name,
        arrival=str(common["arrival"]),
        mean_request_tokens=mean,
        searched_requests=min(requests, ask.searched),
        whole_trace_searched=facts.whole,
        engines=found,
        assumptions=tuple(said),
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    spec: ModelSpec
    mean_tokens: int
    longest_tokens: int
    unit_tokens: int
    whole: bool


class _Search:
    """One engine's flags over one trace."""

    def __init__(
        self,
        ask: RecommendAsk,
        engine: str,
        facts: _Facts,
        watch: Watch | None,
        executor: Executor | None,
    ) -> None:
        policy = parse_policy(engine)
        if policy.family == "marconi" or policy.choice == "all":
            raise InputError(f"{engine} is no engine one can start; use vllm or sglang")
        self._engine, self._family = engine, policy.family
        self._ask, self._facts = ask, facts
        self._watch, self._executor = watch, executor
        self._known: dict[str, Row | None] = {}
        self._refused: str | None = None

    def run(self) -> Recommended:
        """Defaults, search, the whole trace, and what would do better."""
        given = canonical({**self._ask.settings, "engine": self._engine})[0]
        start = self._start(given)
        if start is None:
            return Recommended(self._engine, None, None, self._refused, (), (), 0, "")
        need = self._ask.concurrency
        if need is None:
            need = max(self._concurrency(start) // 2, 1)
        best, gains = self._climb(start, need)
        default = self._option(start)
        note = ""
        if self._family == "sglang" and start.get("kv_memory") is not None:
            note = "SGLang has no flag for a size: set --mem-fraction-static so that this is left"
        found = default if best == start else self._option(best)
        assert default is not None
        if found is None or _score(found.row) < _score(default.row) + LEAST_GAIN:
            if best != start:
                note += (
                    "; " * bool(note)
                    + "what won over the first requests does not over the whole trace"
                )
            found, best = default, start
        changes = tuple(
            self._change(start, name, value, gains.get(name, 0.0))
            for name, value in best.items()
            if start.get(name) != value
        )
        return Recommended(
            engine=self._engine,
            default=default if start == given else None,
            best=found,
            refused=self._refused if start != given else None,
            changes=changes,
            better=self._better(best, found),
            tried=len(self._known),
            note=note,
        )

    def _change(self, start: Mapping[str, Value], name: str, value: Value, gain: float) -> Change:
        default = start.get(name)
        if name == "engine":
            default, value = self._default("strategy", start), parse_policy(str(value)).choice
        elif default is None:
            default = self._default(name, start)
        flag = launch_flag(self._family, name) or name
        return Change(name, flag, default, value, gain, PRICES.get(name, ""))

    def _default(self, name: str, start: Mapping[str, Value]) -> Value:
        """What the engine takes where the setting is not given."""
        return build(engine_ask(start, self._facts.spec)).setup.settings.get(name)

    def _start(self, given: dict[str, Value]) -> dict[str, Value] | None:
        """The defaults, or where the engine refuses them, the shortest length the trace needs and
        then fewer sequences at once; what was given stays."""
        for changes in self._ways_to_start():
            settings = canonical({**changes, **given})[0]
            try:
                prepare(settings, self._facts.spec)
                self._concurrency(settings)
            except HybridplanError as error:
                self._refused = self._refused or error.sentence
            else:
                return settings
        return None

    def _ways_to_start(self) -> list[dict[str, Value]]:
        short: dict[str, Value] = {"max_model_len": self._longest()}
        fewer = [{**short, "max_num_seqs": seqs} for seqs in _FEWER_SEQS]
        return [{}, short, *(fewer if self._family == "vllm" else ())]

    def _longest(self) -> int:
        steps = -(-(self._facts.longest_tokens + 1) // _LENGTH_STEP)
        most = self._facts.spec.max_tokens or steps * _LENGTH_STEP
        return min(steps * _LENGTH_STEP, most)

    def _climb(
        self, start: dict[str, Value], need: int
    ) -> tuple[dict[str, Value], dict[str, float]]:
        """Coordinate ascent from the defaults, and what each flag gained when it was set.

        Flags that later ones made needless are taken back.
        """
        best, gains = start, dict[str, float]()
        score = self._scores([start])[0] or 0.0
        for _ in range(_ROUNDS):
            before = best
            for name, values in self._axes(start).items():
                tried = [self._with(best, name, value) for value in values]
                tried = [other for other in tried if other != best and self._holds(other, need)]
                for other, got in zip(tried, self._scores(tried), strict=True):
                    if got is not None and got >= score + LEAST_GAIN:
                        gains[name] = gains.get(name, 0.0) + got - score
                        best, score = other, got
            if best == before:
                break
        for name in gains:
            without = self._with(best, name, start.get(name))
            got = self._scores([without])[0] if without != best else None
            if got is not None and got > score - LEAST_GAIN and self._holds(without, need):
                best, score = without, got
        return best, gains

    def _axes(self, start: Mapping[str, Value]) -> dict[str, tuple[Value, ...]]:
        """Flags to move and their values, the default (None) among them."""
        if self._family == "sglang":
            axes: dict[str, tuple[Value, ...]] = {
                "engine": ("sglang:extra_buffer", "sglang:extra_buffer_lazy", "sglang:no_buffer"),
                "mamba_full_memory_ratio": (None, "3/10", "1/2", "2", "4"),
                "chunked_prefill_size": (None, 2048, 4096, 16384),
            }
        else:
            setup = prepare(start, self._facts.spec)
            block = setup.block_tokens
            axes = {
                "prefix_cache_retention_interval": (None, "none", self._span(start, 4)),
                "max_num_batched_tokens": (None, 2 * block, 4096, 8192, 16384),
            }
            if setup.has_states and self._facts.unit_tokens <= FINE_UNIT_TOKENS:
                axes["prefix_match_unit"] = (None, 64, 16)
            if start.get("drafts") and setup.has_states:
                axes["enable_mamba_shared_prefix_checkpoint"] = (None, True)
        chosen = parse_policy(self._engine).choice not in ("", "auto")
        return {
            name: values
            for name, values in axes.items()
            if (not chosen if name == "engine" else start.get(name) is None)
        }

    def _span(self, start: Mapping[str, Value], blocks: int) -> int:
        setup = prepare(start, self._facts.spec)
        return blocks * setup.block_tokens

    def _with(self, settings: Mapping[str, Value], name: str, value: Value) -> dict[str, Value]:
        changed = {k: v for k, v in settings.items() if k != name}
        return canonical(changed if value is None else {**changed, name: value})[0]

    def _holds(self, settings: Mapping[str, Value], need: int) -> bool:
        try:
            return self._concurrency(settings) >= need
        except HybridplanError:
            return False

    def _scores(self, asked: Sequence[dict[str, Value]]) -> list[float | None]:
        """Hit rates over the searched requests, None where the engine refuses; each run once."""
        limited = [self._limited(settings) for settings in asked]
        new = [one for one in limited if repr(sorted(one.items())) not in self._known]
        if self._executor is not None:
            rows: Iterable[Row | None] = self._executor.map(_row_of, new)
        else:
            rows = (_row_of(one, self._seen(one)) for one in new)
        for one, row in zip(new, rows, strict=True):
            self._known[repr(sorted(one.items()))] = row
        found = [self._known[repr(sorted(one.items()))] for one in limited]
        base = next(iter(self._known.values()))
        # Rates of different requests do not compare: one more refused is no gain.
        return [
            _score(row) if row is not None and base is not None and row.refused <= base.refused
            else None
            for row in found
        ]  # fmt: skip

    def _limited(self, settings: Mapping[str, Value]) -> dict[str, Value]:
        """The same over the requests that are searched."""
        limit = self._ask.settings.get("limit")
        most = min(self._ask.searched, int(str(limit))) if limit else self._ask.searched
        return {**settings, "limit": most}

    def _seen(self, settings: Mapping[str, Value]) -> Callable[[Progress], None] | None:
        if self._watch is None:
            return None
        watch, stage = self._watch, f"{self._engine}, try {len(self._known) + 1}"
        return lambda progress: watch(stage, progress, self._ask.searched)

    def _option(self, settings: dict[str, Value]) -> Option | None:
        """A set of flags over the whole trace."""
        key = repr(sorted(self._limited(settings).items()))
        row = self._known.get(key) if self._facts.whole else None
        if row is None:
            row = _row_of(settings, self._seen(settings))
        if row is None:
            return None
        return Option(
            settings=settings,
            command=launch_command(settings),
            row=row,
            concurrency=self._concurrency(settings),
            memory_bytes=row.memory_bytes or 0,
        )

    def _better(self, settings: dict[str, Value], best: Option | None) -> tuple[Better, ...]:
        """The recommended flags with more memory, or with precision given up."""
        if best is None:
            return ()
        memory = best.memory_bytes
        offers: list[tuple[str, str, int, dict[str, Value]]] = []
        lost = best.row.lost
        if best.row.evictions:
            sized = {**settings, "kv_memory": 2 * memory}
            sized = {k: v for k, v in sized.items() if k not in ("gpu", "memory_utilization")}
            offers.append(("twice the cache memory", "", memory, sized))
        # Another dtype is another block, and coarse prompts only tell how its edges fall on theirs.
        fine = self._facts.unit_tokens <= FINE_UNIT_TOKENS
        if fine and best.row.evictions and settings.get("kv_dtype") is None:
            fp8 = {**settings, "kv_dtype": "fp8"}
            offers.append((self._worded("kv_dtype", "fp8"), "KV loses precision", 0, fp8))
        if fine and best.row.has_states and settings.get("state_dtype") is None:
            half = {**settings, "state_dtype": "bfloat16"}
            offers.append(
                (self._worded("state_dtype", "bfloat16"), "states lose precision", 0, half)
            )
        if settings.get("drafts") and lost.get(LossCause.DRAFT_DROP.value):
            offers.append(("no drafts", "no speculation", 0, {**settings, "drafts": 0}))
        found = []
        for what, price, more, changed in offers:
            row = _row_of(canonical(changed)[0])
            if row is not None and _score(row) >= _score(best.row) + LEAST_GAIN:
                found.append(Better(what, price, more, _score(row)))
        return tuple(sorted(found, key=lambda better: -better.hit_rate))

    def _worded(self, name: str, value: str) -> str:
        return f"{launch_flag(self._family, name)} {spelt(name, value)}"

    def _concurrency(self, settings: Mapping[str, Value]) -> int:
        """Requests of the trace's mean length that fit at once, as ``plan`` counts them."""
        ask = engine_ask(settings, self._facts.spec)
        assert ask.memory is not None
        tokens = (self._facts.mean_tokens,)
        if isinstance(ask.flags, VllmFlags):
            plan = vllm_planning.plan(
                VllmAsk(
                    ask.spec, ask.deployment, ask.flags.options, ask.memory,
                    max_num_seqs=ask.flags.max_num_seqs,
                    max_num_batched_tokens=ask.flags.max_num_batched_tokens, costs_at=tokens,
                )
            )  # fmt: skip
            return min(plan.costs[0].concurrent, plan.max_num_seqs)
        split = sglang_planning.plan(
            SglangAsk(ask.spec, ask.deployment, ask.flags.options, ask.memory, costs_at=tokens)
        )
        return min(split.costs[0].concurrent, split.max_running_requests)


def _row_of(
    settings: dict[str, Value], progress: Callable[[Progress], None] | None = None
) -> Row | None:
    try:
        spec = model_of(str(settings["model"]))
        return run_cell(settings, spec=spec, bounds=True, progress=progress)
    except HybridplanError:
        return None


def _score(row: Row) -> float:
    """The hit rate, or the middle of both readings."""
    if row.upper_hit_tokens is None or not row.prompt_tokens:
        return row.hit_rate
    return (row.hit_tokens + row.upper_hit_tokens) / (2 * row.prompt_tokens)
