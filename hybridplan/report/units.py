"""Numbers as people read them; bytes in powers of two."""

from __future__ import annotations

_STEPS = ((1 << 50, "PiB"), (1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(value: float) -> str:
    """Bytes with a binary unit, three or four digits: 18.63 MiB, 648.0 KiB, 132 B."""
    for step, unit in _STEPS:
        if abs(value) >= step:
            scaled = value / step
            return f"{scaled:,.2f} {unit}" if abs(scaled) < 100 else f"{scaled:,.1f} {unit}"
    return f"{count(value)} B"


def count(value: float) -> str:
    """A number with thousands separators; fractions keep two decimals."""
    return f"{value:,}" if float(value).is_integer() else f"{value:,.2f}"


def digits(value: float, places: int = 3) -> str:
    """That many digits, all of a larger number's whole part: 0.0822, 46.3, 5,260."""
    whole = abs(value) >= 10**places - 0.5
    return f"{value:,.0f}" if whole else f"{value:,.{places}g}"


def exact(value: float) -> str:
    """Bytes in full, and again with a unit where that is shorter: 19,537,920 B (18.63 MiB)."""
    whole = f"{count(value)} B"
    return whole if abs(value) < 1 << 14 else f"{whole} ({size(value)})"


def layers(count_: int) -> str:
    """1 layer, 2 layers."""
    return "1 layer" if count_ == 1 else f"{count_} layers"


def ratio(value: float | None) -> str:
    """12.0, 0.8; two digits below 0.1; - for none."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if value >= 0.1 or value == 0 else f"{value:.2g}"
