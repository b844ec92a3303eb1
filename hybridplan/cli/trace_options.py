"""The flags with which a command reads a trace; one definition for every command that does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hybridplan.sim.traces.trace import Trace

TraceFile = Annotated[str, typer.Argument(metavar="FILE", help="A trace; plain, gzip or zstd.")]
Replayed = Annotated[
    str,
    typer.Option("--trace", metavar="FILE", help="A request trace; plain, gzip or zstd."),
]
Arrival = Annotated[
    str, typer.Option("--arrival", help="sequential, closed:N or timed; as in simulate.")
]
SessionGap = Annotated[
    float | None, typer.Option("--session-gap", help="Timed: seconds between session starts.")
]
Format = Annotated[
    str | None, typer.Option("--format", help="Force a format instead of detecting it.")
]
BlockTokens = Annotated[
    int | None, typer.Option("--block-tokens", help="Tokens per prefix id, where the file is mute.")
]
Tail = Annotated[
    str | None, typer.Option("--tail", help="ceil or floor: a partial last block has an id or not.")
]
Unit = Annotated[str | None, typer.Option("--time-unit", help="s, ms, us or ns.")]
Clock = Annotated[
    str | None, typer.Option("--clock", help="global, or session: stamps restart per session.")
]
IdScope = Annotated[
    str | None,
    typer.Option("--id-scope", help="Where prefix ids are valid: global, file, session."),
]
Tokenizer = Annotated[
    str | None, typer.Option("--tokenizer", help="A local tokenizer folder, for traces of text.")
]
TokensPerChar = Annotated[
    float | None, typer.Option("--tokens-per-char", help="An estimate instead of a tokenizer.")
]
Inputs = Annotated[
    str | None, typer.Option("--inputs", help="cumulative or delta: whole prompts or additions.")
]
OutputTokens = Annotated[
    int | None, typer.Option("--output-tokens", help="Output length of rows that name none.")
]
Turns = Annotated[
    str | None, typer.Option("--turns", help="all, first or last: answers that become requests.")
]
Subagents = Annotated[
    bool, typer.Option("--subagents/--no-subagents", help="Read the calls of nested agents.")
]
Order = Annotated[str, typer.Option("--order", help="file, or time: sort by arrival.")]
Window = Annotated[
    int, typer.Option("--window", help="Requests held for --order time and --link-sessions.")
]
LinkSessions = Annotated[
    bool,
    typer.Option("--link-sessions", help="Assume a session's next prompt shows the last output."),
]
DropEmpty = Annotated[
    bool, typer.Option("--drop-empty", help="Leave out requests with an empty prompt or output.")
]
SkipBad = Annotated[int, typer.Option("--skip-bad", help="Bad rows to skip before giving up.")]
Limit = Annotated[int | None, typer.Option("--limit", help="Read no more requests than this.")]


def open_with(file: str, flags: dict[str, Any]) -> Trace:
    """open_trace with the values of this module's flags, taken out of a command's locals()."""
    from hybridplan.sim.traces.trace import open_trace

    names = (
        "format", "block_tokens", "tail", "time_unit", "id_scope", "tokenizer", "tokens_per_char",
        "inputs", "output_tokens", "turns", "subagents", "order", "window", "link_sessions",
        "drop_empty", "skip_bad", "limit",
    )  # fmt: skip
    return open_trace(file, clock_scope=flags["clock"], **{name: flags[name] for name in names})
