"""Colours: enough contrast in both schemes, and apart for readers who see fewer hues."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from hybridplan.report.page.assets import asset

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
_SIGHT = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
_MARKS = ("full", "window", "state", "twin")


def schemes() -> dict[str, dict[str, str]]:
    """Name to colour, as the style sheet has them."""
    light, dark = re.findall(r":root \{(.*?)\}", asset("page.css"), re.DOTALL)[:2]
    found = {}
    for name, block in (("light", light), ("dark", dark)):
        found[name] = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    return found


def linear(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(  # type: ignore[return-value]
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)
    )


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's ratio."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    red, green, blue = (min(max(c, 0.0), 1.0) for c in rgb)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def apart(one: str, other: str, sight: str | None) -> float:
    """CIE 1976 colour difference as that reader sees it."""

    def seen(colour: str) -> tuple[float, ...]:
        rgb = linear(colour)
        if sight is None:
            return rgb
        return tuple(sum(w * c for w, c in zip(row, rgb, strict=True)) for row in _SIGHT[sight])

    pairs = zip(lab(seen(one)), lab(seen(other)), strict=True)
    return sum((a - b) ** 2 for a, b in pairs) ** 0.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_marks_stand_out(scheme: str) -> None:
    colours = schemes()[scheme]
    for ground in ("paper", "ground", "faint"):
        for ink in ("ink", "soft", "accent"):
            ratio = contrast(colours[ink], colours[ground])
            assert ratio >= 4.5, f"{ink} on {ground} has {ratio:.2f}"
    assert contrast(colours["warn"], colours["warn-ground"]) >= 4.5
    for mark in (*_MARKS, "other", "focus"):
        ratio = contrast(colours[mark], colours["paper"])
        assert ratio >= 3, f"{mark} on paper has {ratio:.2f}"


@pytest.mark.parametrize("sight", [None, *_SIGHT])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_are_told_apart(scheme: str, sight: str | None) -> None:
    colours = schemes()[scheme]
    for one, other in combinations(_MARKS, 2):
        far = apart(colours[one], colours[other], sight)
        assert far >= 15, f"{one} and {other} are {far:.1f} apart"
