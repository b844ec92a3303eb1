"""A comparison on a terminal: one line a policy, the bounds below, then where the rest went."""

from __future__ import annotations

from pathlib import PurePath
from typing import Literal

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.report import compare_time
from hybridplan.report.units import size
from hybridplan.sim.cell import Row
from hybridplan.sim.compare import Best, Compared, CompareResult
from hybridplan.sim.outcome import LossCause

CAUSES = {
    LossCause.LAST_TOKEN: "last token",
    LossCause.BELOW_ONE_BLOCK: "below a block",
    LossCause.FORK_INSIDE_BLOCK: "fork in block",
    LossCause.DRAFT_DROP: "draft drop",
    LossCause.EVICTED: "evicted",
    LossCause.NOT_COMPUTED_YET: "not yet computed",
    LossCause.PREEMPTED: "preempted",
    LossCause.NO_CHUNK_END: "no state made",
    LossCause.NOT_RETAINED: "not retained",
    LossCause.DECODE_STATE: "not retained in decode",
    LossCause.OVERWRITTEN: "state overwritten",
    LossCause.OUT_OF_WINDOW: "window gone",
    LossCause.OUTSIDE_CACHE: "caching off",
}


def screen(result: CompareResult) -> list[RenderableType]:
    """Hits, states, bytes and evictions side by side; bounds; losses by cause."""
    parts: list[RenderableType] = [_head(result)]
    if result.interrupted:
        parts.append(Text("PARTIAL: interrupted, the rows below are whole", style="bold yellow"))
    parts += ["", _table(result)]
    if any(found.time is not None for found in result.rows):
        parts += ["", *compare_time.screen(result.rows)]
    if result.best is not None:
        parts += ["", *_best(result.best)]
    if any(found.row is not None and found.row.lost for found in result.rows):
        parts += ["", Text("Lost, % of the prompt tokens", style="bold"), _losses(result)]
    if result.placements:
        parts += ["", *_placements(result)]
    parts += _refusals(result)
    parts += _assumed(result)
    return parts


def _head(result: CompareResult) -> Text:
    text = Text()
    text.append(result.model, style="bold")
    memory = "unlimited memory"
    if result.memory_bytes is not None:
        memory = f"{size(result.memory_bytes)} a rank for every policy"
    served = {found.row.prompt_tokens for found in result.rows if found.row is not None}
    tokens = f", {max(served):,} prompt tokens" if served else ""
    trace = PurePath(result.trace.path).name
    text.append(f"  {memory}\n{trace}{tokens}, {result.arrival}")
    return text


def _table(result: CompareResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for title, right in (
        ("policy", False),
        ("usable hit", True),
        ("of the best", True),
        ("KV-only", True),
        ("states", True),
        ("hit", True),
        ("held at end", True),
        ("evictions", True),
        ("", False),
    ):
        side: Literal["left", "right"] = "right" if right else "left"
        table.add_column(title, justify=side, no_wrap=not right, overflow="fold")
    for found in result.rows:
        if found.row is None:
            table.add_row(found.policy, "refused", *[""] * 7)
        else:
            table.add_row(found.policy, *_cells(found, found.row))
    return table


def _cells(found: Compared, row: Row) -> list[str]:
    share = "-" if found.of_best is None else f"{found.of_best:.1%}"
    states = [f"{row.states_kept:,}", f"{row.states_hit:,}"] if row.has_states else ["-", "-"]
    return [
        hit_rate(row),
        share,
        f"{rate(row.kv_hit_tokens, row):.1%}",
        *states,
        size(row.held_bytes),
        f"{row.evictions:,}",
        row.evicted,
    ]


def hit_rate(row: Row) -> str:
    """The rate, or both readings where the trace cannot tell."""
    if row.exact or row.upper_hit_tokens == row.hit_tokens:
        return f"{row.hit_rate:.1%}"
    if row.upper_hit_tokens is None:
        return f">= {row.hit_rate:.1%}"
    return f"{row.hit_rate:.1%} to {rate(row.upper_hit_tokens, row):.1%}"


def rate(tokens: int, row: Row) -> float:
    """Tokens as a share of the prompt tokens served."""
    return tokens / row.prompt_tokens if row.prompt_tokens else 0.0


def _best(best: Best) -> list[RenderableType]:
    def share(tokens: int) -> str:
        part = tokens / best.prompt_tokens if best.prompt_tokens else 0.0
        return f"{part:.1%}: {tokens:,}"

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    if not best.ordered:
        grid.add_row("Best possible", f"{share(best.hit_tokens)} hit tokens")
        grid.add_row(
            "Infinite cache",
            f"{share(best.infinite_hit_tokens)}, in whatever order requests run; how much eviction"
            " must lose is only bounded for sequential arrival",
        )
        return [grid]
    grid.add_row("Best possible", f"{share(best.hit_tokens)} hit tokens, the least of these")
    grid.add_row("Infinite cache", share(best.infinite_hit_tokens))
    if best.kv_hit_tokens is not None and best.kv_tokens is not None:
        grid.add_row(
            "Optimal eviction",
            f"{share(best.kv_hit_tokens)}, {best.kv_tokens:,} tokens of KV and free states",
        )
    if best.states_hit_tokens is not None and best.state_slots is not None:
        grid.add_row(
            "State slots",
            f"{share(best.states_hit_tokens)}, {best.state_slots:,} states and free KV (a bound)",
        )
    return [grid]


def _losses(result: CompareResult) -> RenderableType:
    rows = [found.row for found in result.rows if found.row is not None]
    causes = [cause for cause in LossCause if any(cause.value in row.lost for row in rows)]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for cause in causes:
        table.add_column(CAUSES[cause], justify="right")
    table.add_column("in all", justify="right")
    for row in rows:
        cells = [
            f"{100 * rate(row.lost[cause.value], row):.2f}" if cause.value in row.lost else "-"
            for cause in causes
        ]
        table.add_row(row.policy, *cells, f"{100 * rate(sum(row.lost.values()), row):.2f}")
    return Padding(table, (0, 0, 0, 2))


def _placements(result: CompareResult) -> list[RenderableType]:
    words = ", ".join(f"{p.states}: {p.saved_share:.0%}" for p in result.placements)
    few = next((p for p in result.placements if p.saved_share >= 0.9), result.placements[-1])
    shown = [f"{position:,}" for position in few.positions_tokens[:8]]
    more = ", ..." if len(few.positions_tokens) > 8 else ""
    return [
        Text("Checkpoints on one sequence, placed best for this trace", style="bold"),
        Padding(Text(f"share of the repeated tokens saved by number of states: {words}"), (0, 2)),
        Padding(Text(f"{few.states} of them at tokens {', '.join(shown)}{more}"), (0, 2)),
    ]


def _refusals(result: CompareResult) -> list[RenderableType]:
    reasons: dict[str, list[str]] = {}
    for found in result.rows:
        if found.refused is not None:
            reasons.setdefault(found.refused, []).append(found.policy)
        elif found.row is not None and found.row.refused:
            said = f"{found.row.refused:,} requests not served"
            reasons.setdefault(said, []).append(found.policy)
    if not reasons:
        return []
    lines = [Padding(Text(f"{', '.join(who)}: {why}"), (0, 2)) for why, who in reasons.items()]
    return ["", Text("Refused", style="bold"), *lines]


def _assumed(result: CompareResult) -> list[RenderableType]:
    said: dict[str, list[str]] = {line: [] for line in result.assumptions}
    for found in result.rows:
        for line in found.row.assumptions if found.row is not None else ():
            said.setdefault(line, []).append(found.policy)
    if not said:
        return []
    most = len(result.rows)
    lines = [
        Padding(Text(line if len(who) in (0, most) else f"{_who(who)}: {line}"), (0, 2))
        for line, who in said.items()
    ]
    return ["", Text("Assumed", style="bold"), *lines]


def _who(policies: list[str]) -> str:
    families = dict.fromkeys(name.partition(":")[0].partition("@")[0] for name in policies)
    return ", ".join(policies) if len(policies) < 3 else ", ".join(families)
