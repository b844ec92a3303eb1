"""A replay as HTML sections: hits, where the rest went, what would help, the pool over time."""

from __future__ import annotations

from collections.abc import Sequence

from hybridplan.report.page import svg
from hybridplan.report.page.assets import escape
from hybridplan.report.page.plan_figures import kind_class, kind_name, section
from hybridplan.report.units import size
from hybridplan.sim.result import Point, SimulateResult


def hits_section(result: SimulateResult) -> str:
    """Of all prompt tokens: hits, what could have been one, what is new; and over time."""
    hits, total = result.hits, result.prompt_tokens
    if not result.requests:
        refused = sum(found.requests for found in result.refused)
        return section("hits", "Hits", f"Not one request was replayed; {refused} were refused.", "")
    if result.trace.unit_tokens is None:
        said = "The trace has no prefix ids, so nothing tells which prompts start alike."
        return section("hits", "Hits", said, "")
    lost = result.lost_tokens
    new = total - hits.usable_tokens - lost
    said = (
        f"{hits.usable_rate:.1%} of {total:,} prompt tokens needed no prefill. KV alone would have "
        f"allowed {hits.kv_rate:.1%}"
    )
    said += (
        f", an infinite cache {hits.ceiling_rate:.1%}." if hits.ceiling_rate is not None else "."
    )
    if not hits.exact:
        upper = f"; the upper is {hits.upper_rate:.1%}" if hits.upper_rate is not None else ""
        said += f" The rate is a lower bound{upper}, because the trace's ids are coarse."
    parts = [("fill-full", "hit", hits.usable_tokens)]
    if hits.ceiling_tokens is not None:
        parts += [("fill-state", "shown before, computed again", lost)]
    parts += [("fill-empty", "new", new)]
    return section("hits", "Hits", said, _shares(parts, total) + _over_time(result))


def _shares(parts: Sequence[tuple[str, str, int]], total: int) -> str:
    said = ", ".join(f"{name} {value / max(total, 1):.1%}" for _, name, value in parts)

    def draw(width: int) -> tuple[int, str]:
        x, drawn = 0.0, []
        for look, _, value in parts:
            share = width * value / max(total, 1)
            drawn.append(svg.rect(x, 0, share, 40, look))
            x += share
        return 42, "".join(drawn)

    entries = [(look, f"{name} {value:,}") for look, name, value in parts]
    return svg.figure(f"Prompt tokens: {said}", draw) + svg.legend(entries)


def _rate(point: Point) -> float:
    return 100 * point.hit_tokens / point.prompt_tokens


def _over_time(result: SimulateResult) -> str:
    points = [point for point in result.timeline if point.prompt_tokens]
    if not points:
        return ""
    last = points[-1].finished
    ceiling = result.hits.ceiling_rate
    said = (
        f"Hit rate over {last:,} finished requests: from {_rate(points[0]):.1f}% in the first "
        f"stretch to {_rate(points[-1]):.1f}% in the last"
    )

    highest = max(100 * (ceiling or 0), *(_rate(point) for point in points))
    top = next((scale for scale in (5, 10, 25, 50) if highest <= scale), 100)
    marks = svg.round_steps(top, 5)

    def draw(width: int) -> tuple[int, str]:
        axes = svg.Axes(width, (0, last), (0, top))
        parts = [
            axes.frame(_ticks(last, width), [(n, f"{n}%") for n in marks], "requests finished")
        ]
        mean = axes.y(100 * result.hits.usable_rate)
        end = width - axes.right
        if ceiling is not None:
            most = axes.y(100 * ceiling)
            parts.append(svg.curve([(axes.left, most), (end, most)], "twin"))
        parts.append(svg.curve([(axes.left, mean), (end, mean)], "ink"))
        steps, before = [], 0
        for point in points:
            steps += [(axes.x(before), axes.y(_rate(point)))]
            steps += [(axes.x(point.finished), axes.y(_rate(point)))]
            before = point.finished
        parts.append(svg.curve(steps, "full"))
        return axes.height, "".join(parts)

    entries = [("curve full", "usable hit, by stretch"), ("curve ink", "over the trace")]
    if ceiling is not None:
        entries.append(("curve twin", "ceiling over the trace"))
    rows = [
        (f"{p.finished:,}", f"{p.prompt_tokens:,}", f"{p.hit_tokens:,}", f"{_rate(p):.1f}%")
        for p in points
    ]
    heads = ("requests finished", "prompt tokens", "hit tokens", "hit rate")
    return (
        "<h3>Over time</h3>"
        + svg.legend(entries)
        + svg.figure(said, draw)
        + svg.folded("The same as a table", svg.table(heads, rows, "Hits by stretch of the replay"))
    )


def _ticks(last: int, width: int) -> list[tuple[float, str]]:
    return [(n, f"{n:,}") for n in svg.round_steps(last, 8 if width > svg.ROOMY else 4)]


def losses_section(result: SimulateResult) -> str:
    """Loss by cause, and what would help."""
    if result.hits.ceiling_tokens is None or not result.losses:
        return ""
    losses = result.losses
    most = losses[0].tokens
    share = result.lost_tokens / max(result.prompt_tokens, 1)
    said = (
        f"{result.lost_tokens:,} tokens ({share:.1%} of all prompt tokens) had been shown before "
        f"and were computed again. The first cause: {losses[0].sentence}."
    )

    def draw(width: int) -> tuple[int, str]:
        pitch, parts = 46, []
        for index, loss in enumerate(losses):
            y = index * pitch
            words = loss.cause.value.replace("_", " ")
            parts.append(svg.text(0, y + 14, words, name="strong"))
            parts.append(svg.text(width, y + 14, f"{loss.tokens:,}, {loss.share:.1%}", "end"))
            parts.append(svg.rect(0, y + 20, width, 14, "fill-empty"))
            parts.append(svg.rect(0, y + 20, width * loss.tokens / max(most, 1), 14, "fill-state"))
        return len(losses) * pitch - 6, "".join(parts)

    rows = [
        (
            loss.cause.value.replace("_", " "),
            f"{loss.tokens:,}",
            f"{loss.share:.1%}",
            loss.sentence,
        )
        for loss in losses
    ]
    heads = ("cause", "tokens", "of the loss", "meaning")
    return section(
        "losses",
        "Where the rest went",
        said,
        svg.figure(said, draw)
        + svg.folded("The causes in words", svg.table(heads, rows, "Lost tokens by cause", wrap=3))
        + _advice(result),
    )


def _advice(result: SimulateResult) -> str:
    advice = result.advice
    if advice is None:
        return ""
    if not advice.suggestions:
        inside = '<p class="note">Nothing that was tried gains 0.1 points.</p>'
    else:
        rows = [
            (
                " ".join(found.flags),
                f"{found.base_rate:.1%} to {found.hit_rate:.1%}",
                "" if found.recovered is None else f"{found.recovered:.0%}",
                f"{found.requests:,}",
                "; ".join(part for part in (found.why, found.price) if part),
            )
            for found in advice.suggestions
        ]
        heads = ("with", "hit rate", "of the loss", "requests re-run", "why, and its price")
        inside = svg.table(heads, rows, "Changes that were re-run, best first", wrap=4)
    note = f'<p class="note">Note: {escape(advice.note)}.</p>' if advice.note else ""
    return f"<h3>What would help</h3>{inside}{note}"


def pool_section(result: SimulateResult) -> str:
    """Blocks over time, by what holds them."""
    points = result.timeline
    if not points:
        return ""
    lines: dict[str, list[float]] = {}
    for index, use in enumerate(result.use):
        values = [point.mean_blocks[index] for point in points]
        known = lines.get(use.kind, [0.0] * len(points))
        lines[use.kind] = [a + b for a, b in zip(known, values, strict=True)]
    cached = [float(point.cached_blocks) for point in points]
    pool = result.num_blocks
    peak = max([*cached, *(value for held in lines.values() for value in held), pool or 1, 2])
    evicted = f"blocks evicted: {result.evictions:,}"
    said = (
        f"Requests running at once: {result.queue.peak_running:,} at most; waiting: "
        f"{result.queue.peak_waiting:,} at most; preemptions: {result.queue.preemptions:,}; "
        f"{evicted}; "
        f"{size(result.held_bytes)} of content stayed at the end."
    )

    def draw(width: int) -> tuple[int, str]:
        top = 1 << max(int(peak) - 1, 1).bit_length()
        axes = svg.Axes(width, (0, points[-1].finished), (1, top), log_y=True)
        ticks = svg.thinned([1 << n for n in range(top.bit_length())], 7)
        parts = [
            axes.frame(
                _ticks(points[-1].finished, width),
                [(n, f"{n:,}") for n in ticks],
                "requests finished",
            )
        ]
        for kind, values in lines.items():
            along = zip(points, values, strict=True)
            path = [(axes.x(p.finished), axes.y(value)) for p, value in along]
            parts.append(svg.curve(path, kind_class(kind)))
        along = zip(points, cached, strict=True)
        parts.append(svg.curve([(axes.x(p.finished), axes.y(v)) for p, v in along], "twin"))
        if pool is not None:
            y = axes.y(pool)
            parts.append(svg.curve([(axes.left, y), (width - axes.right, y)], "ink"))
        return axes.height, "".join(parts)

    entries = [
        (f"curve {kind_class(kind)}", f"{kind_name(kind)}, held by requests") for kind in lines
    ]
    entries.append(("curve twin", "free and cached"))
    if pool is not None:
        entries.append(("curve ink", "the pool"))
    rows = [
        (
            f"{point.finished:,}",
            *(f"{lines[kind][index]:,.1f}" for kind in lines),
            f"{point.cached_blocks:,}",
            f"{point.evictions:,}",
        )
        for index, point in enumerate(points)
    ]
    heads = ("requests finished", *(kind_name(kind) for kind in lines), "cached", "evicted by then")
    caption = "Blocks by stretch: held on average, cached at its end"
    return section(
        "pool",
        "The pool over time",
        said,
        svg.legend(entries)
        + svg.figure(said, draw)
        + svg.folded("The same as a table", svg.table(heads, rows, caption)),
    )
