"""``hybridplan trace FILE`` and ``hybridplan trace convert FILE TARGET``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hybridplan.cli import trace_options as flag
from hybridplan.cli.common import JsonFlag, print_json, print_report

_DESCRIBE = "describe"


class _FileOrCommand(TyperGroup):
    """A group whose first word may be a file; describing it is the default command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = next((word for word in args if not word.startswith("-")), None)
        asks_for_help = first is None and any(word in ("-h", "--help") for word in args)
        completes = first is None and ctx.resilient_parsing
        if first not in self.commands and not asks_for_help and not completes:
            args = [_DESCRIBE, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=_FileOrCommand,
        help="What a request trace holds, and its conversion. FILE alone describes it.",
        rich_markup_mode=None,
    )
    group.command(_DESCRIBE, help="Format, units, statistics and warnings (the default).")(
        _describe
    )
    group.command("convert", help="Write a trace as hybridplan JSONL.")(_convert)
    app.add_typer(group, name="trace")


def _describe(
    file: flag.TraceFile,
    format: flag.Format = None,
    block_tokens: flag.BlockTokens = None,
    tail: flag.Tail = None,
    time_unit: flag.Unit = None,
    clock: flag.Clock = None,
    id_scope: flag.IdScope = None,
    tokenizer: flag.Tokenizer = None,
    tokens_per_char: flag.TokensPerChar = None,
    inputs: flag.Inputs = None,
    output_tokens: flag.OutputTokens = None,
    turns: flag.Turns = None,
    subagents: flag.Subagents = True,
    order: flag.Order = "file",
    window: flag.Window = 65536,
    link_sessions: flag.LinkSessions = False,
    drop_empty: flag.DropEmpty = False,
    skip_bad: flag.SkipBad = 0,
    limit: flag.Limit = None,
    warmup: Annotated[
        int, typer.Option("--warmup", min=0, help="First requests that fill the cache uncounted.")
    ] = 0,
    json: JsonFlag = False,
) -> None:
    from hybridplan.sim.traces.summary import summarize

    summary = summarize(flag.open_with(file, locals()), warmup_requests=warmup)
    if json:
        from hybridplan.report.document import document

        print_json(document(summary))
    else:
        from hybridplan.report.trace import screen

        print_report(*screen(summary))


def _convert(
    file: flag.TraceFile,
    target: Annotated[Path, typer.Argument(help="The new file; .gz or .zst compresses it.")],
    format: flag.Format = None,
    block_tokens: flag.BlockTokens = None,
    tail: flag.Tail = None,
    time_unit: flag.Unit = None,
    clock: flag.Clock = None,
    id_scope: flag.IdScope = None,
    tokenizer: flag.Tokenizer = None,
    tokens_per_char: flag.TokensPerChar = None,
    inputs: flag.Inputs = None,
    output_tokens: flag.OutputTokens = None,
    turns: flag.Turns = None,
    subagents: flag.Subagents = True,
    order: flag.Order = "file",
    window: flag.Window = 65536,
    link_sessions: flag.LinkSessions = False,
    drop_empty: flag.DropEmpty = False,
    skip_bad: flag.SkipBad = 0,
    limit: flag.Limit = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the target if it exists.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    from hybridplan.sim.traces.convert import convert_trace

    trace = flag.open_with(file, locals())
    convert_trace(trace, target, overwrite=overwrite)
    if json:
        from hybridplan.report.document import document
        from hybridplan.sim.traces.summary import SCHEMA_VERSION, Conversion

        print_json(document(Conversion(SCHEMA_VERSION, str(target), trace.counts)))
    else:
        typer.echo(f"{target}: {trace.counts.requests:,} requests from {trace.info.format}")
