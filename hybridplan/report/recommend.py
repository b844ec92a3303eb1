"""Recommended flags on a terminal: expectation, command, price, and what would do better."""

from __future__ import annotations

from pathlib import PurePath

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.report.compare import CAUSES, hit_rate, rate
from hybridplan.report.units import size
from hybridplan.sim.launch import spelt
from hybridplan.sim.outcome import LossCause
from hybridplan.sim.recommend import Option, Recommended, RecommendResult

_COMMAND_WIDTH = 92


def screen(result: RecommendResult) -> list[RenderableType]:
    """Each engine after the other."""
    head = Text()
    head.append(result.model, style="bold")
    head.append(
        f"  {PurePath(result.trace.path).name}, {result.arrival};"
        f" requests of {result.mean_request_tokens:,} tokens on average"
    )
    parts: list[RenderableType] = [head]
    if not result.whole_trace_searched:
        parts.append(
            Text(
                f"searched over the first {result.searched_requests:,} requests; figures below are"
                " of the whole trace"
            )
        )
    for found in result.engines:
        parts += ["", *_engine(found, result)]
    said = dict.fromkeys(result.assumptions)
    for found in result.engines:
        for option in (found.default, found.best):
            for line in option.row.assumptions if option is not None else ():
                said[f"{found.engine.partition(':')[0]}: {line}"] = None
    if said:
        parts += ["", Text("Assumed", style="bold")]
        parts += [Padding(Text(line), (0, 2)) for line in said]
    return parts


def _engine(found: Recommended, result: RecommendResult) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(found.engine.partition(":")[0], style="bold")]
    if found.best is None:
        return [*parts, Padding(Text(f"does not start: {found.refused}"), (0, 2))]
    if found.default is None:
        parts.append(Padding(Text(f"does not start with its defaults: {found.refused}"), (0, 2)))
    parts += [Padding(_table(found, result), (0, 2)), ""]
    parts += [Padding(Text(line), (0, 2)) for line in _shell_lines(found.best.command)]
    parts.append("")
    if not found.changes:
        parts.append(Padding(Text(f"no flag of {found.tried} tries gains 0.1 points"), (0, 2)))
    for change in found.changes:
        default = (
            "a whole block" if change.default is None else spelt(change.setting, change.default)
        )
        value = "" if change.value is True else f" {spelt(change.setting, change.value)}"
        line = f"{change.flag}{value} instead of {default}: +{100 * change.gain:.1f} points"
        line += f"; price: {change.price}" if change.price else ""
        parts.append(Padding(Text(line), (0, 2)))
    refused, served = found.best.row.refused, found.best.row.requests
    if refused:
        parts.append(
            Padding(
                Text(
                    f"{refused:,} of {refused + served:,} requests are refused (empty, or too long"
                    " for the server) and count in no rate"
                ),
                (0, 2),
            )
        )
    if found.note:
        parts.append(Padding(Text(found.note), (0, 2)))
    return [*parts, *_better(found.best, found)]


def _shell_lines(command: str) -> list[str]:
    """The command broken before flags, with a backslash where a shell reads on."""
    lines = [""]
    for word in command.replace(" --", "\n--").split("\n"):
        if lines[-1] and len(lines[-1]) + len(word) > _COMMAND_WIDTH:
            lines[-1] += " \\"
            lines.append("    " + word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip() if len(lines) == 1 else f"{lines[-1]} {word}"
    return lines


def _table(found: Recommended, result: RecommendResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for title in ("", "hit rate", "cache memory", "requests at once", "evictions"):
        table.add_column(title, justify="left" if not title else "right")
    rows: list[tuple[str, Option | None]] = [("defaults", found.default)]
    if found.best != found.default:
        rows.append(("recommended", found.best))
    for name, option in rows:
        if option is not None:
            table.add_row(
                name,
                hit_rate(option.row),
                size(option.memory_bytes),
                f"{option.concurrency:,}",
                f"{option.row.evictions:,}",
            )
    return table


def _better(best: Option, found: Recommended) -> list[RenderableType]:
    row = best.row
    lines = []
    for offer in found.better:
        price = f"{size(offer.bytes)} more a rank" if offer.bytes else offer.price
        lines.append(f"{offer.what}: {offer.hit_rate:.1%} ({price})")
    if row.ceiling_tokens is not None:
        lines.append(
            f"an infinite cache with a state everywhere: {rate(row.ceiling_tokens, row):.1%}"
        )
    causes = sorted(row.lost.items(), key=lambda pair: -pair[1])[:3]
    if causes:
        words = ", ".join(
            f"{CAUSES[LossCause(cause)]} {rate(tokens, row):.1%}" for cause, tokens in causes
        )
        lines.append(f"still lost: {words}")
    return [
        Padding(Text("To do better", style="bold"), (0, 2)),
        *(Padding(Text(line), (0, 4)) for line in lines),
    ]
