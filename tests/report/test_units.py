"""Numbers as people read them."""

from __future__ import annotations

import pytest

from hybridplan.report.units import digits


@pytest.mark.parametrize(
    "value, places, text",
    [
        (0.08224, 3, "0.0822"),
        (46.28, 3, "46.3"),
        (999.4, 3, "999"),
        (999.6, 3, "1,000"),
        (5259.7, 3, "5,260"),
        (8997.2, 4, "8,997"),
        (12345.6, 4, "12,346"),
        (-5259.7, 3, "-5,260"),
        (0.0, 3, "0"),
    ],
)
def test_digits(value: float, places: int, text: str) -> None:
    assert digits(value, places) == text
