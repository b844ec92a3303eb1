"""``hybridplan report``: a trace and a model on one page."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridplan.cli import engine_options as engine_flag
from hybridplan.cli import flags
from hybridplan.cli import time_options as time_flag
from hybridplan.cli import trace_options as trace_flag
from hybridplan.cli.common import interrupted
from hybridplan.errors import InputError

if TYPE_CHECKING:
    from hybridplan.ledger.planning.result import SglangResult, VllmResult
    from hybridplan.sim.setup import EngineAsk

_OUTPUT = typer.Option("--output", "-o", help="The .html file to write.")
_RETENTION = typer.Option("--prefix-cache-retention-interval", help="vLLM: 0, N or none.")
_ADVICE = typer.Option("--advice", help="auto, full (re-run the whole trace) or off.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help="A trace and a model on one page: plan, hits, losses.")(_report)


def _report(
    trace: trace_flag.Replayed,
    model: flags.ModelOption = "qwen3.5-0.8b",
    output: Annotated[Path, _OUTPUT] = Path("report.html"),
    engine: flags.Engine = "vllm@0.33",
    gpu: flags.GpuName = None,
    kv_memory: flags.KvMemory = None,
    memory_utilization: flags.Utilisation = None,
    weights_memory: flags.Weights = None,
    arrival: trace_flag.Arrival = "sequential",
    session_gap: trace_flag.SessionGap = None,
    calibration: time_flag.Calibrated = None,
    rate: time_flag.Rate = None,
    slo: time_flag.Slo = None,
    slo_share: time_flag.SloShare = None,
    find_rate: time_flag.FindRate = False,
    baseline: time_flag.Baseline = True,
    limit: trace_flag.Limit = None,
    advice: Annotated[str, _ADVICE] = "auto",
    tp: flags.Tp = 1,
    pp: flags.Pp = 1,
    dcp: flags.Dcp = 1,
    kv_dtype: flags.KvDtype = None,
    state_dtype: flags.StateDtype = None,
    conv_dtype: flags.ConvDtype = None,
    drafts: flags.Drafts = 0,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.BatchedTokens = None,
    block_size: flags.BlockTokens = None,
    prefix_match_unit: flags.MatchUnit = None,
    prefix_cache_retention_interval: Annotated[str | None, _RETENTION] = None,
    prefix_caching: flags.PrefixCaching = None,
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
) -> int:
    written = locals()
    from hybridplan.cli.progress import watching
    from hybridplan.config.find import load
    from hybridplan.ledger.account import ledger as account
    from hybridplan.ledger.deployment import Deployment, parse_engine
    from hybridplan.report.page.assets import check_target, write
    from hybridplan.report.page.report import ReportParts, report_page
    from hybridplan.report.plot import curve_contexts
    from hybridplan.sim.arrival import parse_arrival
    from hybridplan.sim.rates import rate_curve
    from hybridplan.sim.run import SimulateAsk, run
    from hybridplan.sim.setup import EngineAsk

    check_target(output)
    if advice not in ("auto", "full", "off"):
        raise InputError(f"--advice {advice!r} is not known; use auto, full or off")
    if gpu is None and kv_memory is None:
        raise InputError(
            "a report plans the pool and no memory was given; name a card with --gpu h200 or a "
            "size with --kv-memory 42GiB"
        )
    name, version = parse_engine(engine)
    deployment = Deployment(name, version, tp, pp, dcp, kv_dtype, state_dtype, conv_dtype, drafts)
    spec = load(model, download=download)
    opened = trace_flag.open_with(trace, written)
    asked = EngineAsk(
        spec,
        deployment,
        engine_flag.engine_flags(deployment, written),
        engine_flag.engine_memory(name, written),
    )
    plan = _plan(asked)
    ask = SimulateAsk(
        engine=asked,
        trace=opened,
        arrival=parse_arrival(arrival),
        session_gap_s=session_gap,
        advice=advice,  # type: ignore[arg-type]
        timing=time_flag.time_ask(spec, written),
    )
    with ExitStack() as stack:
        watch = stack.enter_context(watching(lambda: sum(1 for _ in opened.requests())))
        result = run(ask, watch=watch)
        rates, stage = None, result.interrupted
        if stage is None:
            try:
                rates = rate_curve(ask, watch=watch)
            except KeyboardInterrupt:
                stage = "rates"
    contexts = curve_contexts(max_model_len or spec.max_tokens or 131072)
    parts = ReportParts(
        account(spec, deployment, contexts=list(contexts)),
        plan,
        result,
        _command(written),
        rates,
    )
    write(output, report_page(parts))
    typer.echo(f"wrote {output}")
    if stage is None and rates is not None and rates.interrupted:
        stage = "rates"
    if stage is not None:
        return interrupted(f"interrupted during the {stage}")
    attained = result.time.attained if result.time is not None else None
    return 1 if attained is not None and not attained.kept else 0


def _plan(asked: EngineAsk) -> VllmResult | SglangResult:
    from hybridplan.ledger.planning import sglang, vllm
    from hybridplan.ledger.planning.ask import VllmAsk
    from hybridplan.sim.setup import VllmFlags

    assert asked.memory is not None
    chosen = asked.flags
    if isinstance(chosen, VllmFlags):
        return vllm.plan(
            VllmAsk(
                asked.spec,
                asked.deployment,
                chosen.options,
                asked.memory,
                max_num_seqs=chosen.max_num_seqs,
                max_num_batched_tokens=chosen.max_num_batched_tokens,
            )
        )
    return sglang.plan(sglang.SglangAsk(asked.spec, asked.deployment, chosen.options, asked.memory))


def _command(written: dict[str, Any]) -> str:
    """The command line again: what was set, in the order of --help; the page's own name last."""
    words = ["hybridplan", "report", "--trace", written["trace"]]
    for flag in signature(_report).parameters.values():
        value = written[flag.name]
        if flag.name in ("trace", "output") or value == flag.default:
            continue
        spelled = "--" + flag.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(spelled if value else spelled.replace("--", "--no-", 1))
        else:
            words += [spelled, str(value).removesuffix(".0")]
    return shlex.join([*words, "-o", written["output"].name])
