"""Latency against the request rate as an HTML section: one small plot for each percentile."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.report.page import scale, svg
from hybridplan.report.page.latency_figures import TITLES
from hybridplan.report.page.plan_figures import section
from hybridplan.report.simulate_time import seconds
from hybridplan.sim.rates import RateCurve, RatePoint, Served
from hybridplan.sim.time.result import Quantiles

_PERCENTS = ("p50", "p90", "p99")
_MARGIN = 1.2
_TITLE_ROOM = 20


@dataclass(frozen=True, slots=True)
class _Metric:
    """One latency over all points. ``without`` is empty where there were no hits to lose."""

    name: str
    rates: tuple[float, ...]
    hits: tuple[Quantiles, ...]
    without: tuple[Quantiles, ...]
    limit_s: float | None

    def values(self, percent: str) -> tuple[list[float], list[float]]:
        """With hits and without, by rate."""
        with_hits, without = (
            [getattr(found, f"{percent}_s") for found in side] for side in (self.hits, self.without)
        )
        return with_hits, without


def rates_section(curve: RateCurve | None) -> str:
    """Nothing where there is no rate to vary."""
    if curve is None or len(curve.points) < 2:
        return ""
    metrics = [found for name in TITLES if (found := _metric(curve, name)) is not None]
    entries = [("curve full", "with prefix caching" if curve.baseline else "no prompt hit")]
    if curve.baseline:
        entries.append(("curve twin", f"with {curve.baseline}"))
    if curve.slo is not None and curve.slo.limits:
        entries.append(("curve ink", "the SLO's limit"))
    entries.append(("curve own", f"the trace's rate, {curve.own.rate_per_s:.3g} requests/s"))
    parts = [svg.legend(entries)]
    for metric in metrics:
        parts.append(f"<h3>{TITLES[metric.name]}</h3>")
        parts.append(svg.figure(_said(curve, metric), _drawn(curve, metric)))
        parts.append(svg.folded("The same as a table", _table(curve, metric)))
    return section("rates", "Latency against the request rate", _note(curve), "".join(parts))


def _metric(curve: RateCurve, name: str) -> _Metric | None:
    """None where a point has no such latency."""
    hits = _quantiles([*(point.hits for point in curve.points)], name)
    if not hits:
        return None
    limit = curve.slo.limits.get(name) if curve.slo is not None else None
    rates = tuple(point.rate_per_s for point in curve.points)
    return _Metric(name, rates, hits, _quantiles([p.without for p in curve.points], name), limit)


def _quantiles(sides: list[Served | None], name: str) -> tuple[Quantiles, ...]:
    """Of each replay; nothing where one has none."""
    found = [getattr(side.latencies, name) for side in sides if side is not None]
    return tuple(found) if len(found) == len(sides) and None not in found else ()


def _note(curve: RateCurve) -> str:
    which = "The trace" if curve.whole else f"The first {curve.requests:,} requests of the trace"
    said = (
        f"{which}, replayed at {len(curve.points)} rates: its clock is run slower and faster, so "
        "bursts stay bursts. Every dot is a replay."
    )
    if curve.at_once_per_s is not None:
        said += f" Sent all at once, {curve.at_once_per_s:.3g} requests a second are served."
    if curve.slo is not None and curve.slo.limits:
        said += f" {_kept(curve)}"
    if curve.interrupted:
        said += " Ctrl-C left out some rates."
    return said


def _kept(curve: RateCurve) -> str:
    assert curve.slo is not None
    best = _best(curve, [point.hits for point in curve.points])
    said = "None of these rates keeps" if best is None else f"Up to {best:.3g} requests/s keep"
    said += f" {curve.slo}"
    if curve.baseline:
        without = _best(curve, [point.without for point in curve.points])
        rate = "none" if without is None else f"up to {without:.3g}"
        said += f"; {rate} with {curve.baseline}"
    return said + ". --find-rate searches between the rates."


def _best(curve: RateCurve, served: list[Served | None]) -> float | None:
    """The highest rate below which every one keeps the SLO."""
    best = None
    for point, found in zip(curve.points, served, strict=True):
        if curve.slo is None or found is None or (found.share_met or 0.0) < curve.slo.share:
            break
        best = point.rate_per_s
    return best


def _said(curve: RateCurve, metric: _Metric) -> str:
    first, last = metric.rates[0], metric.rates[-1]
    own = curve.points.index(curve.own)
    said = (
        f"{TITLES[metric.name]} from {first:.3g} to {last:.3g} requests a second. At the trace's "
        f"rate, {curve.own.rate_per_s:.3g}: median {seconds(metric.hits[own].p50_s)}"
    )
    if metric.without:
        said += f", {seconds(metric.without[own].p50_s)} with {curve.baseline}"
    said += f"; p99 {seconds(metric.hits[own].p99_s)}"
    if metric.without:
        said += f", {seconds(metric.without[own].p99_s)} with {curve.baseline}"
    return said


def _drawn(curve: RateCurve, metric: _Metric) -> svg.Draw:
    every = [v for percent in _PERCENTS for side in metric.values(percent) for v in side]
    y_ends = scale.ends([*every, *([metric.limit_s] if metric.limit_s else [])])
    x_ends = metric.rates[0] / _MARGIN, metric.rates[-1] * _MARGIN

    def draw(width: int) -> tuple[int, str]:
        beside = width > 1000
        columns, height = (3, 270) if beside else (1, 210)
        each = (width - (columns - 1) * 16) // columns
        parts = []
        for index, percent in enumerate(_PERCENTS):
            axes = svg.Axes(each, x_ends, y_ends, height=height, log_x=True, log_y=True)
            x, y = (index * (each + 16), 0) if beside else (0, index * (height + _TITLE_ROOM))
            parts.append(svg.text(x, y + 13, percent, name="strong"))
            panel = _panel(curve, metric, percent, axes)
            parts.append(svg.moved(x, y + _TITLE_ROOM - 4, panel))
        rows = 1 if beside else len(_PERCENTS)
        return rows * (height + _TITLE_ROOM), "".join(parts)

    return draw


def _panel(curve: RateCurve, metric: _Metric, percent: str, axes: svg.Axes) -> str:
    parts = [
        axes.frame(
            [(m, f"{m:g}") for m in scale.marks(*axes.x_ends, 6)],
            [(m, scale.time(m)) for m in scale.marks(*axes.y_ends, axes.height // 30)],
            "requests a second",
        )
    ]
    at = axes.x(curve.own.rate_per_s)
    parts.append(svg.curve([(at, axes.top), (at, axes.height - axes.bottom)], "own"))
    if metric.limit_s is not None:
        y = axes.y(metric.limit_s)
        parts.append(svg.curve([(axes.left, y), (axes.width - axes.right, y)], "ink"))
    with_hits, without = metric.values(percent)
    for values, look in ((without, "twin"), (with_hits, "full")):
        points = [(axes.x(rate), axes.y(v)) for rate, v in zip(metric.rates, values, strict=False)]
        parts.append(svg.curve(points, look))
        parts += [svg.spot(x, y, f"fill-{look}") for x, y in points]
    return "".join(parts)


def _table(curve: RateCurve, metric: _Metric) -> str:
    heads = ["requests/s", "trace's clock", *_PERCENTS]
    if metric.without:
        heads += [f"{percent} without hits" for percent in _PERCENTS]
    judged = curve.slo is not None and bool(curve.slo.limits)
    if judged:
        heads.append("SLO kept by")
        heads += ["without hits by"] if metric.without else []
    rows = []
    for index, point in enumerate(curve.points):
        own = " (the trace's)" if point is curve.own else ""
        cells = [f"{point.rate_per_s:.3g}{own}", f"x{point.speed:g}"]
        for side in (metric.hits, metric.without):
            cells += [seconds(getattr(side[index], f"{p}_s")) for p in _PERCENTS] if side else []
        if judged:
            cells += _shares(point)[: 2 if metric.without else 1]
        rows.append(cells)
    return svg.table(heads, rows, f"{TITLES[metric.name]} by rate")


def _shares(point: RatePoint) -> list[str]:
    sides = (point.hits, point.without)
    return [f"{side.share_met or 0.0:.1%}" if side is not None else "-" for side in sides]
