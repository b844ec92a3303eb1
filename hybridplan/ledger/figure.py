"""A number that knows its formula, its inputs and how it was obtained."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.config.spec import How

_RANK: dict[str, int] = {"exact": 0, "derived": 1, "assumed": 2, "measured": 3}


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a formula: its name there, its value, the config key (or figure) behind it."""

    name: str
    value: int | float | str
    origin: str
    how: How = "exact"


@dataclass(frozen=True, slots=True)
class Figure:
    """``value`` in ``unit`` ("bytes", "tokens", "elements", "ratio", ...).

    ``formula`` is written with the names of ``inputs``; ``source`` is the rule behind it (engine
    version and its own name for the rule, or a paper section).
    """

    name: str
    value: int | float
    unit: str
    formula: str
    inputs: tuple[Input, ...] = ()
    how: How = "derived"
    source: str = ""


def weakest(inputs: tuple[Input, ...]) -> How:
    """How a result of these inputs was obtained: assumed if any was; exact inputs give derived."""
    worst = max((i.how for i in inputs), key=lambda how: _RANK[how], default="exact")
    return "assumed" if worst == "assumed" else "measured" if worst == "measured" else "derived"
