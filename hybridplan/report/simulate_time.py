"""Times of a replay on a terminal: percentiles, throughput, where the time went, what hits gave."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.report.units import digits
from hybridplan.sim.time.capacity import alike
from hybridplan.sim.time.result import (
    Attained,
    Capacity,
    ClockInfo,
    Latencies,
    Probe,
    Quantiles,
    TimeResult,
    Utilisation,
    Worth,
)

_NAMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "e2e": "end to end",
    "queue": "queueing",
}
_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_FEATURES = {
    "step": "between steps",
    "launches": "launches",
    "bytes": "bytes moved",
    "dense_flop": "products",
    "attention_flop": "attention of prefills",
    "scan_flop": "recurrence of prefills",
}


def screen(time: TimeResult) -> list[RenderableType]:
    """The part of a simulation's answer that is about time."""
    parts: list[RenderableType] = ["", title(time)]
    if time.latencies is not None:
        parts.append(Padding(_latencies(time.latencies, time.worth), (0, 0, 0, 2)))
    parts.append(_facts(time))
    if time.capacity is not None:
        parts += ["", *_capacity(time.capacity)]
    return parts


def title(time: TimeResult) -> Text:
    """Where the times come from."""
    clock = time.clock
    text = Text("Time", style="bold")
    if not clock.card:
        return text.append(f"  {clock.name}, which stands in for a device", style="")
    return text.append(f"  {steps_of(clock)}", style="not bold")


def steps_of(clock: ClockInfo) -> str:
    """Whose steps, how they are known, and how well they met what was left out of their fit."""
    said = f"steps of {clock.card}, {clock.how}"
    if clock.from_log:
        said = f"steps of {clock.card}, fitted to a log of requests"
    if clock.how == "measured" and clock.mean_error is not None:
        judged = "TPOT of requests" if clock.from_log else "on steps"
        said += f" ({judged} it had not seen {clock.mean_error:.1%} off on the mean"
        said += f", {clock.worst_error:.1%} at worst)" if clock.worst_error is not None else ")"
    return said


def _latencies(found: Latencies, worth: Worth | None) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for title in ("", "p50", "p90", "p99", "max", "mean"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for name, label in _NAMES.items():
        values = getattr(found, name)
        if values is not None:
            table.add_row(label, *_cells(values))
    if worth is not None:
        table.add_row("TTFT without hits", *_cells(worth.latencies.ttft), style="dim")
    return table


def _cells(values: Quantiles) -> list[str]:
    return [
        seconds(value)
        for value in (values.p50_s, values.p90_s, values.p99_s, values.max_s, values.mean_s)
    ]


def _facts(time: TimeResult) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    offered = ""
    if time.offered_per_s is not None:
        offered = f"; {digits(time.offered_per_s)} requests/s arrive"
    grid.add_row(
        "Throughput",
        f"{digits(time.requests_per_s)} requests/s, {time.prompt_tokens_per_s:,.0f} prompt and "
        f"{time.output_tokens_per_s:,.0f} output tokens/s over {seconds(time.span_s)}{offered}",
    )
    if time.attained is not None:
        grid.add_row("SLO", Text(attained_line(time.attained)))
    if time.worth is not None:
        grid.add_row("Hits gave", Text(_worth(time.worth)))
    if time.utilisation is not None:
        grid.add_row("Busy", Text(_busy(time.utilisation)))
        grid.add_row("", Text(_shares(time.utilisation)))
    if time.held_back:
        turns = "1 turn" if time.held_back == 1 else f"{time.held_back:,} turns"
        grid.add_row(
            "Held back",
            f"{turns}, sent {seconds(time.held_back_s)} after the trace's time on the mean: the "
            "turn before was not done",
        )
    return grid


def attained_line(found: Attained) -> str:
    """How an SLO was kept, in one line."""
    said = f"{'kept' if found.kept else 'NOT kept'}: {found.share_met:.2%} of the requests within "
    said += ", ".join(f"{_NAMES[name]} {seconds(s)}" for name, s in found.slo.limits.items())
    said += f" ({digits(100 * found.slo.share, 4)}% asked)"
    said += f"; goodput {digits(found.goodput_per_s)} requests/s"
    broken = [f"{_NAMES[name]} {count:,}" for name, count in found.missed.items() if count]
    return said + (f"; broken: {', '.join(broken)}" if broken else "")


def _worth(found: Worth) -> str:
    less = "fewer" if found.saved_gpu_s >= 0 else "more"
    lower = "lower" if found.saved_ttft_s >= 0 else "higher"
    each = f"{digits(found.ms_per_1000_hit_tokens)} ms a 1,000 tokens"
    return (
        f"mean TTFT {seconds(abs(found.saved_ttft_s))} {lower} than with {found.baseline}; "
        f"{digits(found.prefill_gpu_s, 4)} GPU s of prefill spared, {each}; "
        f"{digits(abs(found.saved_gpu_s))} GPU s {less} in steps, of {digits(found.gpu_s, 4)}"
    )


def _busy(found: Utilisation) -> str:
    ranks = "" if found.ranks == 1 else f" on each of {found.ranks} ranks"
    said = f"{found.busy_share:.1%} of the time in steps{ranks}; in them "
    said += f"{found.bytes_per_s / 1e12:#.3g} TB/s"
    if found.bandwidth_share is not None:
        said += f" ({found.bandwidth_share:.0%} of the card's)"
    said += f" and {digits(found.flop_per_s / 1e12)} TFLOP/s"
    return said + (f" ({found.flop_share:.0%})" if found.flop_share is not None else "")


def _shares(found: Utilisation) -> str:
    shown = sorted(found.step_shares.items(), key=lambda pair: -pair[1])
    return "of it " + ", ".join(
        f"{_FEATURES[n]} {share:.0%}" for n, share in shown if share >= 0.005
    )


def _capacity(found: Capacity) -> list[RenderableType]:
    best, worst, start = found.best, found.next, found.probes[0].speed
    title = Text("Highest rate that keeps the SLO", style="bold")
    if best is None:
        said = f"none: even {_rate(found.probes[-1])} does not"
        if found.probes[-1].ttft_p99_s is None:
            said += "; no request was served at all"
        elif alike(*found.probes[-2:]):
            said += ", and slower changed neither the share nor p99: requests that arrive at one "
            said += "moment, or alone, break it"
        else:
            said += "; slower was not tried"
    elif worst is None and not best.rate_per_s:
        said = "any: all requests arrive at one moment, whatever the clock"
    elif worst is None:
        said = f"at least {_rate(best)}; faster was not tried: it is {best.speed / start:,.0f} "
        said += "times the rate that the search began at"
    else:
        said = f"{_rate(best)}; {_rate(worst)} does not (searched to {found.tolerance:.0%})"
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for name in ("clock", "requests/s", "kept by", "TTFT p99", "TPOT p99", ""):
        table.add_column(name, justify="right" if name else "left")
    for probe in sorted(found.probes, key=lambda probe: probe.speed):
        tpot = "-" if probe.tpot_p99_s is None else seconds(probe.tpot_p99_s)
        table.add_row(
            f"x{digits(probe.speed, 4)}",
            digits(probe.rate_per_s),
            f"{probe.share_met:.2%}",
            seconds(probe.ttft_p99_s) if probe.ttft_p99_s is not None else "-",
            tpot,
            "kept" if probe.kept else "not kept",
        )
    return [title, Padding(Text(said), (0, 0, 0, 2)), Padding(table, (0, 0, 0, 2))]


def _rate(probe: Probe) -> str:
    return f"{digits(probe.rate_per_s)} requests/s (the trace's clock x{digits(probe.speed, 4)})"


def seconds(value: float) -> str:
    """Three digits and a unit: 1.23 s, 45.6 ms, 789 us."""
    if value == 0:
        return "0"
    unit, scale = next((u, s) for u, s in _UNITS if value >= s or u == "us")
    number = value / scale
    return f"{number:,.0f} {unit}" if number >= 99.95 else f"{number:#.3g} {unit}"
