"""Repeating a call of several launches with other tensors of the same layout.

Between two calls that agree in all layouts, options and tables, only addresses differ. A
:class:`Recipe` knows where each of them goes in the arguments of every launch, so that a repeated
call is one allocation, a few assignments and one call into C a launch. At addresses of an earlier
call, the allocation's among them, the arguments are there already.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from triton.runtime import driver

from hybridplan.kernels.common.checks import is_capturing
from hybridplan.kernels.common.direct import Address, Direct, Expanded, hooked
from hybridplan.kernels.common.launch import INTERPRETED, Launch, Piece, Scratch

_MOST_MAPS = 64
_SCRATCH = -1
"""In place of an input's number: an address counts from the scratch memory."""


class _Step:
    """One launch: fixed arguments, and where inputs, pieces and maps go among them."""

    __slots__ = ("_args", "_direct", "_grid", "_maps", "_moving")

    def __init__(self, launch: Launch, direct: Direct, inputs: Sequence[Any], device: int) -> None:
        self._direct = direct
        self._grid = launch.grid
        self._args: list[Any] = []
        self._moving: list[tuple[int, int, int]] = []
        self._maps: list[tuple[int, int, int, int, Any, dict[int, Expanded]]] = []
        for x in launch.tensors:
            number, offset = _origin(x, inputs)
            if number is not None:
                self._moving.append((len(self._args), number, offset))
            self._args.append(None if x is None else x.data_ptr())
        for place, tile in enumerate(launch.maps):
            if tile is None:
                self._args.append(None)
                continue
            number, offset = _origin(tile[0], inputs)
            assert number is not None
            kept = (Address(0, tile[0].dtype), *tile[1:])
            self._maps.append((len(self._args), number, offset, place, kept, {}))
            self._args += direct.expanded(tile, place, tile[0].data_ptr(), device)
        self._args += (*launch.numbers, *launch.constants)

    def call(
        self, addresses: Sequence[int], stream: int, device: int
    ) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """The launch with inputs at ``addresses``, the last of which is the scratch memory's."""
        args = self._args.copy()
        for at, number, offset in self._moving:
            args[at] = addresses[number] + offset
        for at, number, offset, place, tile, known in self._maps:
            address = addresses[number] + offset
            expanded = known.get(address)
            if expanded is None:
                if len(known) >= _MOST_MAPS:
                    known.clear()
                expanded = known[address] = self._direct.expanded(tile, place, address, device)
            args[at : at + len(expanded)] = expanded
        return self._direct.call(self._grid, stream, args)


def _origin(x: Any, inputs: Sequence[Any]) -> tuple[int | None, int]:
    """Number and offset of what ``x`` lies in; no number for a table, which does not move."""
    if isinstance(x, Piece):
        return _SCRATCH, x.offset
    return next((i for i, y in enumerate(inputs) if y is x and x is not None), None), 0


class Recipe:
    """The launches of a call, ready to be repeated on the same device with other inputs."""

    __slots__ = ("_device", "_home", "_scratch_bytes", "_steps", "_tables")

    def __init__(
        self, steps: list[_Step], device: int, home: torch.device, scratch_bytes: int, tables: Any
    ) -> None:
        self._steps = steps
        self._device = device
        self._home = home
        self._scratch_bytes = scratch_bytes
        self._tables = tables

    def run(self, inputs: Sequence[Any]) -> bool:
        """Launch all on the current stream; False, and nothing done, where that is not possible.

        That is: another current device, an input off 16 bytes, or a profiler's hooks.
        """
        active = driver.active
        device = active.get_current_device()
        if device != self._device or hooked():
            return False
        scratch = torch.empty(self._scratch_bytes, dtype=torch.uint8, device=self._home)
        stream = active.get_current_stream(device)
        addresses = [0 if x is None else x.data_ptr() for x in inputs]
        key = (self, stream, scratch.data_ptr(), *addresses)
        calls = _calls.get(key)
        if calls is None:
            addresses.append(key[2])
            if functools.reduce(operator.or_, addresses) & 15:
                return False
            calls = [step.call(addresses, stream, device) for step in self._steps]
            if len(_calls) >= _MOST_CALLS:
                _calls.clear()
            _calls[key] = calls
        for launch, args in calls:
            launch(*args)
        return True


_MOST_CALLS = 1024
_calls: dict[tuple[Any, ...], list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
"""Launches as C takes them, by recipe, stream and addresses."""


def recipe(
    launches: Sequence[Launch], inputs: Sequence[Any], scratch: Scratch, tables: Sequence[Any]
) -> Recipe | None:
    """The recipe of a call that has been launched, or None while it has none.

    ``inputs`` move from call to call, ``tables`` stay and are kept. There is no recipe while a
    launch is not known to go straight to C, if an input is off 16 bytes (which may have chosen
    other kernels), if one tensor is passed as two inputs (the next call may pass two), or if a
    launch takes a tensor that is neither input nor table.
    """
    given = [id(x) for x in inputs if x is not None]
    known = {*given, *(id(x) for x in tables)}
    device = driver.active.get_current_device()
    home = launches[0].tensors[0].device
    if len(set(given)) < len(given) or home.index not in (None, device):
        return None
    if any(x is not None and x.data_ptr() & 15 for x in inputs):
        return None
    steps = []
    for launch in launches:
        direct = launch.direct()
        used = [*launch.tensors, *(m[0] for m in launch.maps if m is not None)]
        strange = any(not (x is None or isinstance(x, Piece) or id(x) in known) for x in used)
        if direct is None or strange:
            return None
        steps.append(_Step(launch, direct, inputs, device))
    return Recipe(steps, device, home, scratch.bytes, tuple(tables))


def launch_all(
    launches: Sequence[Launch], inputs: Sequence[Any], scratch: Scratch, tables: Sequence[Any]
) -> Recipe | None:
    """Allocate the scratch memory, launch all, and return the recipe if there is one by now."""
    scratch.allocate()
    for launch in launches:
        launch.run()
    if INTERPRETED or is_capturing(scratch.device):
        return None
    return recipe(launches, inputs, scratch, tables)


class Recipes:
    """Recipes by all that a call depends on but addresses; the oldest is dropped when full."""

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._kept: dict[tuple[object, ...], Recipe] = {}

    def get(self, key: tuple[object, ...], device: torch.device) -> Recipe | None:
        """The recipe of a call like this one; none while a graph is captured.

        A captured graph needs its tables for ever, which only the ordinary way sees to.
        """
        found = self._kept.get(key)
        return None if found is None or is_capturing(device) else found

    def add(self, key: tuple[object, ...], made: Recipe | None) -> None:
        """Keep a recipe, if there is one."""
        if made is None:
            return
        if len(self._kept) >= self._most:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[key] = made
