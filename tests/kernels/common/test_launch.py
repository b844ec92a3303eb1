"""Ways of launching: what makes a new kind of arguments, and that all ways launch the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybridplan.kernels.common import direct, launch, recipe
from hybridplan.kernels.common.launch import Launch, Launcher, Scratch

BLOCK = (64, 128)
OPERATORS = (
    "gated_delta prefill, segments",
    "gated_delta decode",
    "scalar_decay prefill, Mamba-2",
    "state_copy",
)


@pytest.mark.skipif(
    torch.cuda.is_available() or not shutil.which(os.environ.get("CC", "cc")),
    reason="needs a C compiler, and no driver that would be loaded in the idle one's place",
)
def test_every_way_gives_the_driver_the_same() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("launch_paths.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *OPERATORS],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)
    assert sorted(rows) == sorted(OPERATORS)
    for operator, row in rows.items():
        assert len(set(row["digests"].values())) == 1, (operator, row["digests"])
        assert row["refusals"] == [], operator
        assert row["maps"] == 0, operator
        # the first of the two calls may be the one that writes the recipe
        assert row["repeated"][-1:] == ([True] if "prefill" in operator else []), operator


class FakeRun:
    """Stands for Triton's launcher object: flattens, then hands on to ``launch``."""

    global_scratch_size = profile_scratch_size = 0

    def __init__(self, sent: list[tuple[Any, ...]], encoded: list[Any]) -> None:
        def launcher(*args: Any) -> None:
            sent.append(args)

        tensordesc_meta = [{"swizzle": 3}]

        def make_tensordesc_arg(tile: Any, meta: Any) -> list[Any]:
            encoded.append((tile.base.data_ptr(), *tile.shape, *tile.strides, meta["swizzle"]))
            return [("map", *encoded[-1]), *tile.shape, *tile.strides]

        def inner(*args: Any) -> None:
            flat: list[Any] = []
            for x in args:
                described = hasattr(x, "block_shape")
                flat += make_tensordesc_arg(x, tensordesc_meta[0]) if described else [x]
            launcher(*flat)

        self.launch = inner

    def __call__(self, *args: Any) -> None:
        self.launch(*args[:5], False, *args[5:])


class FakeKernel:
    """Stands for a jit function: counts launches of its own and of what it compiled."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.encoded: list[Any] = []
        self.ordinary = self.compiled = 0

    def __getitem__(self, grid: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            self.ordinary += 1
            return Compiled(self)

        return run


class Compiled:
    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.run: Any = FakeRun(kernel.sent, kernel.encoded)
        self.function = 7
        self.packed_metadata = (4, 1, 0)

    def __getitem__(self, grid: Any) -> Any:
        def run(*args: Any) -> None:
            self.kernel.compiled += 1

        return run


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A driver with a device and a stream to set, kernels not interpreted."""
    active = SimpleNamespace(device=0, stream=0)
    active.get_current_device = lambda: active.device
    active.get_current_stream = lambda _: active.stream
    for module in (launch, recipe):
        monkeypatch.setattr(module, "INTERPRETED", False)
        monkeypatch.setattr(module, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(direct, "_maps", {})
    return active


def tensor(dtype: torch.dtype = torch.bfloat16, skip: int = 0) -> torch.Tensor:
    """A tensor on 16 bytes, or ``skip`` elements behind."""
    return torch.zeros(4096, dtype=dtype)[skip:]


def call(launcher: Launcher, **change: Any) -> None:
    base = change.pop("base", None)
    x = tensor() if base is None else base
    given: dict[str, Any] = {
        "grid": (2, 1, 1),
        "tensors": (x, None),
        "maps": ((x, 32, 128, 128, BLOCK),),
        "numbers": (32, 0.5),
        "constants": (128, True),
        "num_warps": 4,
    }
    launcher(**(given | change))


CHANGES: dict[str, dict[str, Any]] = {
    "dtype": {"tensors": (tensor(torch.float32), None)},
    "a tensor for None": {"tensors": (tensor(), tensor())},
    "no map": {"maps": (None,)},
    "map's dtype": {"maps": ((tensor(torch.float16), 32, 128, 128, BLOCK),)},
    "map's tile": {"maps": ((tensor(), 32, 128, 128, (64, 64)),)},
    "number off 16": {"numbers": (33, 0.5)},
    "number one": {"numbers": (1, 0.5)},
    "number of 64 bits": {"numbers": (2**31, 0.5)},
    "number of another type": {"numbers": (32, 2)},
    "constant": {"constants": (64, True)},
    "flag": {"constants": (128, False)},
    "option": {"num_warps": 8},
    "further option": {"num_stages": 2},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_new_kind_is_left_to_triton(driver: SimpleNamespace, change: dict[str, Any]) -> None:
    kernel = FakeKernel()
    launcher = Launcher(kernel)
    call(launcher)
    call(launcher)
    assert (kernel.ordinary, len(kernel.sent)) == (1, 1)
    call(launcher, **change)
    assert (kernel.ordinary, len(kernel.sent)) == (2, 1)
    call(launcher)
    assert (kernel.ordinary, len(kernel.sent)) == (2, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"numbers": (48, 0.25)},
        {"grid": (5, 2, 1)},
        {"maps": ((tensor(), 64, 128, 256, BLOCK),)},
        {"tensors": (tensor(), None)},
    ],
    ids=["numbers of the same class", "grid", "map's rows and stride", "addresses"],
)
def test_the_same_kind_goes_straight_to_c(driver: SimpleNamespace, change: dict[str, Any]) -> None:
    kernel = FakeKernel()
    launcher = Launcher(kernel)
    call(launcher)
    call(launcher, **change)
    assert kernel.ordinary == 1
    x = change.get("tensors", (None,))[0]
    (sent,) = kernel.sent
    assert sent[:3] == change.get("grid", (2, 1, 1))
    assert sent[3:12] == (0, 7, False, (4, 1, 0), None, None, None, *sent[10:12])
    assert x is None or sent[10] == x.data_ptr()
    assert sent[-4:] == (*change.get("numbers", (32, 0.5)), 128, True)


def test_another_device_is_another_kind_and_a_stream_is_passed_on(driver: SimpleNamespace) -> None:
    kernel = FakeKernel()
    launcher = Launcher(kernel)
    call(launcher)
    driver.stream = 99
    call(launcher)
    assert kernel.sent[-1][3] == 99
    driver.device = 1
    call(launcher)
    assert (kernel.ordinary, len(kernel.sent)) == (2, 1)


def test_pointers_off_16_bytes_are_left_to_triton_each_time(driver: SimpleNamespace) -> None:
    kernel = FakeKernel()
    launcher = Launcher(kernel)
    for _ in range(3):
        call(launcher, tensors=(tensor(skip=1), None))
    assert (kernel.ordinary, kernel.sent) == (3, [])
    call(launcher)
    call(launcher)
    assert (kernel.ordinary, len(kernel.sent)) == (4, 1)


def test_maps_are_encoded_once_per_address_and_layout(driver: SimpleNamespace) -> None:
    kernel = FakeKernel()
    launcher = Launcher(kernel)
    x, y = tensor(), tensor()
    for _ in range(2):
        call(launcher, base=x)
    kernel.encoded.clear()
    call(launcher, base=x)
    assert kernel.encoded == []
    for change in ({"base": y}, {"maps": ((x, 16, 128, 128, BLOCK),)}):
        call(launcher, **change)
        call(launcher, **change)
    assert [e[:2] for e in kernel.encoded] == [(y.data_ptr(), 32), (x.data_ptr(), 16)]
    assert kernel.sent[-1][12] == ("map", x.data_ptr(), 16, 128, 128, 1, 3)


def test_hooks_are_told_by_triton(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel()
    launcher = Launcher(kernel)
    call(launcher)
    monkeypatch.setattr(launch, "hooked", lambda: True)
    call(launcher)
    assert (kernel.compiled, kernel.sent) == (1, [])


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"global_scratch_size": 64}, "scratch"),
        ({"launch": None}, "differ"),
        ({"__call__": None}, "not the known one"),
    ],
    ids=["scratch memory", "no launch", "not callable"],
)
def test_an_unknown_launcher_falls_back_and_says_why(
    driver: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    reason: str,
) -> None:
    for name, value in change.items():
        monkeypatch.setattr(FakeRun, name, value, raising=False)
    if "launch" in change:
        monkeypatch.setattr(FakeRun, "__init__", lambda *_: None)
    kernel = FakeKernel()
    launcher = Launcher(kernel)
    for _ in range(3):
        call(launcher)
    assert (kernel.ordinary, kernel.compiled, kernel.sent) == (1, 2, [])
    assert [reason in r for r in launcher.refusals] == [True]


def repeatable(
    launcher: Launcher, inputs: tuple[torch.Tensor | None, ...], table: torch.Tensor
) -> recipe.Recipe | None:
    """Launch two kernels on a scratch piece, an input and a table; the recipe if there is one."""
    scratch = Scratch(torch.device("cpu"))
    pieces = [scratch.piece((32, 128), torch.bfloat16) for _ in range(2)]
    launches = [
        Launch(
            launcher,
            (2, 1, 1),
            (inputs[0], piece, inputs[1], table),
            ((piece, 32, 128, 128, BLOCK),),
            (32,),
            (128,),
            {"num_warps": 4},
        )
        for piece in pieces
    ]
    return recipe.launch_all(launches, inputs, scratch, (table,))


def repeated(launcher: Launcher, table: torch.Tensor) -> recipe.Recipe:
    """The recipe of such a call, which has one when the kernel's second launch was seen."""
    made = repeatable(launcher, (tensor(), None), table)
    made = made or repeatable(launcher, (tensor(), None), table)
    assert made is not None
    return made


def test_a_recipe_repeats_with_other_inputs(driver: SimpleNamespace) -> None:
    kernel = FakeKernel()
    launcher = Launcher(kernel)
    table = tensor(torch.int32)
    made = repeated(launcher, table)
    kernel.sent.clear()
    x = tensor()
    driver.stream = 5
    assert made.run((x, None))
    first, second = kernel.sent
    assert first[3] == second[3] == 5
    assert [s[10] for s in kernel.sent] == [x.data_ptr()] * 2
    assert [s[12:14] for s in kernel.sent] == [(None, table.data_ptr())] * 2
    assert second[11] - first[11] == 32 * 128 * 2
    assert [s[14][1] for s in kernel.sent] == [first[11], second[11]]


def test_what_is_kept_of_a_call_is_of_its_addresses_and_stream(
    driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FakeKernel()
    launcher = Launcher(kernel)
    table = tensor(torch.int32)
    made = repeated(launcher, table)
    scratch = torch.empty(1 << 16, dtype=torch.uint8)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: scratch)
    monkeypatch.setattr(recipe, "_calls", {})
    x, y = tensor(), tensor()
    for given, stream in [(x, 5), (y, 5), (x, 6), (x, 5), (y, 5)]:
        kernel.sent.clear()
        driver.stream = stream
        assert made.run((given, None))
        assert [(s[3], s[10]) for s in kernel.sent] == [(stream, given.data_ptr())] * 2
    assert len(recipe._calls) == 3


@pytest.mark.parametrize("reason", ["device", "alignment", "hooks"])
def test_a_recipe_declines(
    driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    kernel = FakeKernel()
    launcher = Launcher(kernel)
    table = tensor(torch.int32)
    made = repeated(launcher, table)
    kernel.sent.clear()
    driver.device = int(reason == "device")
    monkeypatch.setattr(recipe, "hooked", lambda: reason == "hooks")
    assert not made.run((tensor(skip=int(reason == "alignment")), None))
    assert kernel.sent == []


def test_no_recipe_for_one_tensor_given_twice_off_16_bytes_or_unknown(
    driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Launcher(FakeKernel())
    table, x = tensor(torch.int32), tensor()
    for _ in range(3):
        assert repeatable(launcher, (x, x), table) is None
        assert repeatable(launcher, (tensor(skip=1), tensor()), table) is None
    assert repeatable(launcher, (tensor(), tensor()), table) is not None
    monkeypatch.setattr(recipe, "is_capturing", lambda _: True)
    assert repeatable(launcher, (tensor(), tensor()), table) is None
    scratch = Scratch(torch.device("cpu"))
    known = Launch(
        launcher, (2, 1, 1), (tensor(), scratch.piece((32, 128), torch.bfloat16), tensor(), table),
        (None,), (32,), (128,), {"num_warps": 4},
    )  # fmt: skip
    for _ in range(3):
        assert recipe.launch_all([known], (known.tensors[0],), scratch, (table,)) is None


def test_recipes_drop_the_oldest_and_sit_out_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    kept = recipe.Recipes(most=2)
    made = [recipe.Recipe([], 0, cpu, 0, ()) for _ in range(3)]
    for i, one in enumerate(made):
        kept.add((i,), one)
    kept.add((3,), None)
    assert [kept.get((i,), cpu) for i in range(4)] == [None, made[1], made[2], None]
    monkeypatch.setattr(recipe, "is_capturing", lambda _: True)
    assert kept.get((2,), cpu) is None
