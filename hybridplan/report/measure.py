"""A measurement as tables: what was measured, every check, and what to make of it."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hybridplan.measure.result import Check, Clocks, Device, MeasureResult
from hybridplan.report.logs import screen as log_screen
from hybridplan.report.units import size

_STYLES = {"within": "green", "outside": "bold red", "failed": "bold red"}
_SIGNS = {"near": "", "at most": "<= ", "at least": ">= "}


def screen(result: MeasureResult) -> list[RenderableType]:
    """The device, one row a check, then notes and the checks that disagree."""
    head = Text()
    head.append(result.model, style="bold")
    head.append(f" on {result.device.name}, {result.mode}{', quick' if result.quick else ''}")
    if not result.complete:
        head.append(", interrupted", style="bold red")
    parts: list[RenderableType] = [head, *(Text(line) for line in _circumstances(result.device))]
    if result.layers:
        parts.append(Text(f"Steps run: {result.layers}"))
    parts += ["", _table(result.checks), ""]
    for title, lines in (("Mind", result.notes), ("Not run here", _reasons(result.checks))):
        if lines:
            parts.append(Text(title, style="bold"))
            parts += [Text(f"  {line}") for line in lines]
    parts.append(Text(verdict(result)))
    if result.log is not None:
        parts += ["", Text("Boot log against the plan", style="bold"), *log_screen(result.log)]
    return parts


def verdict(result: MeasureResult) -> str:
    """One sentence: how many checks hold, and which do not."""
    ran = [c for c in result.checks if c.verdict in ("within", "outside", "failed")]
    within = sum(c.verdict == "within" for c in ran)
    sentence = f"{within} of {len(ran)} checks are within their tolerance, {result.seconds:.0f} s."
    names = ", ".join(f"{c.check}: {c.name}" for c in result.outside)
    return f"{sentence} Outside: {names}." if names else sentence


def _circumstances(device: Device) -> list[str]:
    """Memory and versions, then the clocks before and after."""
    parts = [
        f"memory {size(device.memory_bytes)}, {size(device.free_bytes)} free",
        f"driver {device.driver}" if device.driver else "",
        f"CUDA {device.cuda}" if device.cuda else "",
        f"torch {device.torch}",
        f"triton {device.triton}" if device.triton else "",
        f"transformers {device.transformers}" if device.transformers else "",
    ]
    clocks = (("before", device.before), ("after", device.after))
    return [
        ", ".join(part for part in parts if part),
        *(f"{when}: {_clocks(seen)}" for when, seen in clocks if seen is not None),
    ]


def _clocks(clocks: Clocks) -> str:
    shown = [
        f"SM {clocks.sm_mhz} MHz" if clocks.sm_mhz is not None else "",
        f"memory {clocks.memory_mhz} MHz" if clocks.memory_mhz is not None else "",
        f"{clocks.temperature_c} C" if clocks.temperature_c is not None else "",
        ", ".join(clocks.reasons),
    ]
    return ", ".join(part for part in shown if part)


def _table(checks: tuple[Check, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("check", no_wrap=True)
    table.add_column("figure", overflow="fold")
    for name in ("predicted", "measured", "error", "tolerance"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    before = ""
    for check in checks:
        if check.verdict == "skipped":
            continue
        table.add_row(
            check.check if check.check != before else "",
            check.name,
            *cells(check),
            Text(check.verdict, style=_STYLES.get(check.verdict, "")),
        )
        before = check.check
    return table


def cells(check: Check) -> tuple[str, str, str, str]:
    """Predicted, measured, error and tolerance as people read them."""
    return (
        f"{_SIGNS[check.sense]}{amount(check.predicted, check.unit)}",
        amount(check.measured, check.unit),
        _error(check),
        _tolerance(check),
    )


def _reasons(checks: tuple[Check, ...]) -> list[str]:
    found = [
        f"{c.check}, {c.name}: {'; '.join(c.notes)}"
        for c in checks
        if c.verdict in ("skipped", "failed")
    ]
    return list(dict.fromkeys(found))


def amount(value: float | None, unit: str) -> str:
    """A figure with its unit: bytes in full, small shares in powers of ten."""
    if value is None:
        return "-"
    if unit == "tokens" and abs(value) < 100 and value != round(value):
        return f"{value:.3g} {unit}"
    if unit in ("B", "FLOP/token", "tokens/s", "tokens", "layers", "pages", "elements", "copies"):
        return f"{value:,.0f} {unit}"
    if unit in ("relative error", "share", "largest difference"):
        return f"{value:.1e}" if abs(value) < 0.01 else f"{value:.3f}"
    return f"{value:,.4g} {unit}" if abs(value) < 1000 else f"{value:,.0f} {unit}"


def _error(check: Check) -> str:
    if check.error is None:
        return "-"
    if check.sense != "near" and not check.tolerance:
        return ""
    if check.predicted == 0:
        return f"{check.error:,.0f}"
    return f"{check.error:+.1%}" if check.error else "0"


def _tolerance(check: Check) -> str:
    if check.tolerance is None:
        return "-"
    if check.tolerance == 0:
        return "exact" if check.sense == "near" else ""
    return f"{check.tolerance:.0%}"
