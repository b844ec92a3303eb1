"""Pieces of SVG and HTML that the figures share: one style, text always escaped.

A figure is drawn for windows of three widths, so that its letters keep their size; the style sheet
shows one of them. Numbers are written with one decimal, the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, log2

from hybridplan.report.page.assets import attributes, escape

Draw = Callable[[int], tuple[int, str]]
"""Gets a width and returns height and content."""
WIDTHS = {"wide": 1140, "middle": 700, "narrow": 330}
ROOMY = 500  # from this width on, labels stand beside what they name


def figure(label: str, draw: Draw) -> str:
    """All drawings of one figure.

    Each is named by ``label`` for screen readers, which read only the one that the window shows.
    """
    parts = []
    for name, width in WIDTHS.items():
        height, inside = draw(width)
        head = attributes(
            class_=name, viewBox=f"0 0 {width} {height}", role="img", aria_label=label
        )
        parts.append(f"<svg{head}>{inside}</svg>")
    return "<figure>" + "".join(parts) + "</figure>"


def number(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".removesuffix(".0")


def rect(x: float, y: float, width: float, height: float, name: str) -> str:
    """A box; ``name`` is its class, or "hatched" for space that holds nothing."""
    look = {"fill": "url(#hatched)"} if name == "hatched" else {"class_": name}
    sizes = {"x": x, "y": y, "width": max(width, 0), "height": height}
    return f"<rect{attributes(**{k: number(v) for k, v in sizes.items()}, **look)}/>"


def line(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    """A straight line of a class."""
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return f"<line{attributes(**{k: number(v) for k, v in ends.items()}, class_=name)}/>"


def text(x: float, y: float, words: str, anchor: str | None = None, name: str | None = None) -> str:
    """A label."""
    place = attributes(x=number(x), y=number(y), text_anchor=anchor, class_=name)
    return f"<text{place}>{escape(words)}</text>"


def curve(points: Iterable[tuple[float, float]], name: str) -> str:
    """A line through points."""
    steps = [f"{'L' if i else 'M'}{number(x)} {number(y)}" for i, (x, y) in enumerate(points)]
    return f"<path{attributes(d=''.join(steps), class_=f'curve {name}')}/>" if steps else ""


def spot(x: float, y: float, name: str) -> str:
    """A small point on a curve, filled by its class."""
    return f"<circle{attributes(cx=number(x), cy=number(y), r=3.5, class_=name)}/>"


def moved(x: float, y: float, inside: str) -> str:
    """Content shifted right and down."""
    return f'<g transform="translate({number(x)} {number(y)})">{inside}</g>'


HATCH = (
    '<defs><pattern id="hatched" width="8" height="8" patternUnits="userSpaceOnUse">'
    '<rect width="8" height="8" class="fill-empty"/><path d="M0 8 8 0" class="hatch"/>'
    "</pattern></defs>"
)
# Defined once, before the first figure; a hidden one would not be found by the others.
HATCH_SVG = f'<svg width="0" height="0" aria-hidden="true" style="position:absolute">{HATCH}</svg>'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """What the classes of a figure mean: ("fill-full" or "hatched" or "curve twin", words)."""
    items = []
    for name, words in entries:
        if name.startswith("curve"):
            sign = f'<path d="M1 6H25" class="{name}"/>'
        else:
            sign = rect(0, 0, 26, 12, name)
        items.append(
            f'<li><svg viewBox="0 0 26 12" aria-hidden="true">{sign}</svg>{escape(words)}</li>'
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str, wrap: int | None = None
) -> str:
    """A table whose first column names its rows; column ``wrap`` may break into lines."""
    head = "".join(
        f'<th scope="col"{attributes(class_="left" if i == wrap else None)}>{escape(title)}</th>'
        for i, title in enumerate(heads)
    )
    body = []
    for row in rows:
        cells = [f'<th scope="row">{escape(row[0])}</th>']
        for i, cell in enumerate(row[1:], 1):
            name = attributes(class_="left wrap" if i == wrap else None)
            cells.append(f"<td{name}>{escape(cell)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    region = attributes(class_="scroll", tabindex=0, role="region", aria_label=caption)
    return (
        f"<div{region}><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def folded(title: str, inside: str) -> str:
    """Something to open."""
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


class Axes:
    """A plot's frame: linear or log2 scales in data units, drawn into ``width`` x ``height``."""

    left, right, top, bottom = 74, 20, 16, 46

    def __init__(
        self,
        width: int,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        height: int = 300,
        log_x: bool = False,
        log_y: bool = False,
    ) -> None:
        self.width, self.height = width, height
        self.x_ends, self.y_ends = x, y
        self._log_x, self._log_y = log_x, log_y

    def x(self, value: float) -> float:
        """Where a value lies from the left."""
        room = self.width - self.left - self.right
        return self.left + room * _share(value, self.x_ends, self._log_x)

    def y(self, value: float) -> float:
        """Where a value lies from the top."""
        room = self.height - self.top - self.bottom
        return self.height - self.bottom - room * _share(value, self.y_ends, self._log_y)

    def frame(
        self, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]], title: str
    ) -> str:
        """Grid, axis and labels."""
        floor, end = self.height - self.bottom, self.width - self.right
        parts = []
        for value, words in y_ticks:
            parts.append(line(self.left, self.y(value), end, self.y(value), "grid"))
            parts.append(text(self.left - 10, self.y(value) + 4, words, "end"))
        for value, words in x_ticks:
            parts.append(line(self.x(value), floor, self.x(value), floor + 5, "axis"))
            parts.append(text(self.x(value), floor + 20, words, "middle"))
        parts.append(line(self.left, floor, end, floor, "axis"))
        parts.append(text(end, self.height - 6, title, "end"))
        return "".join(parts)


def _share(value: float, ends: tuple[float, float], log: bool) -> float:
    low, high = ends
    if log:
        return log2(max(value, low) / low) / max(log2(high / low), 1e-9)
    return (value - low) / max(high - low, 1e-9)


def thinned(ticks: Sequence[int], most: int) -> list[int]:
    """Every so many of them, so that at most ``most`` remain."""
    return list(ticks[:: max(1, ceil(len(ticks) / most))])


def round_steps(high: int, most: int) -> list[int]:
    """0 and multiples of 1, 2 or 5 times a power of ten up to ``high``: at most ``most`` + 1."""
    step = 1
    while high > step * most:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(0, high + 1, step))
