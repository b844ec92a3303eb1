"""The packages of the gpu extra, loaded when asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hybridplan.errors import MissingExtraError

_INSTALL = 'install with: pip install "hybridplan[gpu]"'


def load(package: str, why: str) -> Any:
    """Import a package of the gpu extra. Raises MissingExtraError naming it and what it is for."""
    try:
        return import_module(package)
    except ImportError:
        raise MissingExtraError(f"{why} needs {package}, which is missing; {_INSTALL}") from None


def require_kernels(*, interpreted: bool) -> Any:
    """torch, after making sure of triton. ``interpreted`` runs kernels on the CPU.

    Triton reads its switch when a kernel is defined, so this comes before any kernel module.
    """
    torch = load("torch", "measure")
    if find_spec("triton") is None:
        raise MissingExtraError(f"measure needs triton, which is missing; {_INSTALL}")
    if interpreted:
        os.environ["TRITON_INTERPRET"] = "1"
    return torch


@dataclass
class Compiled:
    """Kernels that Triton had to compile since it was watched, and the seconds that took."""

    kernels: int = 0
    seconds: float = 0.0

    def note(self) -> tuple[str, ...]:
        """A sentence on them; () where all came from Triton's cache."""
        if not self.kernels:
            return ()
        return (
            f"{self.kernels} kernels were compiled in {self.seconds:.0f} s of this run; they are "
            "kept, so the next run here is that much shorter",
        )


def watch_compiler() -> Compiled:
    """Count what Triton compiles from now on."""
    from triton import knobs

    seen = Compiled()

    def listen(*, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            seen.kernels += 1
            seen.seconds += times.total / 1e6

    knobs.compilation.listener = listen
    return seen


def version(package: str) -> str:
    """The version of a package, "" where it is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed(package)
    except PackageNotFoundError:
        return ""
