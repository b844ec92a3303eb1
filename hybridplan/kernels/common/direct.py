"""Calling Triton's C launcher without the Python above it.

A compiled kernel's launcher flattens its arguments, asks the driver about every pointer and
encodes every tensor map anew at each call. What it hands to C is fixed but for the grid, the
stream, pointers, integers and maps. :func:`learn` records it once and rebuilds it; if the rebuilt
call is not what was recorded (another release, scratch memory, a backend without this launcher),
it says why and the ordinary way stays.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable
from typing import Any

from triton import knobs

Expanded = tuple[Any, ...]
"""What one tensor descriptor becomes in C: a map or an address, then sizes and strides."""

_MOST_MAPS = 4096
_encoders: dict[str, int] = {}
_maps: dict[tuple[object, ...], Expanded] = {}
"""Encoded tensor maps by encoder, device, address, rows, columns and row stride.

A map holds nothing else, so that one made for memory that was freed serves whatever lies there
next with the same layout.
"""


class Direct:
    """One compiled kernel on one device, launched by a single call into C."""

    __slots__ = ("_encode", "_encoders", "_head", "_packed", "_raw", "_start")

    def __init__(
        self,
        raw: Callable[..., None],
        start: int,
        head: tuple[Any, ...],
        packed: bool,
        encode: Callable[[Any, int], Expanded] | None,
        encoders: tuple[int, ...],
    ) -> None:
        self._raw = raw
        self._start = start
        self._head = head
        self._packed = packed
        self._encode = encode
        self._encoders = encoders

    def __call__(
        self,
        grid: tuple[int, int, int],
        stream: int,
        device: int,
        addresses: list[Any],
        maps: tuple[Any, ...],
        rest: tuple[Any, ...],
    ) -> None:
        """Launch with addresses (on 16 bytes), then maps, then numbers and constants."""
        args = addresses
        for i, tile in enumerate(maps):
            args += self.expanded(tile, i, tile[0].data_ptr(), device) if tile else (None,)
        args += rest
        launch, given = self.call(grid, stream, args)
        launch(*given)

    def call(
        self, grid: tuple[int, int, int], stream: int, args: list[Any]
    ) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """The call into C with these arguments, and what it takes before them."""
        rest = (args,) if self._packed else args
        return self._raw, (*grid, stream, self._start, *self._head, *rest)

    def expanded(self, tile: Any, place: int, address: int, device: int) -> Expanded:
        """What map ``place`` becomes with its base at ``address``; encoded once."""
        _, rows, columns, stride, block = tile
        key = (self._encoders[place], device, address, rows, columns, stride)
        found = _maps.get(key)
        if found is None:
            assert self._encode is not None
            if len(_maps) >= _MOST_MAPS:
                _maps.pop(next(iter(_maps)), None)
            at = Address(address, tile[0].dtype)
            found = _maps[key] = self._encode((at, rows, columns, stride, block), place)
        return found


class Address:
    """Stands for a tensor as the base of a map, and keeps none alive."""

    __slots__ = ("_address", "dtype")

    def __init__(self, address: int, dtype: Any) -> None:
        self._address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        """The address in bytes."""
        return self._address


def hooked() -> bool:
    """Whether someone (a profiler) wants to be told of launches, which only Triton does."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter)) or bool(getattr(leave, "calls", leave))


def learn(
    compiled: Any,
    tensors: tuple[Any, ...],
    maps: tuple[Any, ...],
    rest: tuple[Any, ...],
    descriptor: Callable[..., Any],
) -> Direct | str:
    """The direct call of ``compiled``, tried on these arguments without launching, or why not."""
    try:
        return _learn(compiled, tensors, maps, rest, descriptor)
    except (AttributeError, KeyError, LookupError, TypeError, ValueError) as e:
        return f"Triton's launcher is not the known one ({type(e).__name__}: {e})"


def _learn(
    compiled: Any,
    tensors: tuple[Any, ...],
    maps: tuple[Any, ...],
    rest: tuple[Any, ...],
    descriptor: Callable[..., Any],
) -> Direct | str:
    run = compiled.run
    if run.global_scratch_size or run.profile_scratch_size:
        return "the kernel needs scratch memory"
    recorded: list[tuple[Any, ...]] = []

    def record(*args: Any) -> None:
        recorded.append(args)

    probe = copy.copy(run)
    launch = run.launch
    encode: Callable[[Any, int], Expanded] | None = None
    numbers: tuple[int, ...] = ()
    raw: Any = launch
    if not isinstance(launch, types.FunctionType):
        probe.launch = record
    else:
        free = dict(zip(launch.__code__.co_freevars, launch.__closure__ or (), strict=True))
        raw = free["launcher"].cell_contents
        layouts = iter(free["tensordesc_meta"].cell_contents or [None] * len(maps))
        metas = [None if m is None else next(layouts) for m in maps]
        numbers = tuple(
            0 if m is None else _encoders.setdefault(f"{meta} {m[4]} {m[0].dtype}", len(_encoders))
            for m, meta in zip(maps, metas, strict=True)
        )
        encode = _encoder(launch, free, descriptor, metas)
        free["launcher"] = types.CellType(record)
        cells = tuple(free[name] for name in launch.__code__.co_freevars)
        probe.launch = types.FunctionType(
            launch.__code__, launch.__globals__, launch.__name__, launch.__defaults__, cells
        )
    given = (*tensors, *(None if m is None else descriptor(*m) for m in maps), *rest)
    function, metadata = compiled.function, compiled.packed_metadata
    probe(1, 1, 1, 0, function, metadata, None, None, None, *given)
    (args,) = recorded
    if args[:5] != (1, 1, 1, 0, function):
        return "the launcher's first arguments are not grid, stream and function"
    flat: list[Any] = [None if t is None else t.data_ptr() for t in tensors]
    for i, m in enumerate(maps):
        flat += (None,) if m is None or encode is None else encode(m, i)
    flat += rest
    packed = isinstance(args[-1], list | tuple) and _same(args[-1], flat)
    if not packed and not _same(args[len(args) - len(flat) :], flat):
        return "the rebuilt arguments differ from the launcher's"
    head = args[5:-1] if packed else args[5 : len(args) - len(flat)]
    return Direct(raw, function, tuple(head), packed, encode, numbers)


def _encoder(
    launch: Any,
    free: dict[str, types.CellType],
    descriptor: Callable[..., Any],
    metas: list[Any],
) -> Callable[[Any, int], Expanded]:
    if "make_tensordesc_arg" in free:
        make = free["make_tensordesc_arg"].cell_contents
    else:
        make = launch.__globals__["make_tensordesc_arg"]
    more = ((),) if len(inspect.signature(make).parameters) == 3 else ()

    def encode(tile: Any, place: int) -> Expanded:
        made = make(descriptor(*tile), metas[place], *more)
        # A base that stays a tensor goes as its address, so that nothing is kept alive.
        return tuple(x.data_ptr() if hasattr(x, "data_ptr") else x for x in made)

    return encode


def _same(got: Any, rebuilt: list[Any]) -> bool:
    """Whether C would read the same: equal numbers, equal addresses, maps in the same places."""
    if len(got) != len(rebuilt):
        return False
    for a, b in zip(got, rebuilt, strict=True):
        a = a.data_ptr() if hasattr(a, "data_ptr") else a
        if type(a) is not type(b):
            return False
        if type(a).__name__ != "PyCUtensorMap" and a is not b and a != b:
            return False
    return True
