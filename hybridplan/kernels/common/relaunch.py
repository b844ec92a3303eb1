"""Launch a kernel again without Triton's analysis of every argument, which costs tens of µs."""

from __future__ import annotations

from typing import Any

import torch

from hybridplan.kernels.common.launch import INTERPRETED

_MOST_KEYS = 4096


class Relauncher:
    """Remembers the compiled kernel of each layout of a call and launches it directly.

    The key of a call must settle everything that Triton specialises on but the alignment of
    pointers: dtypes, which arguments are None, every integer argument and every constant. Calls
    with a tensor that does not start on 16 bytes, and interpreted ones, take Triton's own way.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[object, Any] = {}

    def __call__(self, key: object, programs: int, *arguments: Any, **options: int) -> None:
        """Launch ``programs`` programs with all arguments of the kernel in order."""
        grid = (programs, 1, 1)
        aligned = all(x.data_ptr() % 16 == 0 for x in arguments if isinstance(x, torch.Tensor))
        if INTERPRETED or not aligned:
            self._kernel[grid](*arguments, **options)
            return
        compiled = self._compiled.get(key)
        if compiled is not None:
            compiled[grid](*arguments)
            return
        if len(self._compiled) >= _MOST_KEYS:
            self._compiled.clear()
        self._compiled[key] = self._kernel[grid](*arguments, **options)
