"""``hybridplan compare``: every policy on one trace at one memory."""

from __future__ import annotations

from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from hybridplan.cli import flags
from hybridplan.cli import time_options as time_flag
from hybridplan.cli import trace_options as trace_flag
from hybridplan.cli.common import JsonFlag, interrupted, print_json, print_report
from hybridplan.errors import InputError

_POLICIES = typer.Option(
    "--policies",
    help="Commas between: vllm[@0.32|@0.33][:all], sglang:no_buffer, marconi:paper, ...",
)
_SET = typer.Option("--set", help="NAME=VALUE for the engines that have it; repeatable.")
_JOBS = typer.Option("--jobs", help="Policies replayed side by side, in processes.")
_BOUNDS = typer.Option(
    "--bounds/--no-bounds", help="Replay again for the upper bound where the trace is coarse."
)
_PLOT = typer.Option("--plot", help="Draw hits and losses to a .png, .svg or .pdf file.")
_SLO = typer.Option(
    "--slo", help="Limits, as in ttft=2s,tpot=50ms,e2e=30s; exit code 1 if no policy keeps them."
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", help="Every cache policy on one trace at one memory, and bounds.")(
        _compare
    )


def _compare(
    trace: trace_flag.Replayed,
    model: flags.ModelOption = "qwen3.5-0.8b",
    policies: Annotated[str | None, _POLICIES] = None,
    gpu: flags.GpuName = None,
    kv_memory: flags.KvMemory = None,
    memory_utilization: flags.Utilisation = None,
    weights_memory: flags.Weights = None,
    arrival: trace_flag.Arrival = "sequential",
    session_gap: trace_flag.SessionGap = None,
    calibration: time_flag.Calibrated = None,
    rate: time_flag.Rate = None,
    slo: Annotated[str | None, _SLO] = None,
    slo_share: time_flag.SloShare = None,
    baseline: time_flag.Baseline = True,
    limit: trace_flag.Limit = None,
    tp: flags.Tp = 1,
    kv_dtype: flags.KvDtype = None,
    state_dtype: flags.StateDtype = None,
    conv_dtype: flags.ConvDtype = None,
    drafts: flags.Drafts = 0,
    max_model_len: flags.MaxModelLen = None,
    set_: Annotated[list[str] | None, _SET] = None,
    bounds: Annotated[bool, _BOUNDS] = True,
    jobs: Annotated[int, _JOBS] = 1,
    plot: Annotated[Path | None, _PLOT] = None,
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
    json: JsonFlag = False,
) -> int:
    given = {**locals(), "calibration": time_flag.calibration_name(calibration, gpu)}
    from hybridplan.cli.progress import watching
    from hybridplan.sim.compare import CompareAsk, compare
    from hybridplan.sim.policies import EVERY
    from hybridplan.sim.settings import AXES, canonical
    from hybridplan.sim.sweep.grid import parse_assignment
    from hybridplan.sim.sweep.runner import processes

    if jobs < 1:
        raise InputError(f"--jobs is {jobs}; it must be 1 or more")
    if plot is not None:
        from hybridplan.report.canvas import check_target

        check_target(plot)
    defaults = signature(_compare).parameters
    settings: dict[str, Any] = {
        name: given[name]
        for name in AXES
        if name in given and (name == "model" or given[name] != defaults[name].default)
    }
    for assignment in set_ or ():
        name, values = parse_assignment(assignment)
        if len(values) != 1 or name in ("engine", "trace", "model"):
            raise InputError(f"--set {assignment}: one value for a setting without its own flag")
        settings[name] = values[0]
    names = tuple(policies.split(",")) if policies else EVERY
    ask = CompareAsk(settings, names, bounds, time_flag.slo_of(slo, slo_share), baseline)
    with ExitStack() as stack:
        executor = stack.enter_context(processes(jobs)) if jobs > 1 else None
        watch = None
        if executor is None:
            from hybridplan.sim.prepared import open_settings_trace

            opened = open_settings_trace(canonical(settings)[0])
            watch = stack.enter_context(watching(lambda: sum(1 for _ in opened.requests())))
        result = compare(ask, watch=watch, executor=executor)
    if plot is not None:
        from hybridplan.report.compare_plot import draw

        draw(result, plot)
    if json:
        from hybridplan.report.document import document

        print_json(document(result))
    else:
        from hybridplan.report.compare import screen

        print_report(*screen(result))
    if result.interrupted:
        return interrupted("interrupted: the policies that were done are shown")
    kept = [found.keeps_slo for found in result.rows if found.row is not None]
    return 0 if any(keeps is not False for keeps in kept) else 1
