"""Options of commands that put a replay on a clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridplan.errors import InputError

if TYPE_CHECKING:
    from hybridplan.config.spec import ModelSpec
    from hybridplan.sim.time.ask import TimeAsk
    from hybridplan.sim.time.slo import Slo as SloLimits

Calibrated = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        help="What steps take: FILE of measure or calibrate --save, preset:CARD (assumed from its"
        " datasheet), or preset for that of --gpu.",
    ),
]
Rate = Annotated[
    str | None,
    typer.Option("--rate", help="Timed: x2 (the trace's clock twice as fast) or 3/s on the mean."),
]
Slo = Annotated[
    str | None,
    typer.Option("--slo", help="Limits, as in ttft=2s,tpot=50ms,e2e=30s; exit code 1 if broken."),
]
SloShare = Annotated[
    float | None,
    typer.Option("--slo-share", help="Share of the requests that must keep the SLO (0.99)."),
]
FindRate = Annotated[
    bool, typer.Option("--find-rate", help="Timed: search the highest rate that keeps the SLO.")
]
Tolerance = Annotated[
    float | None,
    typer.Option("--rate-tolerance", help="How closely --find-rate searches, as a share (0.05)."),
]
Baseline = Annotated[
    bool,
    typer.Option(
        "--baseline/--no-baseline",
        help="With a calibration: replay again without prefix caching, for what hits are worth.",
    ),
]


def time_ask(spec: ModelSpec, given: Mapping[str, Any]) -> TimeAsk:
    """What the options ask of time. Raises InputError for what they do not mean.

    ``given`` holds the values of a command's options by name, ``rate_tolerance`` where it has one.
    """
    from hybridplan.ledger.calibration import read_calibration
    from hybridplan.sim.arrival import parse_rate
    from hybridplan.sim.time.ask import TimeAsk
    from hybridplan.sim.time.capacity import USUAL_TOLERANCE
    from hybridplan.sim.time.load import flop_dtype

    name = calibration_name(given["calibration"], given["gpu"])
    slo = slo_of(given["slo"], given["slo_share"])
    tolerance = given.get("rate_tolerance")
    if tolerance is not None and not given["find_rate"]:
        raise InputError("--rate-tolerance is of a search; give --find-rate or drop it")
    return TimeAsk(
        calibration=read_calibration(name, flop_dtype(spec)) if name is not None else None,
        calibration_name=name or "",
        rate=parse_rate(given["rate"]) if given["rate"] is not None else None,
        slo=slo,
        find_rate=given["find_rate"],
        tolerance=USUAL_TOLERANCE if tolerance is None else tolerance,
        baseline=given["baseline"],
    )


def slo_of(limits: str | None, share: float | None) -> SloLimits | None:
    """``--slo`` and ``--slo-share``. Raises InputError for what is no SLO, or a share of none."""
    from hybridplan.sim.time.slo import USUAL_SHARE, parse_slo

    if limits is not None:
        return parse_slo(limits, USUAL_SHARE if share is None else share)
    if share is not None:
        raise InputError(f"--slo-share {share:g} is of an SLO; give --slo ttft=2s or drop it")
    return None


def calibration_name(calibration: str | None, gpu: str | None) -> str | None:
    """``--calibration`` with the card of ``--gpu`` where it says preset alone."""
    if calibration is None or calibration.lower().rstrip(":") != "preset":
        return calibration
    if gpu is None:
        raise InputError("--calibration preset is the datasheet's of --gpu; give it or preset:CARD")
    return f"preset:{gpu}"
