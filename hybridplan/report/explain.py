"""A figure with the chain behind it, as indented lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hybridplan.ledger.figure import Figure, Input
from hybridplan.report.units import count

_FIGURE = "figure "


def chains(wanted: Sequence[Figure], all_figures: Sequence[Figure]) -> Iterator[str]:
    """Lines of every wanted figure: value, formula, inputs and what is behind the inputs.

    A figure already explained above is named, not repeated.
    """
    known = {figure.name: figure for figure in all_figures}
    shown: set[str] = set()
    for figure in wanted:
        yield from _lines(figure, known, shown, "")


def _lines(
    figure: Figure, known: Mapping[str, Figure], shown: set[str], indent: str
) -> Iterator[str]:
    yield f"{indent}{figure.name} = {count(figure.value)} {figure.unit}  [{figure.how}]"
    if figure.name in shown:
        yield f"{indent}  as above"
        return
    shown.add(figure.name)
    yield f"{indent}  = {figure.formula}"
    for item in figure.inputs:
        if item.origin.startswith(_FIGURE):
            yield from _lines(
                known[item.origin.removeprefix(_FIGURE)], known, shown, indent + "    "
            )
        else:
            yield f"{indent}    {_input(item)}"
    yield f"{indent}  source: {figure.source}"


def _input(item: Input) -> str:
    value = item.value if isinstance(item.value, str) else count(item.value)
    return f"{item.name} = {value}  [{item.how}] {item.origin}"
