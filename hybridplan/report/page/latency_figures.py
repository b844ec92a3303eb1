"""The times of a replay as an HTML section: curves of latency over requests and over load."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log2

from hybridplan.report.page import svg
from hybridplan.report.page.assets import escape
from hybridplan.report.page.plan_figures import section
from hybridplan.report.simulate_time import seconds
from hybridplan.sim.time.result import CURVE_PERCENTS, Capacity, Probe, Quantiles, TimeResult

_LEAST_S = 1e-5


def latency_section(time: TimeResult | None) -> str:
    """Nothing where the replay had no clock."""
    if time is None or time.latencies is None:
        return ""
    found = time.latencies
    card = time.clock.card or time.clock.name
    said = (
        f"Steps of {card}, {time.clock.how}. Half of the requests have their first token within "
        f"{seconds(found.ttft.p50_s)}, 99 % within {seconds(found.ttft.p99_s)}; "
        f"{time.requests_per_s:.3g} requests and {time.output_tokens_per_s:,.0f} output tokens a "
        "second."
    )
    if time.attained is not None:
        kept = "kept" if time.attained.kept else "not kept"
        said += f" The SLO {time.attained.slo} is {kept}: {time.attained.share_met:.2%} do."
    curves = [("full", "to the first token", found.ttft), ("ink", "queueing", found.queue)]
    if time.worth is not None:
        curves.append(
            ("twin", f"to the first token with {time.worth.baseline}", time.worth.latencies.ttft)
        )
    inside = "<h3>To the first token</h3>" + _over_requests("First token", curves)
    if found.tpot is not None:
        inside += "<h3>Between tokens</h3>"
        inside += _over_requests("Time between tokens", [("full", "a token", found.tpot)])
    inside += _table(time)
    if time.capacity is not None and len(time.capacity.probes) > 1:
        inside += _over_load(time.capacity)
    return section("latency", "Latency", said, inside)


def _over_requests(name: str, curves: Sequence[tuple[str, str, Quantiles]]) -> str:
    """Share of the requests that a time is enough for."""
    values = [value for _, _, found in curves for value in found.curve_s if value > 0]
    low, high = _ends(values)
    first = curves[0][2]
    said = (
        f"{name}: {seconds(first.p50_s)} for half of {first.requests:,} requests, "
        f"{seconds(first.p90_s)} for 90 %, {seconds(first.p99_s)} for 99 %"
    )

    def draw(width: int) -> tuple[int, str]:
        axes = svg.Axes(width, (low, high), (0, 100), log_x=True)
        shares = [(n, f"{n} %") for n in (0, 25, 50, 75, 100)]
        parts = [
            axes.frame(_decades(low, high, width), shares, "time, on a scale of powers of ten")
        ]
        for look, _, found in curves:
            points = [
                (axes.x(max(value, low)), axes.y(percent))
                for percent, value in zip(CURVE_PERCENTS, found.curve_s, strict=True)
            ]
            parts.append(svg.curve(points, look))
        return axes.height, "".join(parts)

    entries = [(f"curve {look}", words) for look, words, _ in curves]
    return svg.legend(entries) + svg.figure(said, draw)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Powers of ten around the values."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    start = max(_LEAST_S, 10.0 ** _exponent(low))
    return start, max(10.0 ** (_exponent(high) + 1), 10 * start)


def _exponent(value: float) -> int:
    """Of the power of ten at or below a value."""
    exponent = floor(log2(max(value, _LEAST_S)) / log2(10))
    return exponent + 1 if value >= 10.0 ** (exponent + 1) else exponent


def _decades(low: float, high: float, width: int) -> list[tuple[float, str]]:
    first, last = _exponent(low), _exponent(high)
    every = 1 if width > svg.ROOMY else ceil((last - first + 1) / 4)
    return [(10.0**n, _mark(n)) for n in range(first, last + 1, every)]


def _mark(exponent: int) -> str:
    unit, base = next((u, b) for u, b in (("s", 0), ("ms", -3), ("us", -6)) if exponent >= b)
    return f"{10 ** (exponent - base):,} {unit}"


def _table(time: TimeResult) -> str:
    found = time.latencies
    assert found is not None
    rows: list[tuple[str, Quantiles | None]] = [
        ("to the first token", found.ttft),
        ("between tokens", found.tpot),
        ("to the last token", found.e2e),
        ("queueing", found.queue),
    ]
    if time.worth is not None:
        rows.append(("to the first token without hits", time.worth.latencies.ttft))
    cells = [
        (name, *map(seconds, (q.p50_s, q.p90_s, q.p99_s, q.max_s, q.mean_s)))
        for name, q in rows
        if q is not None
    ]
    heads = ("", "p50", "p90", "p99", "longest", "mean")
    return svg.table(heads, cells, "Latencies by nearest rank")


def _over_load(capacity: Capacity) -> str:
    """Times at the rates that were tried."""
    probes = sorted(capacity.probes, key=lambda probe: probe.rate_per_s)
    low, high = _ends([probe.ttft_p99_s for probe in probes if probe.ttft_p99_s > 0])
    last = probes[-1].rate_per_s
    best, worst = capacity.best, capacity.next
    said = f"Nothing that was tried keeps {capacity.slo}"
    if best is not None:
        said = f"{best.rate_per_s:.3g} requests a second keep {capacity.slo}"
        said += f", {worst.rate_per_s:.3g} do not" if worst is not None else ""

    def draw(width: int) -> tuple[int, str]:
        axes = svg.Axes(width, (0, last), (low, high), log_y=True)
        steps = 8 if width > svg.ROOMY else 4
        rates = [(last * n / steps, f"{last * n / steps:.3g}") for n in range(steps + 1)]
        marks = [(10.0**n, _mark(n)) for n in range(_exponent(low), _exponent(high) + 1)]
        parts = [axes.frame(rates, marks, "requests a second; first token, 99 %")]
        points = [
            (axes.x(probe.rate_per_s), axes.y(max(probe.ttft_p99_s, low))) for probe in probes
        ]
        parts.append(svg.curve(points, "full"))
        parts += [svg.dot(x, y) for x, y in points]
        return axes.height, "".join(parts)

    heads = ("requests a second", "trace's clock", "SLO kept by", "first token p99", "a token p99")
    rows = [_probe(probe) for probe in probes]
    return (
        f"<h3>Over load</h3><p>{escape(said)}.</p>"
        + svg.figure(f"Latency over load: {said}", draw)
        + svg.table(heads, rows, "Rates that were tried")
    )


def _probe(probe: Probe) -> tuple[str, ...]:
    tpot = "-" if probe.tpot_p99_s is None else seconds(probe.tpot_p99_s)
    share = f"{probe.share_met:.2%}"
    return (
        f"{probe.rate_per_s:.3g}", f"x{probe.speed:.4g}", share, seconds(probe.ttft_p99_s), tpot,
    )  # fmt: skip
