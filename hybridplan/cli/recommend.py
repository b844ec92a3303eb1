"""``hybridplan recommend``: flags worth setting for a trace, and the command that sets them."""

from __future__ import annotations

from contextlib import ExitStack
from inspect import signature
from typing import Annotated, Any

import typer

from hybridplan.cli import flags
from hybridplan.cli import trace_options as trace_flag
from hybridplan.cli.common import JsonFlag, print_json, print_report
from hybridplan.errors import InputError

_ENGINES = typer.Option("--engines", help="Commas between: vllm, vllm@0.32, sglang.")
_CONCURRENCY = typer.Option(
    "--concurrency", help="Mean requests that must fit at once (default: half the defaults')."
)
_SEARCH = typer.Option("--search-requests", help="Requests the search replays for each try.")
_SET = typer.Option("--set", help="NAME=VALUE that is fixed and not searched; repeatable.")
_JOBS = typer.Option("--jobs", help="Values of a flag replayed side by side, in processes.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("recommend", help="Flags that get more hits out of a trace, and how to set them.")(
        _recommend
    )


def _recommend(
    trace: trace_flag.Replayed,
    model: flags.ModelOption = "qwen3.5-0.8b",
    engines: Annotated[str, _ENGINES] = "vllm,sglang",
    gpu: flags.GpuName = None,
    kv_memory: flags.KvMemory = None,
    memory_utilization: flags.Utilisation = None,
    weights_memory: flags.Weights = None,
    concurrency: Annotated[int | None, _CONCURRENCY] = None,
    search_requests: Annotated[int, _SEARCH] = 2000,
    arrival: trace_flag.Arrival = "sequential",
    session_gap: trace_flag.SessionGap = None,
    tp: flags.Tp = 1,
    drafts: flags.Drafts = 0,
    max_model_len: flags.MaxModelLen = None,
    set_: Annotated[list[str] | None, _SET] = None,
    jobs: Annotated[int, _JOBS] = 1,
    limit: trace_flag.Limit = None,
    format: trace_flag.Format = None,
    block_tokens: trace_flag.BlockTokens = None,
    tokenizer: trace_flag.Tokenizer = None,
    tokens_per_char: trace_flag.TokensPerChar = None,
    inputs: trace_flag.Inputs = None,
    output_tokens: trace_flag.OutputTokens = None,
    order: trace_flag.Order = "file",
    link_sessions: trace_flag.LinkSessions = False,
    drop_empty: trace_flag.DropEmpty = False,
    skip_bad: trace_flag.SkipBad = 0,
    json: JsonFlag = False,
) -> int:
    given = locals()
    from hybridplan.cli.progress import watching
    from hybridplan.sim.recommend import RecommendAsk, recommend
    from hybridplan.sim.settings import AXES
    from hybridplan.sim.sweep.grid import parse_assignment
    from hybridplan.sim.sweep.runner import processes

    if jobs < 1:
        raise InputError(f"--jobs is {jobs}; it must be 1 or more")
    defaults = signature(_recommend).parameters
    settings: dict[str, Any] = {
        name: given[name]
        for name in AXES
        if name in given and (name == "model" or given[name] != defaults[name].default)
    }
    for assignment in set_ or ():
        name, values = parse_assignment(assignment)
        if len(values) != 1:
            raise InputError(f"--set {assignment}: one value, which is then not searched")
        settings[name] = values[0]
    ask = RecommendAsk(settings, tuple(engines.split(",")), concurrency, search_requests)
    with ExitStack() as stack:
        executor = stack.enter_context(processes(jobs)) if jobs > 1 else None
        watch = None
        if executor is None:
            watch = stack.enter_context(watching(lambda: search_requests))
        result = recommend(ask, watch=watch, executor=executor)
    if json:
        from hybridplan.report.document import document

        print_json(document(result))
    else:
        from hybridplan.report.recommend import screen

        print_report(*screen(result))
    return 0 if any(found.best is not None for found in result.engines) else 1
