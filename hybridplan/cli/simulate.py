"""``hybridplan simulate``: what prefix caching does with a trace, and which flag would help."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from hybridplan.cli import engine_options as engine_flag
from hybridplan.cli import flags
from hybridplan.cli import fleet_flags as fleet_flag
from hybridplan.cli import time_options as time_flag
from hybridplan.cli import trace_options as trace_flag
from hybridplan.cli.common import JsonFlag, interrupted, print_json, print_report
from hybridplan.errors import InputError

_ARRIVAL = typer.Option(
    "--arrival",
    help="sequential; closed:N (N in flight); timed (the trace's clock; steps as --calibration has"
    " them) or timed:TOKENS_PER_S:STEP_S (STEP_S + tokens / TOKENS_PER_S; 20000 and 0.005).",
)
_GAP = typer.Option(
    "--session-gap",
    help="Timed: seconds between session starts, where each session has its own clock.",
)
_RETENTION = typer.Option(
    "--prefix-cache-retention-interval",
    help="vLLM: 0 keeps prompt-end and fork states, N every N tokens, none every chunk end.",
)
_SHARED = typer.Option(
    "--enable-mamba-shared-prefix-checkpoint", help="vLLM: a state where prompts part, with MTP."
)
_POLICY = typer.Option("--policy", help="engine, or all: a state at every block (not in vLLM now).")
_WATERMARK = typer.Option("--watermark", help="vLLM: share of the pool kept from waiting requests.")
_ACCEPTED = typer.Option("--accepted-drafts", help="Drafts accepted per verification: 2 or 0,1,2.")
_REPLAY = typer.Option("--replayssm", help="SGLang: off, decode or verify. vLLM: ring length.")
_HOST_RATIO = typer.Option("--hicache-ratio", help="SGLang: host tier over device.")
_HOST_SIZE = typer.Option("--hicache-size", help="SGLang: host tier, as in 64GB.")
_PREFILL = typer.Option("--chunked-prefill-size", help="SGLang: tokens of one prefill step.")
_PATH = typer.Option("--mamba-max-states-per-path", help="SGLang: states on a path at most.")
_TRACK = typer.Option("--mamba-track-interval", help="SGLang: tokens between decode's states.")
_STRATEGY = typer.Option("--mamba-radix-cache-strategy", help="SGLang: auto, no_buffer, ...")
_RATIO = typer.Option("--mamba-full-memory-ratio", help="SGLang: state bytes over KV bytes.")
_SLOTS = typer.Option("--max-mamba-cache-size", help="SGLang: state slots, given.")
_PAGE = typer.Option("--page-size", help="SGLang: tokens of a KV page.")
_BOUNDS = typer.Option(
    "--bounds/--no-bounds", help="Replay again for the upper bound where the trace is coarse."
)
_CAUSES = typer.Option(
    "--causes/--no-causes",
    help="Without: no ceiling, causes or advice; memory bounded by the pool.",
)
_ADVICE = typer.Option("--advice", help="auto, full (re-run the whole trace) or off.")
_PER_REQUEST = typer.Option("--per-request", help="Write outcomes to a .csv, .jsonl or .parquet.")
_EVENTS = typer.Option("--events", help="Write allocations, hits and evictions to a .jsonl.")
_PLOT = typer.Option("--plot", help="Draw hits, pool and losses to a .png, .svg or .pdf file.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate", help="Replay a request trace through the engine's prefix cache.")(
        _simulate
    )


def _simulate(
    trace: trace_flag.Replayed,
    model: flags.ModelOption = "qwen3.5-0.8b",
    engine: flags.Engine = "vllm@0.33",
    gpu: flags.GpuName = None,
    kv_memory: flags.KvMemory = None,
    num_blocks: engine_flag.NumBlocks = None,
    arrival: Annotated[str, _ARRIVAL] = "sequential",
    session_gap: Annotated[float | None, _GAP] = None,
    calibration: time_flag.Calibrated = None,
    rate: time_flag.Rate = None,
    slo: time_flag.Slo = None,
    slo_share: time_flag.SloShare = None,
    find_rate: time_flag.FindRate = False,
    rate_tolerance: time_flag.Tolerance = None,
    baseline: time_flag.Baseline = True,
    replicas: fleet_flag.Replicas = None,
    router: fleet_flag.Router = None,
    router_load: fleet_flag.RouterLoad = None,
    router_cache_threshold: fleet_flag.CacheThreshold = None,
    router_balance_abs: fleet_flag.BalanceAbs = None,
    router_balance_rel: fleet_flag.BalanceRel = None,
    router_index_tokens: fleet_flag.IndexTokens = None,
    find_replicas: fleet_flag.FindReplicas = False,
    most_replicas: fleet_flag.MostReplicas = None,
    prefill_replicas: fleet_flag.PrefillReplicas = None,
    decode_replicas: fleet_flag.DecodeReplicas = None,
    transfer_gb_s: fleet_flag.TransferSpeed = None,
    transfer_latency_ms: fleet_flag.TransferLatency = None,
    host_gib: fleet_flag.HostGib = None,
    host_gb_s: fleet_flag.HostSpeed = None,
    jobs: fleet_flag.Jobs = None,
    scheduler: fleet_flag.Scheduler = None,
    references: fleet_flag.References = True,
    limit: trace_flag.Limit = None,
    advice: Annotated[str, _ADVICE] = "auto",
    bounds: Annotated[bool, _BOUNDS] = True,
    causes: Annotated[bool, _CAUSES] = True,
    per_request: Annotated[Path | None, _PER_REQUEST] = None,
    events: Annotated[Path | None, _EVENTS] = None,
    plot: Annotated[Path | None, _PLOT] = None,
    memory_utilization: flags.Utilisation = None,
    weights_memory: flags.Weights = None,
    activation_memory: flags.Activations = None,
    graph_memory: flags.Graphs = None,
    tp: flags.Tp = 1,
    pp: flags.Pp = 1,
    dcp: flags.Dcp = 1,
    kv_dtype: flags.KvDtype = None,
    state_dtype: flags.StateDtype = None,
    conv_dtype: flags.ConvDtype = None,
    drafts: flags.Drafts = 0,
    draft_method: flags.DraftMethodName = None,
    accepted_drafts: Annotated[str | None, _ACCEPTED] = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.BatchedTokens = None,
    block_size: flags.BlockTokens = None,
    prefix_match_unit: flags.MatchUnit = None,
    prefix_cache_retention_interval: Annotated[str | None, _RETENTION] = None,
    enable_mamba_shared_prefix_checkpoint: Annotated[bool, _SHARED] = False,
    prefix_caching: flags.PrefixCaching = None,
    policy: Annotated[str, _POLICY] = "engine",
    watermark: Annotated[float, _WATERMARK] = 0.0,
    attention_backend: flags.Backend = None,
    async_scheduling: engine_flag.AsyncScheduling = True,
    mamba_radix_cache_strategy: Annotated[str | None, _STRATEGY] = None,
    mamba_full_memory_ratio: Annotated[str | None, _RATIO] = None,
    max_mamba_cache_size: Annotated[int | None, _SLOTS] = None,
    max_running_requests: engine_flag.MaxRunningRequests = None,
    page_size: Annotated[int | None, _PAGE] = None,
    chunked_prefill_size: Annotated[int | None, _PREFILL] = None,
    mamba_max_states_per_path: Annotated[int | None, _PATH] = None,
    mamba_track_interval: Annotated[int | None, _TRACK] = None,
    hicache_ratio: Annotated[str | None, _HOST_RATIO] = None,
    hicache_size: Annotated[str | None, _HOST_SIZE] = None,
    replayssm: Annotated[str | None, _REPLAY] = None,
    format: trace_flag.Format = None,
    block_tokens: trace_flag.BlockTokens = None,
    tail: trace_flag.Tail = None,
    time_unit: trace_flag.Unit = None,
    clock: trace_flag.Clock = None,
    id_scope: trace_flag.IdScope = None,
    tokenizer: trace_flag.Tokenizer = None,
    tokens_per_char: trace_flag.TokensPerChar = None,
    inputs: trace_flag.Inputs = None,
    output_tokens: trace_flag.OutputTokens = None,
    turns: trace_flag.Turns = None,
    subagents: trace_flag.Subagents = True,
    order: trace_flag.Order = "file",
    window: trace_flag.Window = 65536,
    link_sessions: trace_flag.LinkSessions = False,
    drop_empty: trace_flag.DropEmpty = False,
    skip_bad: trace_flag.SkipBad = 0,
    download: flags.Download = False,
    json: JsonFlag = False,
) -> int:
    given = locals()
    from hybridplan.cli.progress import watching
    from hybridplan.config.find import load
    from hybridplan.ledger.deployment import Deployment, parse_engine
    from hybridplan.sim.arrival import parse_arrival
    from hybridplan.sim.export import event_writer, request_writer
    from hybridplan.sim.run import SimulateAsk, run
    from hybridplan.sim.setup import EngineAsk

    if advice not in ("auto", "full", "off"):
        raise InputError(f"--advice {advice!r} is not known; use auto, full or off")
    if num_blocks is not None and kv_memory is not None:
        raise InputError(
            f"--num-blocks {num_blocks} and --kv-memory {kv_memory} both size the pool; give one"
        )
    name, version = parse_engine(engine)
    deployment = Deployment(name, version, tp, pp, dcp, kv_dtype, state_dtype, conv_dtype, drafts)
    arrives = parse_arrival(arrival)
    if plot is not None:
        from hybridplan.report.canvas import check_target

        check_target(plot)
    opened = trace_flag.open_with(trace, given)
    spec = load(model, download=download)
    ask = SimulateAsk(
        engine=EngineAsk(
            spec,
            deployment,
            engine_flag.engine_flags(deployment, given),
            engine_flag.engine_memory(name, given),
        ),
        trace=opened,
        arrival=arrives,
        session_gap_s=session_gap,
        bounds=bounds,
        causes=causes,
        advice=advice,  # type: ignore[arg-type]
        timing=time_flag.time_ask(spec, given),
    )
    if fleet_flag.asked(given):
        return fleet_flag.answer(ask, given)
    with ExitStack() as stack:
        write = stack.enter_context(request_writer(per_request)) if per_request else None
        sink = stack.enter_context(event_writer(events)) if events else None
        watch = stack.enter_context(watching(lambda: sum(1 for _ in opened.requests())))
        result = run(ask, on_outcome=write, events=sink, watch=watch)
    if plot is not None:
        from hybridplan.report.simulate_plot import draw

        draw(result, plot)
    if json:
        from hybridplan.report.document import document

        print_json(document(result))
    else:
        from hybridplan.report.simulate import screen

        print_report(*screen(result))
    if result.interrupted is not None:
        return interrupted(f"interrupted during the {result.interrupted}")
    attained = result.time.attained if result.time is not None else None
    return 1 if attained is not None and not attained.kept else 0
