"""A configuration's engine, planned: what a cell replays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.memory import VLLM_UTILISATION
from hybridplan.ledger.planning.ask import MemoryAsk, VllmAsk, pool_memory
from hybridplan.ledger.planning.sglang import SGLANG_FRACTION
from hybridplan.ledger.sglang.options import SglangOptions
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.sim.marconi.from_model import costs_of
from hybridplan.sim.marconi.replayed import MarconiConfig, Mode, ReplayedMarconi
from hybridplan.sim.marconi.replayed import Policy as MarconiPolicy
from hybridplan.sim.policies import Policy, parse_policy
from hybridplan.sim.replay import Engine
from hybridplan.sim.request import Request
from hybridplan.sim.settings import TRACE_OPTIONS, Settings, Value
from hybridplan.sim.setup import EngineAsk, SglangFlags, VllmFlags, build
from hybridplan.sim.time.answer import UNLIKE, hitless, unlike
from hybridplan.sim.traces.trace import Trace, open_trace
from hybridplan.sim.vllm.keys import Reading

_UNLIMITED_BYTES = 1 << 60
Requests: TypeAlias = "Callable[[], Iterable[Request]]"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A policy that can be replayed: ``make(reading, losses)`` gives a fresh engine.

    ``without_hits(requests)``: how hits are taken away, and an engine and requests without any.
    """

    policy: Policy
    rules: str
    spec: ModelSpec
    deployment: Deployment
    make: Callable[[Reading, bool], Engine]
    without_hits: Callable[[Requests], tuple[str, Engine, Iterable[Request]]]
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
        spec=spec,
        deployment=ask.deployment,
        rules=setup.rules + (f" {setup.policy}" if setup.policy != "engine" else ""),
        make=lambda reading, losses: built.engine(reading, losses=losses),
        without_hits=partial(hitless, ask),
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

    def make(_reading: Reading, losses: bool) -> Engine:
        return ReplayedMarconi(config, attribute_losses=losses)

    said = ["requests are served one after another and nothing running takes memory"]
    if mode == "artifact":
        said.append("the artifact may hold more than its capacity")
    return Prepared(
        policy=policy,
        spec=spec,
        deployment=deployment,
        rules=f"marconi {mode}" + (f" {policy.choice}" if baseline else ""),
        make=make,
        without_hits=lambda requests: (UNLIKE, make(Reading.LOWER, False), unlike(requests())),
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
