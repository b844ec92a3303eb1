"""What the caller may say about a trace instead of letting the reader find out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hybridplan.errors import InputError
from hybridplan.sim.traces.facts import ClockScope, IdScope, TimeUnit

Tokenize = Callable[[str], Sequence[int]]


_CHOICES = {
    "tail": ("ceil", "floor"),
    "time_unit": ("s", "ms", "us", "ns"),
    "clock_scope": ("global", "session"),
    "id_scope": ("global", "file", "session"),
    "inputs": ("cumulative", "delta"),
    "turns": ("all", "first", "last"),
    "order": ("file", "time"),
}


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of ``open_trace``; None means "find out, or refuse".

    ``block_tokens``: tokens per prefix id. ``tail``: whether the last partial block has an id.
    ``tokenizer``: a local folder or a cached name for transformers, or a function from text to
    token ids. ``tokens_per_char``: an estimate used instead of a tokenizer. ``output_tokens``: the
    output length of rows that name none. ``turns``: which answers of a conversation become
    requests. ``order`` "time" sorts by arrival within ``window`` requests. ``link_sessions``:
    read outputs' ids off the session's next prompt (see ``link``). ``skip_bad``: bad rows allowed.
    """

    block_tokens: int | None = None
    tail: Literal["ceil", "floor"] | None = None
    time_unit: TimeUnit | None = None
    clock_scope: ClockScope | None = None
    id_scope: IdScope | None = None
    tokenizer: str | Path | Tokenize | None = None
    tokens_per_char: float | None = None
    inputs: Literal["cumulative", "delta"] | None = None
    output_tokens: int | None = None
    turns: Literal["all", "first", "last"] | None = None
    subagents: bool = True
    order: Literal["file", "time"] = "file"
    window: int = 65536
    link_sessions: bool = False
    drop_empty: bool = False
    skip_bad: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("block_tokens", 1),
            ("output_tokens", 0),
            ("window", 1),
            ("skip_bad", 0),
            ("limit", 1),
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value < least):
                flag = name.replace("_", "-")
                raise InputError(f"--{flag} must be at least {least}, it is {value}")
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in known:
                flag = "clock" if name == "clock_scope" else name.replace("_", "-")
                raise InputError(f"--{flag} must be {' or '.join(known)}, it is {value!r}")
        rate = self.tokens_per_char
        if rate is not None and not 0 < rate <= 16:
            raise InputError(f"--tokens-per-char must lie in (0, 16], it is {rate}")
        if rate is not None and self.tokenizer is not None:
            raise InputError("give either --tokenizer or --tokens-per-char, not both")
