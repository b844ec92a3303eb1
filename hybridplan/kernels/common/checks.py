"""Checks made on the host before a launch; each raises a one-sentence KernelInputError."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence

import torch

from hybridplan.errors import InputError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class KernelInputError(InputError):
    """A tensor that a kernel cannot take: wrong shape, dtype, device, layout or slot id."""

    kind = "kernel-input"


def require(condition: bool, sentence: str) -> None:
    """Raise :class:`KernelInputError` unless ``condition`` holds."""
    if not condition:
        raise KernelInputError(sentence)


def check_tensor(
    name: str,
    x: torch.Tensor,
    shape: Sequence[int],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    dense_dims: int | None = None,
) -> None:
    """Check shape (-1: any size), dtype, device and that the last ``dense_dims`` are contiguous.

    ``dense_dims=None`` asks for a wholly contiguous tensor. A smaller number lets the outer
    dimensions have any stride, so that q, k and v may be slices of one packed row.
    """
    got = tuple(x.shape)
    if len(got) != len(shape) or any(w not in (-1, g) for g, w in zip(got, shape, strict=True)):
        want = ", ".join("any" if w == -1 else str(w) for w in shape)
        raise KernelInputError(f"{name} has shape {got}, needed ({want})")
    if x.dtype not in dtypes:
        names = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise KernelInputError(f"{name} is {str(x.dtype).removeprefix('torch.')}, needed {names}")
    if x.device != device:
        raise KernelInputError(f"{name} is on {x.device}, the other inputs are on {device}")
    if dense_dims is None:
        if not x.is_contiguous():
            raise KernelInputError(f"{name} with strides {x.stride()} is not contiguous")
        return
    expected = 1
    for size, stride in zip(reversed(got[-dense_dims:]), reversed(x.stride()), strict=False):
        if size != 1 and stride != expected:
            raise KernelInputError(
                f"{name} with strides {x.stride()} is not contiguous in its last {dense_dims} "
                "dimensions"
            )
        expected *= size


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream of ``device`` records a CUDA graph (host reads are forbidden)."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class HostCopies:
    """Host values of small device tensors, read once per content.

    A read of a CUDA tensor waits for the device, so values are kept until the tensor is written
    (torch's version counter) or dies. Tensors made under ``torch.inference_mode`` have no version
    counter and are read each time.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[torch.Tensor], int, tuple[int, ...]]] = {}

    def read(self, name: str, x: torch.Tensor) -> tuple[int, ...]:
        """The values of an integer tensor, flattened; raises during graph capture if unread."""
        key = id(x)
        version = -1 if x.is_inference() else x._version
        kept = self._kept.get(key)
        if kept is not None and kept[0]() is x and kept[1] == version >= 0:
            return kept[2]
        if is_capturing(x.device):
            raise KernelInputError(
                f"{name} is not known on the host and a CUDA graph is being captured; call once "
                "with the same tensor before the capture"
            )
        values = tuple(int(i) for i in x.reshape(-1).tolist())
        drop = self._kept.pop
        self._kept[key] = (weakref.ref(x, lambda _: drop(key, None)), version, values)
        return values


_HOST = HostCopies()


def host_values(name: str, x: torch.Tensor | Sequence[int]) -> tuple[int, ...]:
    """Values of ``x`` on the host; a CUDA tensor is read once per content (see HostCopies)."""
    if isinstance(x, torch.Tensor):
        return _HOST.read(name, x)
    return tuple(map(int, x))


def check_slots(
    name: str,
    slots: torch.Tensor,
    shape: Sequence[int],
    pool_slots: int,
    device: torch.device,
    unique: bool,
) -> None:
    """Check slot ids: int32, contiguous, -1 (padding) or in [0, ``pool_slots``).

    ``unique`` refuses two requests that would write one slot. While a CUDA graph is captured the
    ids cannot be read; kernels treat an id outside the pool as padding, so a replay with a bad id
    writes nothing.
    """
    check_slot_layout(name, slots, shape, device)
    if not is_capturing(device):
        check_ids(name, _HOST.read(name, slots), pool_slots, unique)


def check_slot_layout(
    name: str, slots: torch.Tensor, shape: Sequence[int], device: torch.device
) -> None:
    """Check that slot ids are int32 and contiguous; the common case costs three comparisons."""
    known = slots.dtype is torch.int32 and slots.shape == shape and slots.device == device
    if not (known and slots.is_contiguous()):
        check_tensor(name, slots, shape, (torch.int32,), device)


@functools.lru_cache(maxsize=1024)
def check_ids(name: str, ids: tuple[int, ...], pool_slots: int, unique: bool) -> None:
    """Check that ids are padding or in the pool, and with ``unique`` that none is used twice."""
    for i in ids:
        if not -1 <= i < pool_slots:
            raise KernelInputError(
                f"{name} holds slot {i}, the pool has {pool_slots} slots (0 to {pool_slots - 1}; "
                "-1 is padding)"
            )
    if unique:
        used = [i for i in ids if i >= 0]
        if len(set(used)) != len(used):
            twice = next(i for i in used if used.count(i) > 1)
            raise KernelInputError(f"{name} holds slot {twice} twice; each is written once")


class Passed:
    """Layouts of a call's tensors that have passed their checks, so that each is checked once."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._keys: set[tuple[object, ...]] = set()

    def key(self, *tensors: torch.Tensor | None, also: object = None) -> tuple[object, ...]:
        """What the checks depend on: shape, strides, dtype, device of each, and ``also``."""
        described = [
            None if x is None else (x.shape, x.stride(), x.dtype, x.device) for x in tensors
        ]
        return (also, *described)

    def has(self, key: tuple[object, ...]) -> bool:
        """Whether this layout has passed."""
        return key in self._keys

    def add(self, key: tuple[object, ...]) -> None:
        """Remember a layout; forgets all when full, which costs only checks."""
        if len(self._keys) >= self._most:
            self._keys.clear()
        self._keys.add(key)
