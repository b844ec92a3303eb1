"""A fleet on a terminal: hits by replica, what routing loses, times, transfers, the host tier."""

from __future__ import annotations

from pathlib import PurePath

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.report.simulate import pool_line
from hybridplan.report.simulate_time import attained_line, seconds, steps_of
from hybridplan.report.units import digits, size
from hybridplan.sim.fleet.result import (
    FleetResult,
    FleetSize,
    HostResult,
    ReplicaResult,
    RouterComparison,
    TransferResult,
)
from hybridplan.sim.fleet.run import OTHER_REPLICA
from hybridplan.sim.time.result import Latencies, Quantiles

_MOST_ROWS = 16
_INDENT = (0, 0, 0, 2)
_UNTIMED = ["evictions", "most at once"]


def screen(result: FleetResult) -> list[RenderableType]:
    """Hits first, then where they went, replica by replica, then times and what moved."""
    parts: list[RenderableType] = [_head(result), *_partial(result)]
    parts += [_set(result), "", _hits(result)]
    if result.losses:
        parts += ["", Text("Where the rest went", style="bold"), _losses(result)]
    known = result.trace.unit_tokens is not None
    parts += ["", _replicas(result.replicas, result.total, known)]
    if len(result.replicas) > 1:
        parts.append(Padding(Text(_imbalance(result)), _INDENT))
    if result.decoders:
        parts += ["", _decoders(result.decoders)]
    parts += _times(result)
    facts = _facts(result)
    if facts.row_count:
        parts += ["", facts]
    parts += _assumptions(result.assumptions)
    return parts


def size_screen(found: FleetSize) -> list[RenderableType]:
    """The number of replicas, the sizes that were tried, and that fleet's answer."""
    answer = found.answer
    said = Text(f"{found.slo}: ", style="bold")
    if found.interrupted:
        said.append("unknown, the search was interrupted")
    elif found.replicas is None:
        said.append(f"not kept by {_counted(found.most, 'replica')}, the most that were tried")
    else:
        said.append(_counted(found.replicas, "replica"))
    parts: list[RenderableType] = [_head(answer), _set(answer, tried=True), "", said]
    table = _table(("replicas", "kept by", "TTFT p99", "TPOT p99", "hit rate", "busy", ""))
    for probe in found.probes:
        table.add_row(
            f"{probe.replicas:,}",
            f"{probe.share_met:.2%}",
            _or_dash(probe.ttft_p99_s),
            _or_dash(probe.tpot_p99_s),
            _hit_rate(probe.hit_rate, answer.trace.unit_tokens is not None),
            _share(probe.busy_share),
            "kept" if probe.kept else "not kept",
        )
    parts.append(Padding(table, _INDENT))
    if not found.monotonic:
        parts.append(
            Padding(
                Text(
                    "a larger fleet that was tried does not keep it: a router's choices change with"
                    " the number of replicas, so sizes that were not tried may keep it too"
                ),
                _INDENT,
            )
        )
    return parts + _assumptions(answer.assumptions)


def routers_screen(found: RouterComparison) -> list[RenderableType]:
    """One row a router, between what all the memory together and an infinite cache would give."""
    first = found.answers[0]
    parts: list[RenderableType] = [_head(first), _set(first, many=True), ""]
    grid = _grid()
    for reference in first.references if first.trace.unit_tokens is not None else ():
        grid.add_row("One pool", f"{reference.hit_rate:.1%}: {reference.name}, {reference.pool}")
    if first.ceiling_tokens and first.total.prompt_tokens:
        rate = first.ceiling_tokens / first.total.prompt_tokens
        grid.add_row("Ceiling", f"{rate:.1%}: an infinite cache for all of them")
    parts += [grid, ""] if grid.row_count else []
    timed = first.total.latencies is not None
    names = ["router", "hit rate", "elsewhere", "computed", "busiest"]
    names += ["TTFT p50", "p99", "TPOT p50", "p99"] if timed else ["evictions"]
    names += ["SLO"] if first.attained is not None else []
    table = _table(tuple(names))
    for answer in found.answers:
        lost = sum(loss.tokens for loss in answer.losses if loss.cause == OTHER_REPLICA)
        total, uneven = answer.total, answer.imbalance
        row = [
            answer.router.kind,
            _hit_rate(total.hit_rate, answer.trace.unit_tokens is not None),
            _share(lost / total.prompt_tokens if total.prompt_tokens else None, digits=1),
            f"{total.computed_tokens:,}",
            f"{uneven.busy if uneven.busy is not None else uneven.computed_tokens:.2f}",
        ]
        row += _percentiles(total.latencies) if timed else [f"{total.evictions:,}"]
        row += [f"{answer.attained.share_met:.2%}"] if answer.attained is not None else []
        table.add_row(*row)
    meaning = (
        "elsewhere: prompt tokens that the fleet had seen, but not the replica they were sent to;"
        " busiest: the busiest replica over the mean, in "
        + ("time" if first.imbalance.busy is not None else "computed tokens")
    )
    parts += [table, Padding(Text(meaning), _INDENT)]
    if found.interrupted:
        done = _counted(len(found.answers), "router")
        parts.append(Text(f"PARTIAL: stopped after {done}", style="bold yellow"))
    said = [one for answer in found.answers for one in answer.assumptions]
    return parts + _assumptions(tuple(dict.fromkeys(said)))


def _head(result: FleetResult) -> Text:
    setup = result.setup
    text = Text(setup.model, style="bold")
    words = [setup.rules, f"tp {setup.deployment.tp}"]
    if setup.policy != "engine":
        words.append(f"policy {setup.policy}")
    return text.append(
        f"  {', '.join(words)}; {PurePath(result.trace.path).name}", style="not bold"
    )


def _partial(result: FleetResult) -> list[RenderableType]:
    if result.interrupted != "replay":
        return []
    done = _counted(result.total.requests, "request")
    return [Text(f"PARTIAL: stopped after {done}", style="bold yellow")]


def _set(result: FleetResult, *, tried: bool = False, many: bool = False) -> Table:
    setup = result.setup
    grid = _grid()
    if not tried:
        grid.add_row("Fleet", Text(_fleet(result, many)))
    grid.add_row("Each", Text(pool_line(setup)))
    if tried:
        grid.add_row("Router", Text(str(result.router)))
    grid.add_row("Arrival", Text(result.arrival))
    return grid


def _fleet(result: FleetResult, many: bool) -> str:
    count = len(result.replicas)
    router = f"{result.router} routing" if count > 1 else "no routing"
    router = "every router" if many else router
    if result.decoders:
        apart = f"{count} prefill and {len(result.decoders)} decode"
        return f"{apart} instances, {router} to prefill"
    return f"{_counted(count, 'replica')}, {router}"


def _hits(result: FleetResult) -> Table:
    total = result.total
    grid = _grid()
    if result.trace.unit_tokens is None:
        unknown = "unknown: the trace has no prefix ids, so nothing tells which prompts start alike"
        grid.add_row("Usable hit", Text(unknown, style="bold"))
        prompts = f"{total.prompt_tokens:,} prompt tokens of {total.requests:,} requests"
        grid.add_row("", f"all {prompts} count as new")
        return grid
    usable = f"{total.hit_rate:.1%}: {total.hit_tokens:,} of {total.prompt_tokens:,} prompt tokens"
    grid.add_row("Usable hit", Text(usable + f", {total.requests:,} requests", style="bold"))
    if result.host is not None:
        device = total.hit_tokens - total.host_tokens
        grid.add_row("", f"{device:,} from the device and {total.host_tokens:,} from the host")
    for reference in result.references:
        less = reference.hit_rate - total.hit_rate
        grid.add_row(
            "One pool",
            f"{reference.hit_rate:.1%}: {reference.name}, {reference.pool}"
            + (f"; apart costs {100 * less:.1f} points" if less >= 0.0005 else ""),
        )
    if result.ceiling_tokens is not None and total.prompt_tokens:
        rate = result.ceiling_tokens / total.prompt_tokens
        grid.add_row(
            "Ceiling", f"{rate:.1%}: {result.ceiling_tokens:,}, an infinite cache for all of them"
        )
    if result.believed_tokens is not None and total.prompt_tokens:
        rate = result.believed_tokens / total.prompt_tokens
        grid.add_row(
            "Router saw", f"{rate:.1%}: {result.believed_tokens:,} that it took for cached"
        )
    return grid


def _losses(result: FleetResult) -> RenderableType:
    table = _table(("tokens", "of the loss", "why"))
    for loss in result.losses:
        table.add_row(f"{loss.tokens:,}", f"{loss.share:.1%}", loss.sentence)
    total = sum(loss.tokens for loss in result.losses)
    table.add_row(f"{total:,}", "100.0%", "ceiling less usable hit", style="dim")
    return Padding(table, _INDENT)


def _replicas(replicas: tuple[ReplicaResult, ...], total: ReplicaResult, known: bool) -> Table:
    timed = total.latencies is not None
    names = ["replica", "requests", "prompt tokens", "hit rate", "computed"]
    names += ["busy", "TTFT p50", "p99", "TPOT p50", "p99"] if timed else _UNTIMED
    table = _table(tuple(names))
    shown = replicas if len(replicas) <= _MOST_ROWS else replicas[: _MOST_ROWS - 1]
    for replica in shown:
        table.add_row(*_row(replica, timed, known))
    if len(shown) < len(replicas):
        table.add_row(f"and {len(replicas) - len(shown)} more", style="dim")
    if len(replicas) > 1:
        row = _row(total, timed, known)
        if not timed:
            row[-1] = "-"  # The replicas' peaks need not have been at one time.
        table.add_row(*row, style="bold")
    return table


def _row(replica: ReplicaResult, timed: bool, known: bool) -> list[str]:
    row = [
        replica.name,
        f"{replica.requests:,}",
        f"{replica.prompt_tokens:,}",
        _hit_rate(replica.hit_rate, known and replica.prompt_tokens > 0),
        f"{replica.computed_tokens:,}",
    ]
    if not timed:
        return [*row, f"{replica.evictions:,}", f"{replica.peak_running:,}"]
    return [*row, _share(replica.busy_share), *_percentiles(replica.latencies)]


def _percentiles(found: Latencies | None) -> list[str]:
    if found is None:
        return ["-"] * 4
    cells = [seconds(found.ttft.p50_s), seconds(found.ttft.p99_s)]
    tpot = found.tpot
    return cells + (["-"] * 2 if tpot is None else [seconds(tpot.p50_s), seconds(tpot.p99_s)])


def _decoders(decoders: tuple[ReplicaResult, ...]) -> Table:
    table = _table(
        (
            "replica",
            "requests",
            "output tokens",
            "most at once",
            "most waiting",
            "preempted",
            "busy",
        )
    )
    for decoder in decoders[:_MOST_ROWS]:
        table.add_row(
            decoder.name,
            f"{decoder.requests:,}",
            f"{decoder.output_tokens:,}",
            f"{decoder.peak_running:,}",
            f"{decoder.peak_waiting:,}",
            f"{decoder.preemptions:,}",
            _share(decoder.busy_share),
        )
    if len(decoders) > _MOST_ROWS:
        table.add_row(f"and {len(decoders) - _MOST_ROWS} more", style="dim")
    return table


def _imbalance(result: FleetResult) -> str:
    uneven = result.imbalance
    said = (
        f"the busiest replica over the mean: requests {uneven.requests:.2f}, prompt tokens "
        f"{uneven.prompt_tokens:.2f}, computed {uneven.computed_tokens:.2f}"
    )
    return said if uneven.busy is None else f"{said}, busy {uneven.busy:.2f}"


def _times(result: FleetResult) -> list[RenderableType]:
    found = result.total.latencies
    if found is None or result.clock is None:
        return []
    clock = result.clock
    source = steps_of(clock) if clock.card else "a stand-in for a device"
    table = _table(("", "p50", "p90", "p99", "max", "mean"))
    rows = (("TTFT", found.ttft), ("TPOT", found.tpot), ("end to end", found.e2e))
    for label, values in (*rows, ("queueing", found.queue)):
        if values is not None:
            table.add_row(label, *_cells(values))
    title = Text("Time", style="bold").append(f"  {source}", style="not bold")
    return ["", title, Padding(table, _INDENT)]


def _cells(values: Quantiles) -> list[str]:
    figures = (values.p50_s, values.p90_s, values.p99_s, values.max_s, values.mean_s)
    return [seconds(value) for value in figures]


def _facts(result: FleetResult) -> Table:
    grid = _grid()
    if result.requests_per_s is not None and result.output_tokens_per_s is not None:
        grid.add_row(
            "Throughput",
            f"{digits(result.requests_per_s)} requests/s, {result.output_tokens_per_s:,.0f} output "
            f"tokens/s ({result.output_tokens_per_s / result.gpus:,.0f} a GPU); the last token "
            f"came after {seconds(result.elapsed_s or 0.0)}",
        )
        if result.setup.num_blocks is not None:
            grid.add_row("Evictions", f"{result.total.evictions:,} blocks over all replicas")
    if result.attained is not None:
        grid.add_row("SLO", Text(attained_line(result.attained)))
    if result.transfer is not None:
        for title, line in _transfer(result.transfer):
            grid.add_row(title, Text(line))
    if result.host is not None:
        grid.add_row("Host", Text(_host(result.host)))
    for refused in result.refused:
        counted = _counted(refused.requests, "request")
        grid.add_row("Refused", Text(f"{counted}; the first, {refused.first}: {refused.reason}"))
    return grid


def _transfer(found: TransferResult) -> list[tuple[str, str]]:
    moved = (
        f"{size(found.moved_bytes)} a rank, {size(found.mean_bytes)} a request on the mean, "
        f"{size(found.most_bytes)} the largest"
    )
    if found.state_bytes:
        moved += f"; {size(found.state_bytes)} of each is its state"
    lines = [("Transfer", moved)]
    if found.moving_s is not None and found.waited_s is not None and found.bytes_per_s:
        lines.append(
            (
                "",
                f"{found.bytes_per_s / 1e9:g} GB/s: {seconds(found.moving_s.p50_s)} p50 and "
                f"{seconds(found.moving_s.p99_s)} p99, after waiting "
                f"{seconds(found.waited_s.p50_s)} and {seconds(found.waited_s.p99_s)} for the link",
            )
        )
        busiest = f"busiest sender {_share(found.sender_busy_share)} of the time, "
        lines.append(("", busiest + f"busiest receiver {_share(found.receiver_busy_share)}"))
    held = f"the fullest held at most {found.decode_peak_blocks:,} blocks"
    if found.decode_blocks:
        share = found.decode_peak_blocks / found.decode_blocks
        held += f" of {found.decode_blocks:,} ({share:.1%})"
    queued = found.decode_peak_waiting
    waited = f"at most {queued:,} waited at one" if queued else "nobody waited for room"
    lines.append(("Decoders", f"{held}; {waited}"))
    return lines


def _host(found: HostResult) -> str:
    said = (
        f"{size(found.capacity_bytes)} a rank; {_counted(found.loads, 'load')} of "
        f"{size(found.loaded_bytes)} gave {found.host_tokens:,} tokens, {found.declined:,} would "
        f"have been slower than computing; {size(found.stored_bytes)} stored, "
        f"{found.evicted_blocks:,} blocks forgotten"
    )
    if found.stateless_tokens:
        said += f"; {found.stateless_tokens:,} tokens had KV there or on the device and no state"
    if found.link_busy_share is not None:
        said += f"; busiest link {_share(found.link_busy_share)} of the time"
    return said


def _assumptions(sentences: tuple[str, ...]) -> list[RenderableType]:
    said = [one for one in sentences if not one.startswith("arrival ")]
    if not said:
        return []
    lines: list[RenderableType] = ["", Text("Assumed", style="bold")]
    return lines + [Padding(Text(one), _INDENT) for one in said]


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    return grid


def _table(names: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for index, name in enumerate(names):
        text = (index == 0 and name in ("replica", "router", "")) or name in ("why", "")
        table.add_column(name, justify="left" if text else "right", no_wrap=name != "why")
    return table


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _hit_rate(value: float, known: bool) -> str:
    """A dash where the trace has no prefix ids, or no prompt came here."""
    return f"{value:.1%}" if known else "-"


def _share(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else seconds(value)
