"""The cache policies a trace can be replayed under, by name.

``vllm[@VERSION][:all]``, ``sglang[:STRATEGY]``, ``marconi:paper``, ``marconi:artifact``,
``marconi:alpha=X`` (a fixed weight, paper mode) and the artifact's baselines ``marconi:sglang+``
and ``marconi:vllm+``. With ``:all`` a state is kept at every block, which no present vLLM does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybridplan.errors import InputError

Family: TypeAlias = Literal["vllm", "sglang", "marconi"]
FAMILIES: tuple[Family, ...] = ("vllm", "sglang", "marconi")
_VERSIONS = ("0.33", "0.32")
_STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy", "auto")
_MARCONI = ("paper", "artifact", "sglang+", "vllm+")

EVERY = (
    "vllm@0.33",
    "vllm@0.32",
    "vllm@0.33:all",
    "sglang:no_buffer",
    "sglang:extra_buffer",
    "sglang:extra_buffer_lazy",
    "marconi:paper",
    "marconi:artifact",
    "marconi:sglang+",
    "marconi:vllm+",
)


@dataclass(frozen=True, slots=True)
class Policy:
    """A parsed name. ``choice`` is what stands behind the colon, ``alpha`` of ``alpha=X``."""

    name: str
    family: Family
    version: str = ""
    choice: str = ""
    alpha: float = 0.0


def parse_policy(text: str) -> Policy:
    """The policy of that name, with what it leaves out filled in. InputError for no such one."""
    head, _, choice = text.strip().lower().partition(":")
    engine, _, version = head.partition("@")
    if engine == "vllm" and choice in ("", "all") and version in ("", *_VERSIONS):
        version = version or _VERSIONS[0]
        return Policy(f"vllm@{version}{':all' if choice else ''}", "vllm", version, choice)
    if engine == "sglang" and not version and choice in ("", *_STRATEGIES):
        choice = choice or "auto"
        return Policy(f"sglang:{choice}", "sglang", choice=choice)
    if engine == "marconi" and not version:
        choice = choice or "paper"
        if choice in _MARCONI:
            return Policy(f"marconi:{choice}", "marconi", choice=choice)
        key, _, number = choice.partition("=")
        if key == "alpha":
            try:
                alpha = float(number)
            except ValueError:
                alpha = -1.0
            if 0 <= alpha < float("inf"):
                return Policy(f"marconi:alpha={alpha:g}", "marconi", choice="alpha", alpha=alpha)
    raise InputError(
        f"policy {text!r} is not known; known are {', '.join(EVERY)}, sglang:auto and"
        " marconi:alpha=X"
    )
