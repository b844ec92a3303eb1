"""Check 12: step time = a + launches + bytes / bandwidth + FLOP / rate, on steps not seen."""

from __future__ import annotations

import statistics

from hybridplan.errors import InputError
from hybridplan.ledger.calibration import Constant
from hybridplan.ledger.work.features import FEATURES
from hybridplan.measure.context import Context
from hybridplan.measure.result import Check, Point, Series, compared, skipped
from hybridplan.measure.timemodel import Fit, StepPoint, fit

FAMILY = "time model"


def run(context: Context) -> list[Check]:
    """Errors on the half of the steps that were left out."""
    found = [_recovers()]
    if not context.gpu:
        return [*found, skipped(FAMILY, "steps", "fitted and judged", "times need a GPU")]
    try:
        model = context.time_model()
    except InputError as error:
        return [*found, skipped(FAMILY, "steps", "fitted and judged", error.sentence)]
    how = (
        f"fitted on {len(model.fitted)} steps, judged on {len(model.judged)} others; least "
        "squares of relative errors, no constant faster than the card's ceilings"
    )
    for name, value in model.seconds_per.items():
        context.constants[f"step.{name}"] = Constant(
            value, FEATURES[name], model.spreads[name], how
        )
    errors = [abs(e) for e in model.errors(model.judged)]
    points = tuple(
        _point(p, 1e6 * model.seconds(p.features))
        for p in sorted(context.points, key=lambda p: model.seconds(p.features))
    )
    context.series.append(Series(FAMILY, "steps", "predicted us", "measured us", points))
    worst = max(model.judged, key=lambda p: abs(model.errors([p])[0]))
    return [
        *found,
        compared(FAMILY, "mean error", "mean size of the error", 0.10, statistics.mean(errors),
                 "share", 0.0, how, sense="at most", notes=_constants(model)),
        compared(FAMILY, "worst error", "largest error", 0.25, max(errors), "share", 0.0, how,
                 sense="at most", notes=(f"worst at {worst.name}",)),
    ]  # fmt: skip


def _point(step: StepPoint, predicted_us: float) -> Point:
    return Point(predicted_us, 1e6 * step.seconds, predicted_us, step.name)


def _constants(model: Fit) -> tuple[str, ...]:
    """Each constant as people say it."""
    said = []
    for name, value in model.seconds_per.items():
        if name in ("step", "launches"):
            said.append(f"{name}: {1e6 * value:.2f} us")
        elif value:
            unit = "TB/s" if name == "bytes" else "TFLOP/s"
            said.append(f"{name}: {1e-12 / value:,.2f} {unit}")
        else:
            said.append(f"{name}: 0")
    return tuple(said)


def _recovers() -> Check:
    """Times made from known constants give those constants back."""
    known = {"step": 4e-5, "launches": 1.5e-6, "bytes": 1 / 4e12, "dense_flop": 1 / 6e14}
    points = []
    for n in range(1, 13):
        features = {
            "step": 1.0,
            "launches": 100.0 + 37 * (n % 5),
            "bytes": 1e9 * n,
            "dense_flop": 1e11 * (n * n % 7) + 1e10,
        }
        seconds = sum(known[name] * amount for name, amount in features.items())
        points.append(StepPoint(f"made {n}", features, seconds))
    model = fit(points)
    worst = max(abs(model.seconds_per[name] / value - 1) for name, value in known.items())
    return compared(
        FAMILY, "fit", "constants of made-up steps, farthest from those they were made with",
        1e-6, worst, "share", 0.0, "no noise, so least squares must return them", sense="at most",
    )  # fmt: skip
