"""Facts about the device and small helpers for launching."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import triton.language as tl
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether Triton runs its kernels on the CPU; read once, before kernels are defined."""

DOT_DTYPE = tl.constexpr(tl.float32 if INTERPRETED else tl.bfloat16)
"""Operand dtype of matrix products. NumPy, under the interpreter, has no bfloat16 product."""


@functools.cache
def sm_count(device_index: int) -> int:
    """Multiprocessors of a CUDA device."""
    return int(torch.cuda.get_device_properties(device_index).multi_processor_count)


@functools.cache
def has_tma(device: torch.device) -> bool:
    """Whether host-made tensor descriptors work: compute capability 9 or later, or interpreted."""
    if device.type != "cuda":
        return INTERPRETED
    return torch.cuda.get_device_capability(device)[0] >= 9


@functools.cache
def pipeline_stages(wanted: int, element_bytes: int, device: torch.device) -> int:
    """Depth of a software pipeline that fits shared memory, where ``wanted`` fits 227 KiB in bf16.

    None for 4-byte inputs, which serve tests rather than speed.
    """
    if device.type != "cuda":
        return wanted
    if element_bytes > 2:
        return 1
    index = torch.cuda.current_device() if device.index is None else device.index
    room = driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return wanted if room >= 227 * 1024 else min(wanted, 2) if room >= 160 * 1024 else 1


def descriptor(base: torch.Tensor, rows: int, columns: int, stride: int, block: list[int]) -> Any:
    """TMA descriptor of ``base`` seen as [rows, columns] with rows ``stride`` elements apart.

    The caller has checked what TensorDescriptor's constructor would on every call: 16-byte
    alignment of base and rows, unit inner stride.
    """
    made = object.__new__(TensorDescriptor)
    made.base = base
    made.shape = [rows, columns]
    made.strides = [stride, 1]
    made.block_shape = block
    made.padding = "zero"
    return made


class Launcher:
    """Launches one kernel; past Triton's inspection of arguments once a key was compiled.

    The inspection (binding, specialising, hashing) costs several times the launch. A key must
    determine all it would look at: dtypes, constants, options, and which integers are multiples of
    16. Pointers that are not 16-byte aligned take the ordinary way.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[tuple[object, ...], Any] = {}

    def __call__(
        self,
        key: tuple[object, ...],
        grid: tuple[int, int, int],
        tensors: tuple[torch.Tensor | None, ...],
        rest: tuple[Any, ...],
        **options: Any,
    ) -> None:
        """Launch with arguments (*tensors, *rest)."""
        address = 0
        for t in tensors:
            if t is not None:
                address |= t.data_ptr()
        if INTERPRETED or address & 15:
            self.kernel[grid](*tensors, *rest, **options)
            return
        compiled = self._compiled.get(key)
        if compiled is None:
            self._compiled[key] = self.kernel[grid](*tensors, *rest, **options)
        else:
            compiled[grid](*tensors, *rest)


def next_power_of_2(n: int) -> int:
    """The smallest power of two not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def require_device(device: torch.device) -> None:
    """Raise unless kernels can run on ``device``: CUDA of capability 8.0 on, or interpreted CPU."""
    from hybridplan.kernels.common.checks import KernelInputError

    if device.type == "cuda":
        major, minor = _capability(device)
        if major < 8:
            raise KernelInputError(f"{device} has compute capability {major}.{minor}, needed 8.0")
    elif not INTERPRETED:
        raise KernelInputError(
            f"kernels run on CUDA; for {device} set TRITON_INTERPRET=1 before the first import"
        )


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability(device)
    return int(major), int(minor)
