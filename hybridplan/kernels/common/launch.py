"""Facts about the device, and how kernels are launched."""

from __future__ import annotations

import functools
import math
import os
from typing import Any, NamedTuple

import torch
import triton.language as tl
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from hybridplan.kernels.common.direct import Direct, hooked, learn

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether Triton runs its kernels on the CPU; read once, before kernels are defined."""

DOT_DTYPE = tl.constexpr(tl.float32 if INTERPRETED else tl.bfloat16)
"""Operand dtype of matrix products. NumPy, under the interpreter, has no bfloat16 product."""


@functools.cache
def sm_count(device_index: int) -> int:
    """Multiprocessors of a CUDA device."""
    return int(torch.cuda.get_device_properties(device_index).multi_processor_count)


@functools.cache
def l2_bytes(device: torch.device) -> int:
    """Size of a CUDA device's L2 cache; 64 KiB under the interpreter, so that small shapes take
    the paths of large ones too."""
    if device.type != "cuda":
        return 1 << 16
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


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


TileMap = tuple[Any, int, int, int, tuple[int, ...]]
"""A tensor seen as [rows, columns], read by tiles: (base, rows, columns, row stride, tile).

The caller has checked that base and rows lie on 16 bytes and that columns are contiguous.
"""


def descriptor(
    base: Any, rows: int, columns: int, stride: int, block: tuple[int, ...]
) -> TensorDescriptor:
    """Triton's descriptor of a :data:`TileMap`, past the checks its constructor would repeat."""
    made = object.__new__(TensorDescriptor)
    made.base = base
    made.shape = [rows, columns] if len(block) == 2 else [columns]
    made.strides = [stride, 1] if len(block) == 2 else [1]
    made.block_shape = list(block)
    made.padding = "zero"
    return made


class Scratch:
    """Pieces of memory that one call needs, taken in a single allocation.

    Ask for all pieces, then :meth:`allocate`. Under the interpreter each piece is a tensor.
    """

    __slots__ = ("_buffer", "base", "bytes", "device")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes = 0
        self.base = 0
        self._buffer: torch.Tensor | None = None

    def piece(self, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        """The next piece, on a multiple of 256 bytes."""
        if INTERPRETED:
            return torch.empty(shape, dtype=dtype, device=self.device)
        made = Piece(self, self.bytes, dtype, shape)
        self.bytes += -(-math.prod(shape) * dtype.itemsize // 256) * 256
        return made

    def allocate(self) -> None:
        """Give the pieces their memory, for as long as this object lives."""
        self._buffer = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
        self.base = self._buffer.data_ptr()


class Piece:
    """A part of a :class:`Scratch` in place of a tensor: what Triton asks of one, and its shape."""

    __slots__ = ("_scratch", "dtype", "offset", "shape")

    def __init__(
        self, scratch: Scratch, offset: int, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> None:
        self._scratch = scratch
        self.offset = offset
        self.dtype = dtype
        self.shape = shape

    def data_ptr(self) -> int:
        """Address in bytes; 256-byte aligned like the offset, as CUDA's allocations are."""
        return self._scratch.base + self.offset


class Launch(NamedTuple):
    """One launch, as data: see :class:`Launcher` for the fields."""

    launcher: Launcher
    grid: tuple[int, int, int]
    tensors: tuple[Any, ...]
    maps: tuple[TileMap | None, ...]
    numbers: tuple[int | float, ...]
    constants: tuple[Any, ...]
    options: dict[str, Any]

    def run(self) -> None:
        """Launch it."""
        self.launcher(
            self.grid, self.tensors, self.maps, self.numbers, self.constants, **self.options
        )

    def direct(self) -> Direct | None:
        """Its direct call, once known."""
        return self.launcher.direct(self)


class Launcher:
    """Launches one kernel, past Triton's inspection of arguments once their kind was compiled.

    Arguments go in the order tensors, maps (:data:`TileMap` or None), numbers, constants; the
    first tensor says the device and is no :class:`Piece`. Three ways, each the fallback of the
    next:

    * Triton's own launch: for every new kind of arguments, for pointers off 16 bytes, under the
      interpreter;
    * the compiled kernel's own launch, which binds nothing: while a profiler's hooks are set, and
      where the third way was not recognised (``refusals`` says why);
    * :class:`hybridplan.kernels.common.direct.Direct`.

    A kind is all that Triton specialises on: the device, dtypes and absence of tensors and maps,
    integers' width and whether they are one or multiples of 16, constants, options.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.refusals: set[str] = set()
        self._kinds: dict[tuple[object, ...], _Compiled] = {}
        self._seen: dict[tuple[object, ...], _Compiled] = {}

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[Any, ...],
        maps: tuple[TileMap | None, ...],
        numbers: tuple[int | float, ...],
        constants: tuple[Any, ...],
        **options: Any,
    ) -> None:
        """Launch on the current stream of the tensors' device; ``grid`` has no zero."""
        if INTERPRETED:
            self._ordinary(grid, tensors, maps, numbers, constants, options)
            return
        active = driver.active
        device = active.get_current_device()
        home = tensors[0].device.index
        if home is not None and home != device:
            with torch.cuda.device(home):
                self(grid, tensors, maps, numbers, constants, **options)
            return
        addresses: list[Any] = []
        dtypes: list[torch.dtype | None] = []
        every = 0
        for t in tensors:
            if t is None:
                addresses.append(None)
                dtypes.append(None)
            else:
                address = t.data_ptr()
                every |= address
                addresses.append(address)
                dtypes.append(t.dtype)
        if every & 15:
            self._ordinary(grid, tensors, maps, numbers, constants, options)
            return
        seen = _seen_key(device, dtypes, maps, numbers, constants, options)
        found = self._seen.get(seen)
        if found is None:
            by_class = (seen[0], tuple([_number_class(x) for x in numbers]), tuple(options))
            found = self._kinds.get(by_class)
            if found is None:
                made = self._ordinary(grid, tensors, maps, numbers, constants, options)
                self._kinds[by_class] = _Compiled(made)
                return
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[seen] = found
        rest = (*numbers, *constants)
        if found.direct is None:
            found.direct = learn(found.kernel, tensors, maps, rest, descriptor)
            if isinstance(found.direct, str):
                self.refusals.add(found.direct)
        if isinstance(found.direct, str) or hooked():
            found.kernel[grid](*tensors, *_descriptors(maps), *rest)
        else:
            stream = active.get_current_stream(device)
            found.direct(grid, stream, device, addresses, maps, rest)

    def direct(self, launch: Launch) -> Direct | None:
        """How these arguments go straight to C on the current device, if that is known by now."""
        dtypes = [None if t is None else t.dtype for t in launch.tensors]
        device = driver.active.get_current_device()
        found = self._seen.get(
            _seen_key(device, dtypes, launch.maps, launch.numbers, launch.constants, launch.options)
        )
        return found.direct if found is not None and isinstance(found.direct, Direct) else None

    def _ordinary(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[Any, ...],
        maps: tuple[TileMap | None, ...],
        numbers: tuple[int | float, ...],
        constants: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        return self.kernel[grid](*tensors, *_descriptors(maps), *numbers, *constants, **options)


_MOST_SEEN = 8192


class _Compiled:
    """A compiled kernel and, after its second launch, how to call it directly or why not."""

    __slots__ = ("direct", "kernel")

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.direct: Direct | str | None = None


def _seen_key(
    device: int,
    dtypes: list[torch.dtype | None],
    maps: tuple[TileMap | None, ...],
    numbers: tuple[int | float, ...],
    constants: tuple[Any, ...],
    options: dict[str, Any],
) -> tuple[tuple[object, ...], tuple[int | float, ...]]:
    """A kind of arguments, save for the classes of its numbers, and the numbers themselves."""
    tiles = tuple([None if m is None else (m[0].dtype, m[4]) for m in maps])
    return (device, tuple(dtypes), tiles, constants, tuple(options.values())), numbers


def _descriptors(maps: tuple[TileMap | None, ...]) -> list[TensorDescriptor | None]:
    return [None if m is None else descriptor(*m) for m in maps]


def _number_class(x: int | float) -> tuple[object, ...]:
    """All that Triton specialises a number on; a superset of what its releases look at."""
    if type(x) is not int:
        return (type(x),)
    return (x == 1, x % 16 == 0, -(2**31) <= x < 2**31, x < 2**63)


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
