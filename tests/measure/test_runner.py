"""The run around the checks: one that breaks fails alone, an interrupt keeps what was found."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

import hybridplan.cli as cli
from hybridplan.cli.measure import with_index
from hybridplan.config.find import load
from hybridplan.errors import InputError, MissingExtraError
from hybridplan.ledger.calibration import Constant
from hybridplan.measure import device as devices
from hybridplan.measure import extras, hf, runner
from hybridplan.measure.context import Context
from hybridplan.measure.gates import GateError, Gates
from hybridplan.measure.result import Check, Clocks, Point, Series, compared
from hybridplan.report.document import document
from tests.measure.rehearsal import make_context

Run = Callable[[Any], list[Check]]


def _good(_: Any) -> list[Check]:
    return [compared("fine", "one", "what", 1, 1, "B", 0.0, "how")]


def _raises(error: BaseException) -> Run:
    def run(_: Any) -> list[Check]:
        raise error

    return run


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put these runs in the place of the twelve checks."""

    def put(**runs: Run) -> None:
        for name, run in runs.items():
            module: Any = ModuleType(name)
            module.FAMILY, module.run = name, run
            monkeypatch.setitem(sys.modules, f"hybridplan.measure.checks.{name}", module)
        monkeypatch.setattr(runner, "CHECKS", tuple((name, name) for name in runs))

    return put


ASK = runner.Ask(load("qwen3.5-0.8b"), None)


@pytest.mark.parametrize(
    "error,name,said",
    [
        (InputError("no such class"), "could not run", "no such class"),
        (GateError("wrong by 3"), "correctness", "wrong by 3"),
        (ZeroDivisionError("division"), "broke", "ZeroDivisionError: division"),
    ],
    ids=["a sentence of ours", "a wrong kernel", "a fault"],
)
def test_a_check_that_breaks_fails_alone(
    checks: Callable[..., None], error: BaseException, name: str, said: str
) -> None:
    checks(first=_raises(error), second=_good)
    result = runner.run(ASK)
    assert [(c.check, c.verdict) for c in result.checks] == [
        ("first", "failed"),
        ("fine", "within"),
    ]
    assert result.checks[0].name == name
    assert said in result.checks[0].notes[0]
    assert not result.agrees
    assert result.outside == (result.checks[0],)


def test_out_of_memory_says_what_was_asked_and_what_is_free(
    checks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5_000, 80_000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 70_000)
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
    checks(first=_raises(error), second=_good)
    result = runner.run(ASK)
    assert result.checks[0].name == "out of memory"
    assert result.checks[0].notes == (
        "2.00 GiB was asked for, 5,000 of 80,000 bytes are free, 70,000 are our own",
    )
    assert result.checks[1].verdict == "within"


class LostCard:
    """A torch whose device has had an illegal access: every call on it raises."""

    class cuda:  # noqa: N801 - torch's name
        @staticmethod
        def synchronize(_: Any) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")


def test_a_lost_device_is_said_in_one_sentence() -> None:
    context = make_context(Context, "qwen3.5-0.8b", timed=False)
    assert runner._settle(torch, context, "first") == ""
    context.device = torch.device("cuda", 0)
    assert runner._settle(LostCard, context, "decode against context") == (
        "the device broke in an earlier check (decode against context): CUDA error: an illegal "
        "memory access was encountered"
    )


def test_after_a_lost_device_the_other_checks_fail_without_running(
    checks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_settle", lambda *_: "the device broke")
    checks(first=_good, second=_raises(AssertionError("must not run")))
    result = runner.run(ASK)
    assert [(c.verdict, c.notes) for c in result.checks] == [
        ("within", ()),
        ("failed", ("the device broke",)),
    ]


def test_kernels_that_had_to_be_compiled_are_counted_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton import knobs

    monkeypatch.setattr(knobs.compilation, "listener", None)
    seen = extras.watch_compiler()
    assert seen.note() == ()
    for seconds, hit in ((2.0, False), (9.0, True), (1.5, False)):
        times = type("Times", (), {"total": 1e6 * seconds})()
        knobs.compilation.listener(
            src=None, metadata={}, metadata_group={}, times=times, cache_hit=hit
        )
    assert seen.note()[0].startswith("2 kernels were compiled in 4 s of this run")


def test_curves_and_constants_keep_numbers_only() -> None:
    curve = Series("decode", "n", "x", "y", (
        Point(1.0, 2.0, math.nan), Point(2.0, math.inf, 3.0), Point(3.0, 4.0, 5.0),
    ))  # fmt: skip
    assert runner._finite_points(curve).points == (Point(1.0, 2.0), Point(3.0, 4.0, 5.0))
    kept = runner._finite_constants({
        "b": Constant(math.nan, "s", None, ""), "a": Constant(1.0, "s", math.inf, ""),
    })  # fmt: skip
    assert kept == {"a": Constant(1.0, "s", None, "")}


def test_models_run_with_the_functions_written_beside_their_class() -> None:
    home = ModuleType("a_model")

    def plain() -> str:
        return "torch"

    @functools.wraps(plain)
    def faster() -> str:
        return "fla"

    plain.__module__ = faster.__module__ = "a_model"
    home.rule = faster  # type: ignore[attr-defined]
    module = type("Model", (), {"__module__": "a_model"})()
    sys.modules["a_model"] = home
    try:
        with hf.own_functions(module):
            assert home.rule() == "torch"
        assert home.rule() == "fla"
    finally:
        del sys.modules["a_model"]


def test_tf32_is_off_inside_and_as_it_was_after() -> None:
    def switches() -> tuple[bool, bool]:
        return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32

    before = switches()
    with hf.exact_products():
        assert switches() == (False, False)
    assert switches() == before


def test_an_interrupt_leaves_a_valid_partial_result(checks: Callable[..., None]) -> None:
    checks(first=_good, second=_raises(KeyboardInterrupt()), third=_good)
    result = runner.run(ASK)
    assert not result.complete
    assert [c.check for c in result.checks] == ["fine"]
    whole = json.loads(json.dumps(document(result), allow_nan=False))
    assert whole["complete"] is False
    assert "interrupted" in whole["notes"][0]


def test_an_interrupted_command_prints_json_and_exits_130(
    checks: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    checks(first=_good, second=_raises(KeyboardInterrupt()))
    assert cli.run(["measure", "--cpu", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["checks"][0]["name"] == "one"


def test_a_kernel_that_is_wrong_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context(Context, "qwen3.5-0.8b", timed=False)
    layer = context.linear
    gates = Gates(torch.device("cpu"))
    wrong = torch.ones(1, dtype=torch.float64)
    monkeypatch.setattr(type(layer), "reference", lambda *_, **__: (wrong, wrong))
    for _ in range(2):
        with pytest.raises(GateError, match="its time means nothing and is not given"):
            gates.linear(layer)
    assert gates.rows["gated_delta prefill"].verdict == "outside"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_so_and_what_would_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["measure"]) == 2
    said = capsys.readouterr().err
    assert "cannot run here" in said
    assert "--cpu runs every check of bytes and mathematics" in said
    assert "Traceback" not in said


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r'pip install "hybridplan\[gpu\]"'):
        extras.require_kernels(interpreted=True)


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["--only", "nothing"], "is no check"),
        (["--cpu", "--gpu"], "--gpu 0 and --cpu exclude one another"),
        (["--cpu", "--gpu", "3"], "--gpu 3 and --cpu exclude one another"),
        (["--cpu", "--save", "c.json"], "--cpu measures none"),
        (["--cpu", "--save", "no/such/c.json"], "does not exist"),
        (["--plot", "picture.txt"], "must end in"),
        (["--cpu", "--plot", "picture.png"], "--cpu measures none"),
        (["--cpu", "--weights", "nowhere"], "is not a folder"),
        (["--cpu", "--against-log", "nowhere"], "cannot be read"),
        (["no-such-model", "--cpu"], "no-such-model"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["measure", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "given,read",
    [
        (["m", "--gpu"], ["m", "--gpu", "0"]),
        (["--gpu", "m"], ["--gpu", "0", "m"]),
        (["--gpu", "1", "m"], ["--gpu", "1", "m"]),
        (["--gpu", "--quick"], ["--gpu", "0", "--quick"]),
        (["--gpu=1"], ["--gpu=1"]),
        ([], []),
    ],
)
def test_the_index_of_the_gpu_may_be_left_out(given: list[str], read: list[str]) -> None:
    assert with_index(given) == read


def test_other_users_wide_spreads_and_low_clocks_are_said() -> None:
    card = devices.describe(torch, torch.device("cpu"))
    slow = Clocks(1200, 3201, 80, 700.0, ("sw_power_cap",))
    idle = Clocks(345, 3201, 30, 90.0, ("gpu_idle",))
    card = replace(card, others_bytes=3 << 30, before=idle, after=slow)
    wide = compared("decode", "step", "w", 1.0, 1.0, "us", 0.1, "h", spread=0.3)
    said = runner._observations(card, [wide])
    assert said[0] == "clocks were lowered after the run: sw_power_cap"
    assert "other processes hold 3,221,225,472 bytes" in said[1]
    assert "differ by more than 10 %" in said[2]
    assert len(said) == 3


def test_nvidia_smi_is_only_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> Any:
        asked.append(command)
        text = "1980, 3201, 41, 410.50, 580.1" if "clocks.sm" in " ".join(command) else "Active" + (
            ", Not Active" * 7
        )  # fmt: skip
        return type("Done", (), {"stdout": text + "\n"})()

    monkeypatch.setattr(devices.shutil, "which", lambda _: "nvidia-smi")
    monkeypatch.setattr(devices.subprocess, "run", answer)
    properties = type("P", (), {"uuid": "abc"})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    found = devices.clocks(torch, torch.device("cuda", 0))
    assert found == Clocks(1980, 3201, 41, 410.5, ("gpu_idle",))
    assert devices.throttled(found) == ()
    for command in asked:
        assert all(a.startswith(("--query-", "--format", "-i", "GPU-")) for a in command[1:])
