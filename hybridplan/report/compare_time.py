"""Latencies of compared policies, and what each one's hits are worth in time."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.report.simulate_time import seconds, title
from hybridplan.report.units import digits
from hybridplan.sim.compare import Compared
from hybridplan.sim.policies import parse_policy
from hybridplan.sim.time.result import Quantiles, TimeResult


def screen(rows: Sequence[Compared]) -> list[RenderableType]:
    """Latencies, requests a second and the SLO; what hits gave; whose scheduling is modelled."""
    timed = [(found, found.time) for found in rows if found.time is not None]
    slo = next((time.attained.slo for _, time in timed if time.attained is not None), None)
    head = title(timed[0][1])
    if slo is not None:
        head.append(f"; SLO {slo}", style="not bold")
    parts: list[RenderableType] = [head, _inset(_latencies(timed, judged=slo is not None))]
    parts += [_inset(Text(line)) for line in _scheduling([found for found, _ in timed])]
    if any(time.utilisation is not None for _, time in timed):
        parts += ["", Text("What hits gave", style="bold"), _inset(_worth(timed))]
    return parts


def _latencies(timed: Sequence[tuple[Compared, TimeResult]], *, judged: bool) -> Table:
    last = ("goodput/s", "within", "SLO") if judged else ("requests/s",)
    table = _table("TTFT p50", "p99", "TPOT p50", "p99", "e2e p99", "queued p99", *last)
    for found, time in timed:
        known, kept = time.latencies, time.attained
        cells = ["-"] * 6
        if known is not None:
            cells = [*_halves(known.ttft), *_halves(known.tpot)]
            cells += [seconds(known.e2e.p99_s), seconds(known.queue.p99_s)]
        if kept is None:
            table.add_row(found.policy, *cells, digits(time.requests_per_s))
            continue
        said = Text("kept", "green") if kept.kept else Text("broken", "bold red")
        share = f"{kept.share_met:.2%}"
        table.add_row(found.policy, *cells, digits(kept.goodput_per_s), share, said)
    return table


def _halves(found: Quantiles | None) -> list[str]:
    return ["-", "-"] if found is None else [seconds(found.p50_s), seconds(found.p99_s)]


def _worth(timed: Sequence[tuple[Compared, TimeResult]]) -> Table:
    compared = any(time.worth is not None for _, time in timed)
    more = ("saved", "ms per 1,000 hit tokens", "TTFT mean", "without hits") if compared else ()
    table = _table("busy", "GPU time", *more)
    for found, time in timed:
        used, worth, known = time.utilisation, time.worth, time.latencies
        cells = ["-", "-"]
        if used is not None:
            cells = [f"{used.busy_share:.1%}", seconds(used.gpu_s)]
        if compared:
            mean = "-" if known is None else seconds(known.ttft.mean_s)
            cells += ["-", "-", mean, "-"]
        if worth is not None:
            sign = "-" if worth.saved_gpu_s < 0 else ""
            cells[2] = sign + seconds(abs(worth.saved_gpu_s))
            cells[3] = digits(worth.ms_per_1000_hit_tokens)
            cells[5] = seconds(worth.latencies.ttft.mean_s)
        table.add_row(found.policy, *cells)
    return table


def _scheduling(rows: Sequence[Compared]) -> list[str]:
    """Families differ in what of their scheduling is modelled, which a reader must know."""
    ahead: dict[str, set[int]] = {}
    for found in rows:
        if found.steps_ahead is not None:
            family = parse_policy(found.policy).family
            ahead.setdefault(family, set()).add(found.steps_ahead)
    said = []
    if "vllm" in ahead:
        steps = " or ".join(f"{count:,}" for count in sorted(ahead["vllm"]))
        steps += " step" if ahead["vllm"] == {1} else " steps"
        said.append(
            "vLLM's steps in flight (async scheduling, pipeline stages) are modelled: arrivals are"
            f" seen {steps} later"
        )
    if "sglang" in ahead:
        said.append(
            "SGLang's overlap is NOT modelled: the very next step sees arrivals, so beside vLLM's"
            " its TTFT reads about a step too low"
        )
    if "marconi" in ahead:
        said.append(
            "Marconi's loop serves one request at a time and batches nothing: compare its hits and"
            " what they gave, not its latencies, with an engine's"
        )
    return said


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for name in titles:
        table.add_column(name, justify="right")
    return table


def _inset(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2))
