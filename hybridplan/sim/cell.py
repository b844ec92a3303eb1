"""One configuration over one trace: the row a comparison prints and a sweep stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from fractions import Fraction
from typing import Any

from hybridplan.config.find import load
from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.calibration import read_calibration
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.memory import VLLM_UTILISATION
from hybridplan.ledger.planning.ask import MemoryAsk, VllmAsk, pool_memory
from hybridplan.ledger.planning.sglang import SGLANG_FRACTION
from hybridplan.ledger.sglang.options import SglangOptions
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.sim.arrival import Timed, parse_arrival, parse_rate
from hybridplan.sim.marconi.from_model import costs_of
from hybridplan.sim.marconi.replayed import MarconiConfig, Mode, ReplayedMarconi
from hybridplan.sim.marconi.replayed import Policy as MarconiPolicy
from hybridplan.sim.outcome import Summary
from hybridplan.sim.policies import Policy, parse_policy
from hybridplan.sim.replay import Engine, Progress, Replay
from hybridplan.sim.request import Request
from hybridplan.sim.run import clocked_requests
from hybridplan.sim.settings import TRACE_OPTIONS, Settings, Value
from hybridplan.sim.setup import EngineAsk, SglangFlags, VllmFlags, build
from hybridplan.sim.sglang.replayed import ReplayedSglang
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.clock import StepClock
from hybridplan.sim.time.load import assumptions as clock_assumptions
from hybridplan.sim.time.load import flop_dtype, step_clock
from hybridplan.sim.time.stopwatch import Stopwatch
from hybridplan.sim.traces.trace import Trace, open_trace
from hybridplan.sim.vllm.keys import Reading

_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Row:
    """What one policy did with a trace. Tokens are prompt tokens of the requests served.

    ``upper_hit_tokens`` is the other reading where the trace is too coarse for the block
    (``exact`` False), None where there is none or it was not asked for. ``lost`` gives tokens by
    cause and sums to ceiling - hit. ``states_kept`` counts states over the whole replay,
    ``states_hit`` those that served a hit at least once. ``memory_bytes`` None: unlimited.
    ``pool`` says what the memory holds, ``evicted`` what ``evictions`` counts. ``held_bytes`` can
    be hit when the replay ends. Seconds exist with timed arrival or a calibration, those from
    ``ttft_p50_s`` on with a calibration only: as in ``sim.time.result``, and ``busy_s`` the time in
    steps, ``spared_s`` what the hits' own prefill would have added to it, both on one rank.
    """

    policy: str
    rules: str
    requests: int
    refused: int
    requests_hit: int
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int
    kv_hit_tokens: int
    exact: bool
    upper_hit_tokens: int | None
    ceiling_tokens: int | None
    lost: Mapping[str, int]
    has_states: bool
    states_kept: int
    states_hit: int
    bytes_per_state: int
    memory_bytes: int | None
    pool: str
    num_blocks: int | None
    bytes_per_block: int
    block_tokens: int
    state_slots: int | None
    hit_alignment_tokens: int
    held_bytes: int
    evictions: int
    evicted: str
    steps: int
    peak_running: int
    peak_waiting: int
    preemptions: int
    recomputed_tokens: int
    waited_s: float | None
    elapsed_s: float | None
    assumptions: tuple[str, ...]
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    ttft_mean_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p99_s: float | None = None
    busy_s: float | None = None
    spared_s: float | None = None

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Row:
        """The row a JSON document was made of; one written before there were times has none. Raises
        KeyError for a missing field."""
        values = {
            field.name: document[field.name]
            for field in fields(cls)
            if field.default is MISSING or field.name in document
        }
        values["assumptions"] = tuple(values["assumptions"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A policy that can be replayed: ``make(reading, losses)`` gives a fresh engine."""

    policy: Policy
    rules: str
    deployment: Deployment
    make: Callable[[Reading, bool], Engine]
    reads_both: bool
    has_states: bool
    memory_bytes: int | None
    pool: str
    num_blocks: int | None
    bytes_per_block: int
    block_tokens: int
    state_slots: int | None
    hit_alignment_tokens: int
    assumptions: tuple[str, ...]


def run_cell(
    settings: Settings,
    *,
    spec: ModelSpec | None = None,
    requests: Callable[[], Iterable[Request]] | None = None,
    bounds: bool = False,
    losses: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Row:
    """Replay one configuration.

    Args:
        settings: canonical ones (``settings.canonical``), with a model and a trace.
        spec, requests: the model and the trace, where the caller has them already.
        bounds: replay again for the upper reading where the trace is coarser than the block.
        losses: track ceiling and causes.

    Raises InputError and RefusalError as the engine's flags and memory demand.
    """
    spec = spec or load(str(wanted(settings, "model")))
    prepared = prepare(settings, spec)
    arrival = parse_arrival(str(settings["arrival"]))
    if requests is None:
        trace = open_settings_trace(settings)
        gap = settings.get("session_gap")
        gap_s = float(gap) if gap is not None else None

        def requests() -> Iterable[Request]:
            return clocked_requests(trace, arrival, gap_s)

    timing = time_ask(settings, spec)
    timing.check(arrival)
    if timing.rate is not None and isinstance(arrival, Timed):
        arrival = replace(arrival, speed=timing.rate.of(requests()))
    clock = None
    if timing.calibration is not None:
        clock = step_clock(timing.calibration, spec, prepared.deployment)

    def replayed(reading: Reading, losses: bool) -> tuple[Replay, Stopwatch]:
        engine = prepared.make(reading, losses)
        replay = Replay(requests(), engine, arrival=arrival, clock=clock, progress=progress)
        watch = Stopwatch(clock=clock)
        for outcome in replay:
            watch.see(outcome)
        return replay, watch

    replay, watch = replayed(Reading.LOWER, losses)
    summary = replay.summary()
    upper = None
    if bounds and prepared.reads_both and not summary.exact_identity:
        upper = replayed(Reading.UPPER, False)[0].summary().hit_tokens
    row = _row(prepared, replay.engine, summary, upper)
    return row if clock is None else _timed(row, clock, spec, replay, watch)


def time_ask(settings: Settings, spec: ModelSpec) -> TimeAsk:
    """What a configuration asks of time. Raises InputError for what is no calibration or rate."""
    name, rate = settings.get("calibration"), settings.get("rate")
    return TimeAsk(
        calibration=read_calibration(str(name), flop_dtype(spec)) if name is not None else None,
        calibration_name=str(name or ""),
        rate=parse_rate(str(rate)) if rate is not None else None,
    )


def _timed(
    row: Row, clock: StepClock, spec: ModelSpec, replay: Replay, watch: Stopwatch
) -> Row:  # fmt: skip
    """The row with its times."""
    found, server = watch.latencies(), replay.server
    said = clock_assumptions(clock, spec, replay.engine)
    row = replace(row, assumptions=(*row.assumptions, *said))
    if found is None or server is None:
        return row
    unit = clock.ticks_per_s
    return replace(
        row,
        ttft_p50_s=found.ttft.p50_s,
        ttft_p99_s=found.ttft.p99_s,
        ttft_mean_s=found.ttft.mean_s,
        tpot_p50_s=found.tpot.p50_s if found.tpot else None,
        tpot_p99_s=found.tpot.p99_s if found.tpot else None,
        busy_s=server.busy / unit,
        spared_s=watch.hit_ticks / unit,
    )


def open_settings_trace(settings: Settings) -> Trace:
    """The trace of a configuration, opened with its options."""
    options = {name: settings[name] for name in TRACE_OPTIONS if name in settings}
    if "clock" in options:
        options["clock_scope"] = options.pop("clock")
    return open_trace(str(wanted(settings, "trace")), **options)  # type: ignore[arg-type]


def wanted(settings: Settings, name: str) -> Value:
    """A setting that must be there. Raises InputError naming it."""
    if settings.get(name) is None:
        raise InputError(f"a configuration needs a {name}; give --{name.replace('_', '-')}")
    return settings[name]


def prepare(settings: Settings, spec: ModelSpec) -> Prepared:
    """Plan the engine of a configuration. Raises as the engine's flags and memory demand."""
    policy = parse_policy(str(settings["engine"]))
    if policy.family == "marconi":
        return _marconi(policy, settings, spec)
    ask = engine_ask(settings, spec)
    built = build(ask)
    setup = built.setup
    memory = setup.memory.available_bytes if setup.memory else None
    if setup.memory is None and setup.num_blocks is not None:
        memory = setup.num_blocks * setup.bytes_per_block
    slots = setup.settings.get("state_slots")
    pool = f"{setup.num_blocks:,} blocks" if setup.num_blocks is not None else "unlimited"
    if slots is not None:
        pool = f"{(setup.num_blocks or 0) * setup.block_tokens:,} KV tokens, {slots:,} states"
    return Prepared(
        policy=policy,
        deployment=ask.deployment,
        rules=setup.rules + (f" {setup.policy}" if setup.policy != "engine" else ""),
        make=lambda reading, losses: built.engine(reading, losses=losses),
        reads_both=built.reads_both,
        has_states=setup.has_states,
        memory_bytes=memory,
        pool=pool,
        num_blocks=setup.num_blocks,
        bytes_per_block=setup.bytes_per_block,
        block_tokens=setup.block_tokens,
        state_slots=int(slots) if slots is not None else None,
        hit_alignment_tokens=setup.hit_alignment_tokens,
        assumptions=setup.assumptions,
    )


def engine_ask(settings: Settings, spec: ModelSpec) -> EngineAsk:
    """The question ``simulate`` would ask for a configuration of vLLM or SGLang."""
    policy = parse_policy(str(settings["engine"]))
    get: Callable[[str], Any] = settings.get
    deployment = _deployment(settings, "vllm" if policy.family == "vllm" else "sglang")
    if policy.family == "vllm":
        fallback = VLLM_UTILISATION
        flags: VllmFlags | SglangFlags = _vllm_flags(policy, settings)
    else:
        fallback = SGLANG_FRACTION
        ratio, host = get("mamba_full_memory_ratio"), get("hicache_ratio")
        options = _given(
            strategy=policy.choice,
            ratio=Fraction(ratio) if ratio is not None else None,
            slots=get("max_mamba_cache_size"),
            max_running_requests=get("max_running_requests"),
            context_tokens=get("max_model_len"),
            page_tokens=get("page_size"),
            track_interval_tokens=get("mamba_track_interval"),
            host_ratio=Fraction(host) if host is not None else None,
            host_bytes=get("hicache_size"),
        )
        more = _given(
            chunked_prefill_tokens=get("chunked_prefill_size"),
            max_states_per_path=get("mamba_max_states_per_path"),
        )
        flags = SglangFlags(SglangOptions(**options), **more)
    return EngineAsk(spec, deployment, flags, _memory(settings, fallback))


def _vllm_flags(policy: Policy, settings: Settings) -> VllmFlags:
    get: Callable[[str], Any] = settings.get
    options = _given(
        max_model_len=get("max_model_len"),
        prefix_caching=get("prefix_caching"),
        prefix_match_unit=get("prefix_match_unit"),
        block_tokens=get("block_size"),
        attention_backend=get("attention_backend"),
        draft_method=get("draft_method"),
    )
    interval = get("prefix_cache_retention_interval")
    accepted = get("accepted_drafts")
    return VllmFlags(
        options=VllmOptions(**options),
        retention_interval=None if interval == "none" else int(interval or 0),
        policy="all" if policy.choice == "all" else "engine",
        **_given(
            max_num_seqs=get("max_num_seqs"),
            max_num_batched_tokens=get("max_num_batched_tokens"),
            num_blocks=get("num_blocks"),
            shared_prefix_checkpoint=get("enable_mamba_shared_prefix_checkpoint"),
            watermark=get("watermark"),
            accepted_drafts=tuple(map(int, accepted.split("/"))) if accepted else None,
        ),
    )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _deployment(settings: Settings, engine: str) -> Deployment:
    policy = parse_policy(str(settings["engine"]))
    names = ("tp", "pp", "dcp", "kv_dtype", "state_dtype", "conv_dtype", "drafts")
    chosen: dict[str, Any] = _given(**{name: settings.get(name) for name in names})
    return Deployment(engine, policy.version, **chosen)  # type: ignore[arg-type]


def _memory(settings: Settings, utilisation: float) -> MemoryAsk | None:
    get: Callable[[str], Any] = settings.get
    if get("gpu") is None and get("kv_memory") is None:
        return None
    asked = get("memory_utilization")
    return MemoryAsk(
        gpu=find_gpu(get("gpu")) if get("gpu") is not None else None,
        kv_memory_bytes=get("kv_memory"),
        utilisation=utilisation if asked is None else asked,
        weights_bytes=get("weights_memory"),
    )


def memory_bytes(settings: Settings, spec: ModelSpec) -> int | None:
    """Bytes a rank has for its cache with vLLM's defaults; None where no memory is given."""
    ask = _memory(settings, VLLM_UTILISATION)
    if ask is None:
        return None
    deployment = _deployment({**settings, "engine": "vllm"}, "vllm")
    question = VllmAsk(spec, deployment, VllmOptions(), ask).resolved()
    tokens, seqs = question.max_num_batched_tokens or 0, question.max_num_seqs or 0
    return pool_memory(ask, spec, deployment, tokens, seqs).available_bytes


def _marconi(policy: Policy, settings: Settings, spec: ModelSpec) -> Prepared:
    get: Callable[[str], Any] = settings.get
    deployment = _deployment(settings, "sglang")
    if any(cache.window for layer in model_caches(spec, deployment) for cache in layer.tokens):
        raise InputError(
            f"Marconi knows no windows and {spec.name} has windowed attention, whose old tokens it"
            " would keep; compare it under vllm policies"
        )
    costs = costs_of(spec, deployment)
    if not costs.state_bytes:
        raise InputError(
            f"{spec.name} has no recurrent state, and where to keep those is all Marconi decides;"
            " compare it under vllm policies"
        )
    memory = memory_bytes(settings, spec)
    baseline = policy.choice in ("sglang+", "vllm+")
    kind: MarconiPolicy = "marconi"
    if policy.choice == "alpha":
        kind = "static_alpha"
    elif policy.choice == "sglang+":
        kind = "sglang+"
    elif policy.choice == "vllm+":
        kind = "vllm+"
    mode: Mode = "artifact" if baseline or policy.choice == "artifact" else "paper"
    config = MarconiConfig(
        costs=costs,
        capacity_bytes=memory or _UNLIMITED_BYTES,
        policy=kind,
        mode=mode,
        alpha=policy.alpha,
        **_given(
            bootstrap_multiplier=get("bootstrap_multiplier"),
            block_tokens=get("marconi_block"),
            chunk_tokens=get("marconi_chunk"),
        ),
    )
    said = ["requests are served one after another and nothing running takes memory"]
    if mode == "artifact":
        said.append("the artifact may hold more than its capacity")
    return Prepared(
        policy=policy,
        deployment=deployment,
        rules=f"marconi {mode}" + (f" {policy.choice}" if baseline else ""),
        make=lambda _reading, losses: ReplayedMarconi(config, attribute_losses=losses),
        reads_both=False,
        has_states=True,
        memory_bytes=memory,
        pool="unlimited" if memory is None else "bytes",
        num_blocks=None,
        bytes_per_block=costs.kv_bytes_per_token,
        block_tokens=config.block_tokens if kind == "vllm+" else 1,
        state_slots=None,
        hit_alignment_tokens=config.block_tokens if kind == "vllm+" else 1,
        assumptions=tuple(said),
    )


def _row(prepared: Prepared, engine: Engine, summary: Summary, upper: int | None) -> Row:
    use = summary.use
    held = use.cached_blocks * prepared.bytes_per_block
    evicted = "blocks"
    if isinstance(engine, ReplayedSglang):
        held += engine.cache.tree.states_evictable * use.states.bytes_per_state
        evicted = "nodes"
    elif isinstance(engine, ReplayedMarconi):
        held, evicted = engine.totals().bytes, "rounds"
    said = [line for line in summary.assumptions if not line.startswith("arrival ")]
    return Row(
        policy=prepared.policy.name,
        rules=prepared.rules,
        requests=summary.requests,
        refused=summary.refused,
        requests_hit=summary.requests_hit,
        prompt_tokens=summary.prompt_tokens,
        output_tokens=summary.output_tokens,
        hit_tokens=summary.hit_tokens,
        kv_hit_tokens=summary.kv_hit_tokens,
        exact=summary.exact_identity,
        upper_hit_tokens=upper,
        ceiling_tokens=summary.ceiling_tokens,
        lost={cause.value: tokens for cause, tokens in summary.lost},
        has_states=prepared.has_states,
        states_kept=use.states.kept,
        states_hit=use.states.ever_hit,
        bytes_per_state=use.states.bytes_per_state,
        memory_bytes=prepared.memory_bytes,
        pool=prepared.pool,
        num_blocks=prepared.num_blocks,
        bytes_per_block=prepared.bytes_per_block,
        block_tokens=prepared.block_tokens,
        state_slots=prepared.state_slots,
        hit_alignment_tokens=prepared.hit_alignment_tokens,
        held_bytes=held,
        evictions=use.evictions,
        evicted=evicted,
        steps=summary.steps,
        peak_running=summary.peak_running,
        peak_waiting=summary.peak_waiting,
        preemptions=summary.preemptions,
        recomputed_tokens=summary.recomputed_tokens,
        waited_s=summary.waited_s,
        elapsed_s=summary.elapsed_s,
        assumptions=(*prepared.assumptions, *said),
    )
