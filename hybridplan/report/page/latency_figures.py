"""The times of a replay as an HTML section: their distribution over requests, and rates tried."""

from __future__ import annotations

from collections.abc import Sequence

from hybridplan.report.page import scale, svg
from hybridplan.report.page.assets import escape
from hybridplan.report.page.plan_figures import section
from hybridplan.report.simulate_time import seconds
from hybridplan.sim.time.result import CURVE_PERCENTS, Capacity, Probe, Quantiles, TimeResult

TITLES = {"ttft": "Time to first token", "tpot": "Time between tokens"}


def latency_section(time: TimeResult | None) -> str:
    """Nothing where the replay had no clock."""
    if time is None or time.latencies is None:
        return ""
    found = time.latencies
    card = time.clock.card or time.clock.name
    said = (
        f"Steps of {card}, {time.clock.how}. Half of the requests have their first token within "
        f"{seconds(found.ttft.p50_s)}, 99% within {seconds(found.ttft.p99_s)}; "
        f"{time.requests_per_s:.3g} requests and {time.output_tokens_per_s:,.0f} output tokens a "
        "second."
    )
    if time.worth is not None:
        less = "lower" if time.worth.saved_ttft_s >= 0 else "higher"
        said += (
            f" With hits the mean time to first token is {seconds(abs(time.worth.saved_ttft_s))} "
            f"{less} than with {time.worth.baseline}."
        )
    if time.attained is not None:
        kept = "kept" if time.attained.kept else "not kept"
        said += f" The SLO {time.attained.slo} is {kept}: {time.attained.share_met:.2%} do."
    if time.offered_per_s is None:
        said += (
            " Latency against the request rate takes --arrival timed, and requests that do not all"
            " arrive at once."
        )
    limits = time.attained.slo.limits if time.attained is not None else {}
    inside = ""
    for name, title in TITLES.items():
        curves = [("full", "as replayed", getattr(found, name))]
        if time.worth is not None:
            without = getattr(time.worth.latencies, name)
            curves.append(("twin", f"with {time.worth.baseline}", without))
        known = [(look, words, values) for look, words, values in curves if values is not None]
        if known:
            inside += f"<h3>{title}</h3>" + _over_requests(title, known, limits.get(name))
    inside += "<h3>In numbers</h3>" + _table(time)
    if time.capacity is not None:
        inside += _searched(time.capacity)
    return section("latency", "Latency", said, inside)


def _over_requests(
    title: str, curves: Sequence[tuple[str, str, Quantiles]], limit_s: float | None
) -> str:
    """Share of the requests that a time is enough for."""
    values = [value for _, _, found in curves for value in found.curve_s]
    low, high = scale.ends([*values, *([limit_s] if limit_s is not None else [])])
    first = curves[0][2]
    said = (
        f"{title}: {seconds(first.p50_s)} or less for half of {first.requests:,} requests, "
        f"{seconds(first.p90_s)} for 90%, {seconds(first.p99_s)} for 99%"
    )

    def draw(width: int) -> tuple[int, str]:
        axes = svg.Axes(width, (low, high), (0, 100), log_x=True)
        times = scale.marks(low, high, 10 if width > svg.ROOMY else 4)
        shares = [(n, f"{n}%") for n in (0, 25, 50, 75, 100)]
        parts = [
            axes.frame(
                [(mark, scale.time(mark)) for mark in times],
                shares,
                "share of the requests within this time, log scale",
            )
        ]
        if limit_s is not None:
            at = axes.x(limit_s)
            parts.append(svg.curve([(at, axes.top), (at, axes.height - axes.bottom)], "ink"))
        for look, _, found in curves:
            points = [
                (axes.x(value), axes.y(percent))
                for percent, value in zip(CURVE_PERCENTS, found.curve_s, strict=True)
            ]
            parts.append(svg.curve(points, look))
        return axes.height, "".join(parts)

    entries = [(f"curve {look}", words) for look, words, _ in curves]
    if limit_s is not None:
        entries.append(("curve ink", f"the SLO's limit, {scale.time(limit_s)}"))
    rows = [
        (f"{percent}%", *(seconds(found.curve_s[index]) for _, _, found in curves))
        for index, percent in enumerate(CURVE_PERCENTS)
    ]
    heads = ("requests", *(words for _, words, _ in curves))
    same = svg.table(heads, rows, f"{title}: enough for this share of the requests")
    return svg.legend(entries) + svg.figure(said, draw) + svg.folded("The same as a table", same)


def _table(time: TimeResult) -> str:
    found = time.latencies
    assert found is not None
    rows: list[tuple[str, Quantiles | None]] = [
        ("first token", found.ttft),
        ("next token", found.tpot),
        ("last token", found.e2e),
        ("admission (queueing)", found.queue),
    ]
    if time.worth is not None:
        rows.append(("first token without hits", time.worth.latencies.ttft))
    cells = [
        (name, *map(seconds, (q.p50_s, q.p90_s, q.p99_s, q.max_s, q.mean_s)))
        for name, q in rows
        if q is not None
    ]
    heads = ("time to", "p50", "p90", "p99", "longest", "mean")
    return svg.table(heads, cells, "Latencies by nearest rank")


def _searched(capacity: Capacity) -> str:
    """The rates that ``--find-rate`` tried."""
    best, worst = capacity.best, capacity.next
    said = f"Nothing that was tried keeps {capacity.slo}"
    if best is not None:
        said = f"{best.rate_per_s:.3g} requests a second keep {capacity.slo}"
        said += f", {worst.rate_per_s:.3g} do not" if worst is not None else ""
    heads = ("requests a second", "trace's clock", "SLO kept by", "first token p99", "a token p99")
    rows = [_probe(probe) for probe in sorted(capacity.probes, key=lambda probe: probe.speed)]
    return (
        f'<h3>Highest rate that keeps the SLO</h3><p class="note">{escape(said)}.</p>'
        + svg.table(heads, rows, "Rates that were tried, each on the whole trace")
    )


def _probe(probe: Probe) -> tuple[str, ...]:
    ttft, tpot = (
        "-" if value is None else seconds(value) for value in (probe.ttft_p99_s, probe.tpot_p99_s)
    )
    share = f"{probe.share_met:.2%}"
    return f"{probe.rate_per_s:.3g}", f"x{probe.speed:.4g}", share, ttft, tpot
