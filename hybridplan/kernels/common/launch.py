"""Facts about the device and small helpers for launching."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import triton
import triton.language as tl

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


def descriptor(matrix: torch.Tensor, block: tuple[int, int]) -> Any:
    """TMA descriptor of a 2-D tensor with unit inner stride and rows of a multiple of 16 bytes."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), list(block))


def next_power_of_2(n: int) -> int:
    """The smallest power of two not below ``n``."""
    return int(triton.next_power_of_2(n))


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
