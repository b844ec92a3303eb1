"""What a reader of one format must offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hybridplan.errors import InputError
from hybridplan.sim.request import Request
from hybridplan.sim.traces.facts import BadRow, Fact, IdScope, Plan, Tally
from hybridplan.sim.traces.options import TraceOptions
from hybridplan.sim.traces.records import Container, Record, Sample, records
from hybridplan.sim.traces.source import Source


@dataclass(frozen=True, slots=True)
class Opening:
    """An opened file before its plan is made: where it is, its first rows, the caller's options."""

    source: Source
    sample: Sample
    options: TraceOptions

    def records(self) -> Iterator[Record]:
        """Every record of the file, from the start."""
        return records(self.source, self.sample.container)

    def first_value(self, *names: str) -> Any:
        """The first value under one of the names in the sample, None if there is none."""
        for row in self.sample.rows:
            for name in names:
                if isinstance(row, dict) and row.get(name) not in (None, ""):
                    return row[name]
        return None

    def scope(self, default: IdScope, why: str) -> Fact:
        """The scope of prefix ids: the caller's word, else the format's."""
        given = self.options.id_scope
        return Fact(given, "given") if given else Fact(default, "format", why)

    def scope_name(self, scope: Fact) -> str:
        """The namespace of this file's ids; "" when they are global."""
        return "" if scope.value == "global" else self.source.fingerprint()

    def refuse(self, sentence: str) -> InputError:
        """An error that names the file."""
        return InputError(f"{self.source.path}: {sentence}")


class Rows(ABC):
    """The parser of one pass: rows in, requests out. It may hold state, bounded per its format."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    @abstractmethod
    def read(self, row: Any) -> Sequence[Request]:
        """The requests one row completes, often exactly one. Raises BadRow."""

    def finish(self) -> Iterable[Request]:
        """Requests still held when the file ends."""
        return ()


class Format(ABC):
    """One trace format: how to know it, and how to read it."""

    name: ClassVar[str]
    containers: ClassVar[tuple[Container, ...]]

    @abstractmethod
    def matches(self, sample: Sample) -> bool:
        """Whether a file's first rows look like this format."""

    @abstractmethod
    def plan(self, opening: Opening) -> Plan:
        """Settle units, block size and scope. Raises InputError naming the option needed."""

    @abstractmethod
    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        """A fresh parser for one pass."""


def need(row: Any, names: Sequence[str]) -> None:
    """BadRow unless a row has all of these keys."""
    missing = [name for name in names if name not in row]
    if missing:
        raise BadRow(f"it has no {' and no '.join(missing)}")
