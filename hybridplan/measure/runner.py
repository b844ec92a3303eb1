"""Runs the checks in order. One that breaks fails alone; an interrupt leaves what was found."""

from __future__ import annotations

import datetime
import gc
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import HybridplanError, InputError
from hybridplan.ledger.calibration import KIND, SCHEMA_VERSION, Calibration, Constant
from hybridplan.ledger.logs.result import LogReport
from hybridplan.measure import device as devices
from hybridplan.measure import extras
from hybridplan.measure.result import SCHEMA_VERSION as RESULT_VERSION
from hybridplan.measure.result import Check, Device, MeasureResult, Series, failed, skipped

CHECKS: tuple[tuple[str, str], ...] = (
    ("bytes", "pools against the plan"),
    ("real_cache", "cache of a real model"),
    ("three_ways", "one model, three ways"),
    ("checkpoints", "copied, shared and exported states"),
    ("decode", "decode against context"),
    ("crossovers", "hybrid against its twin"),
    ("prefill", "prefill by length and batch"),
    ("precision", "drift of 16-bit states"),
    ("transfer", "host and device"),
    ("break_even", "restore or recompute"),
    ("drafts", "verify of several tokens"),
    ("time_model", "the time model"),
)
"""Module and title, in the order in which one may use what another has measured."""

_OWN_MEMORY_BYTES = 2 << 30
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ask:
    """A run. ``gpu`` None is a CPU run; ``weights`` a folder of real weights."""

    spec: ModelSpec
    gpu: int | None
    quick: bool = False
    weights: Path | None = None
    only: tuple[str, ...] = ()
    log: LogReport | None = None


def run(ask: Ask, say: Say = lambda _: None) -> MeasureResult:
    """All checks of one run; ``say`` gets a line at each stage.

    Raises InputError and MissingExtraError where nothing can run here.
    """
    start = time.monotonic()
    cpu = ask.gpu is None
    torch = extras.require_kernels(interpreted=cpu)
    device = torch.device("cpu") if ask.gpu is None else devices.find(torch, ask.gpu)
    card = devices.describe(torch, device)
    from hybridplan.measure.context import Context, tiny
    from hybridplan.measure.gates import Gates
    from hybridplan.measure.probe import keep_busy, rates
    from hybridplan.measure.timing import Timer

    torch.manual_seed(0)
    notes: list[str] = []
    compiled = extras.watch_compiler()
    timer = None if cpu else Timer(torch, device, card.l2_bytes)
    shapes = tiny(ask.spec) if cpu else ask.spec
    context = Context(
        ask.spec, shapes, device, card, ask.quick, Gates(device), timer, None, ask.weights,
        say, notes=notes,
    )  # fmt: skip
    checks: list[Check] = []
    complete = True
    lost = ""
    wanted = [(m, t) for m, t in CHECKS if not ask.only or m in ask.only]
    try:
        with warnings.catch_warnings():
            # masked lanes of NumPy products overflow; a gate looks at every result
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton.runtime")
            if timer is not None:
                say("ceilings of the card")
                _enough_memory(card)
                try:
                    context.rates = rates(timer, device, card.free_bytes)
                except torch.cuda.OutOfMemoryError as error:
                    said = _memory_sentence(torch, context, error)
                    raise InputError(f"{card.name} has too little memory: {said}") from None
            for number, (module, title) in enumerate(wanted, 1):
                say(f"[{number}/{len(wanted)}] {title}")
                if lost:
                    checks.append(failed(title, "could not run", title, lost))
                    continue
                checks += _one(torch, context, module, title)
                lost = _settle(torch, context, title)
    except KeyboardInterrupt:
        complete = False
        notes.append("interrupted; the checks listed are those that had finished")
    checks += list(context.gates.rows.values())
    if context.rates is not None:
        if complete and not lost:
            keep_busy(device, context.rates, card.free_bytes)  # so that clocks are those of a load
        card = replace(card, after=devices.clocks(torch, device))
        context.constants.update(context.rates.constants())
    notes += [*compiled.note(), *_observations(card, checks)]
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return MeasureResult(
        schema_version=RESULT_VERSION,
        model=ask.spec.name,
        mode="cpu" if cpu else "gpu",
        quick=ask.quick,
        date=date,
        complete=complete,
        seconds=time.monotonic() - start,
        device=card,
        layers=context.layers,
        checks=tuple(checks),
        series=tuple(_finite_points(curve) for curve in context.series),
        calibration=None if cpu else _calibration(ask, card, context, date),
        log=ask.log,
        notes=tuple(notes),
    )


def _finite_points(curve: Series) -> Series:
    """The curve without points that are no numbers, which JSON and a picture cannot hold."""
    kept = [p for p in curve.points if isfinite(p.x) and isfinite(p.measured)]
    return replace(
        curve,
        points=tuple(
            p if p.predicted is None or isfinite(p.predicted) else replace(p, predicted=None)
            for p in kept
        ),
    )


def _finite_constants(found: Mapping[str, Constant]) -> dict[str, Constant]:
    """By name, without those that came out as no number."""
    return {
        name: c if c.spread is None or isfinite(c.spread) else replace(c, spread=None)
        for name, c in sorted(found.items())
        if isfinite(c.value)
    }


def _enough_memory(card: Device) -> None:
    if card.free_bytes < _OWN_MEMORY_BYTES:
        raise InputError(
            f"{card.name} has {card.free_bytes:,} bytes free of {card.memory_bytes:,} and measure "
            f"needs {_OWN_MEMORY_BYTES:,} (other processes hold {card.others_bytes:,}); free "
            "some, or run --cpu, which checks bytes and mathematics without a GPU"
        )


def _one(torch: Any, context: Any, module: str, title: str) -> list[Check]:
    """The checks of one module, with the module's time shared among them."""
    from hybridplan.measure.gates import GateError
    from hybridplan.measure.hf import NoClassError

    start = time.monotonic()
    family = title
    found: list[Check]
    try:
        loaded = import_module(f"hybridplan.measure.checks.{module}")
        family = loaded.FAMILY
        found = loaded.run(context)
    except GateError as error:
        found = [failed(family, "correctness", title, str(error))]
    except NoClassError as error:
        found = [skipped(family, title, title, error.sentence)]
    except HybridplanError as error:
        found = [failed(family, "could not run", title, error.sentence)]
    except torch.cuda.OutOfMemoryError as error:
        found = [failed(family, "out of memory", title, _memory_sentence(torch, context, error))]
    except KeyboardInterrupt:
        raise
    except Exception as error:
        found = [failed(family, "broke", title, f"{type(error).__name__}: {_first_line(error)}")]
    share = (time.monotonic() - start) / max(1, len(found))
    return [replace(check, seconds=round(share, 3)) for check in found]


def _settle(torch: Any, context: Any, title: str) -> str:
    """Free what the check held. A sentence where the device no longer answers, else ""."""
    if context.device.type != "cuda":
        return ""
    try:
        torch.cuda.synchronize(context.device)
        gc.collect()  # models are cycles; freed later, they would change counts of live bytes
        torch.cuda.empty_cache()
    except RuntimeError as error:
        return f"the device broke in an earlier check ({title}): {_first_line(error)}"
    return ""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


def _memory_sentence(torch: Any, context: Any, error: BaseException) -> str:
    """Bytes asked and free. torch prints what was asked in its message only."""
    free, total = torch.cuda.mem_get_info(context.device)
    said = _first_line(error)
    asked = said.split("Tried to allocate ")[-1].split(". ")[0] if "Tried to" in said else "more"
    held = torch.cuda.memory_allocated(context.device)
    return f"{asked} was asked for, {free:,} of {total:,} bytes are free, {held:,} are our own"


def _observations(card: Device, checks: list[Check]) -> list[str]:
    """What a reader should know of the circumstances."""
    said = []
    for when, clocks in (("before", card.before), ("after", card.after)):
        reasons = devices.throttled(clocks)
        if reasons:
            said.append(f"clocks were lowered {when} the run: {', '.join(reasons)}")
    if card.others_bytes > 0:
        said.append(
            f"other processes hold {card.others_bytes:,} bytes of the card; times may be theirs too"
        )
    wide = [c for c in checks if c.spread is not None and c.spread > 0.10]
    if wide:
        said.append(
            f"{len(wide)} times differ by more than 10 % between two rounds; something else may "
            f"run on the card (first: {wide[0].check}, {wide[0].name})"
        )
    return said


def _calibration(ask: Ask, card: Device, context: Any, date: str) -> Calibration:
    mean = worst = None
    fitted = judged = 0
    if "step.step" in context.constants:
        model = context.time_model()
        errors = [abs(e) for e in model.errors(model.judged)]
        mean, worst = sum(errors) / len(errors), max(errors)
        fitted, judged = len(model.fitted), len(model.judged)
    clocks = card.after
    return Calibration(
        schema_version=SCHEMA_VERSION,
        kind=KIND,
        model=ask.spec.name,
        card=card.name,
        driver=card.driver,
        versions={
            "cuda": card.cuda,
            "torch": card.torch,
            "triton": card.triton,
            "transformers": card.transformers,
            "python": card.python,
        },
        date=date,
        clocks_mhz={
            name: value
            for name, value in (
                ("sm", clocks.sm_mhz if clocks else None),
                ("memory", clocks.memory_mhz if clocks else None),
            )
            if value is not None
        },
        constants=_finite_constants(context.constants),
        fitted_points=fitted,
        judged_points=judged,
        mean_error=mean,
        worst_error=worst,
    )
