"""A fitted calibration as tables: how it predicts the requests left out, and its constants."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.ledger.calibration import Constant
from hybridplan.sim.time.fit import LogFit
from hybridplan.sim.time.fit_judge import Judged

_RATES = {"bytes": ("GB/s", 1e9), "dense_flop": ("TFLOP/s", 1e12)}
_RATES |= dict.fromkeys(("attention_flop", "scan_flop"), _RATES["dense_flop"])


def screen(result: LogFit) -> list[RenderableType]:
    """The judged percentiles, errors of single requests, the constants, what was assumed."""
    setup = result.setup
    head = Text()
    head.append(setup.model, style="bold")
    head.append(f"  {setup.rules}, tp {setup.deployment.tp}; {result.log.rsplit('/', 1)[-1]}")
    return [
        head,
        Text(_split(result)),
        "",
        _judged(result),
        *(
            Text(
                f"Single requests, {single.measure}: off by {single.median:.1%} in the median,"
                f" {single.mean:.1%} on average, {single.worst:.1%} at worst"
            )
            for single in result.singles
        ),
        "",
        _constants(result),
        "",
        Text(verdict(result)),
        "",
        Text("Assumed", style="bold"),
        *(Padding(Text(line), (0, 0, 0, 2)) for line in result.assumptions),
    ]


def verdict(result: LogFit) -> str:
    """One sentence: whether TTFT and TPOT of the requests left out were predicted. A log may hold
    only one of the two."""
    outside = [found for found in result.judged if not found.within and found.measure != "e2e"]
    if not outside:
        shown = dict.fromkeys(found.measure for found in result.judged if found.measure != "e2e")
        are = "are" if len(shown) > 1 else "is"
        return (
            f"{' and '.join(shown)} of the requests left out {are} predicted within the tolerances."
        )
    names = ", ".join(f"{found.measure} p{found.percent} {found.error:+.1%}" for found in outside)
    return f"Outside the tolerances: {names}."


def _split(result: LogFit) -> str:
    which = {"time": "the first by arrival", "alternate": "spread over the log"}[result.split]
    settled = "" if result.settled else "; the constants did not come to rest"
    return (
        f"Fitted to {result.fitted_requests:,} requests ({which}), judged on the other"
        f" {result.judged_requests:,}; {result.rounds} replays{settled}"
    )


def _judged(result: LogFit) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("left out", no_wrap=True)
    for name in ("predicted", "logged", "error", "tolerance"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for found in result.judged:
        table.add_row(
            f"{found.measure} p{found.percent}",
            seconds(found.predicted_s),
            seconds(found.logged_s),
            f"{found.error:+.1%}",
            f"{found.tolerance:.0%}",
            _word(found),
        )
    return table


def _word(found: Judged) -> Text:
    return Text("within", style="green") if found.within else Text("outside", style="bold red")


def _constants(result: LogFit) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("constant", no_wrap=True)
    table.add_column("seconds a unit", justify="right", no_wrap=True)
    table.add_column("spread", justify="right", no_wrap=True)
    table.add_column("which is")
    dense = result.calibration.step_seconds("dense_flop")
    for name, constant in result.calibration.constants.items():
        table.add_row(
            name,
            f"{constant.value:.4g}",
            f"{constant.spread:.2g}" if constant.spread is not None and constant.value else "-",
            _meaning(name.removeprefix("step."), constant, dense),
        )
    return table


def _meaning(feature: str, constant: Constant, dense: float) -> str:
    if not constant.value:
        return "not told apart from the others by this log"
    if feature in _RATES:
        unit, scale = _RATES[feature]
        floor = feature != "dense_flop" and constant.value == dense
        at = ", taken from dense_flop: the log does not tell it apart" if floor else ""
        return f"{1 / constant.value / scale:,.0f} {unit} on a rank{at}"
    return {"step": "once a step", "launches": "a kernel"}[feature] + f", {seconds(constant.value)}"


def seconds(value: float) -> str:
    """1.23 s, 45.6 ms, 7.89 us."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:,.2f} {unit}"
    return f"{value / 1e-6:.2f} us"
