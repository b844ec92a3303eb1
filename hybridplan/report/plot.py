"""The ledger as a picture: memory against context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybridplan.ledger.result import Ledger
from hybridplan.report.canvas import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIB = 1 << 20
_FIRST_TOKENS = 64


def curve_contexts(max_tokens: int) -> tuple[int, ...]:
    """Lengths close enough for a smooth curve: four to each doubling, up to the maximum."""
    lengths = [_FIRST_TOKENS]
    while lengths[-1] < max_tokens:
        lengths.append(min(max_tokens, int(_FIRST_TOKENS * 2 ** (len(lengths) / 4))))
    return tuple(lengths)


def memory_against_context(ledgers: Sequence[Ledger], path: Path) -> None:
    """Draw a request's MiB against its contexts, hybrid and twin, with the crossovers marked.

    Errors are those of ``canvas.drawing``.
    """
    with drawing(path) as axes:
        for index, ledger in enumerate(ledgers):
            _lines(axes, ledger, f"C{index}")
        _frame(axes, ledgers)


def _lines(axes: Axes, ledger: Ledger, colour: str) -> None:
    lengths = [line.tokens for line in ledger.contexts]
    name = ledger.model.name
    hybrid = [line.hybrid_bytes / _MIB for line in ledger.contexts]
    axes.plot(lengths, hybrid, color=colour, label=name)
    twins = [line.twin_bytes for line in ledger.contexts]
    if any(twin is None for twin in twins) or not ledger.model.recurrent_layers:
        return
    twin = [(value or 0) / _MIB for value in twins]
    axes.plot(lengths, twin, color=colour, linestyle="--", label=f"{name}, all attention")
    tokens = ledger.crossover.tokens
    if tokens:
        axes.axvline(tokens, color=colour, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"{tokens:,}",
            (tokens, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            color=colour,
        )


def _frame(axes: Axes, ledgers: Sequence[Ledger]) -> None:
    deployment = ledgers[0].deployment
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("one request on one rank, MiB")
    axes.set_title(f"{deployment.engine}, tp {deployment.tp}: dotted lines mark the crossover")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")
