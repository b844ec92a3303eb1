"""What ``explain-log`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

SCHEMA_VERSION = 1
Origin: TypeAlias = Literal["stated", "inferred", "default"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One piece of the configuration: read in the log or given, inferred from it, or a default."""

    name: str
    value: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class LineVerdict:
    """One line of the log.

    ``ours`` is the same figure recomputed, None where it cannot be. ``agrees`` None: not checked.
    ``formula`` names the rule, old or new where an engine changed it. ``moved_by`` names flags.
    """

    line_number: int
    kind: str
    text: str
    meaning: str
    ours: str | None = None
    agrees: bool | None = None
    formula: str = ""
    moved_by: str = ""


@dataclass(frozen=True, slots=True)
class LogReport:
    """A log explained.

    ``alternatives`` counts other configurations that reproduce the same lines; ``num_blocks`` and
    ``blocks_per_request`` (vLLM) or ``slots`` (SGLang) are what the figures imply.
    """

    schema_version: int
    name: str
    engine: str
    version: str
    model: str | None
    settings: tuple[Setting, ...]
    lines: tuple[LineVerdict, ...]
    num_blocks: int | None
    blocks_per_request: int | None
    slots: int | None
    alternatives: int
    notes: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether no checked line disagrees."""
        return all(line.agrees is not False for line in self.lines)
