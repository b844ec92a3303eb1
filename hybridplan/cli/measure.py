"""``hybridplan measure``: hold every prediction against the device in front of you."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from hybridplan.cli.common import JsonFlag, interrupted, print_json, print_report, warn
from hybridplan.errors import InputError

if TYPE_CHECKING:
    from hybridplan.ledger.logs.result import LogReport
    from hybridplan.measure.result import MeasureResult
    from hybridplan.measure.runner import Say

_MODEL = typer.Argument(help="Catalogue name, config.json, model folder, or cached repo.")
_GPU = typer.Option("--gpu", help="CUDA device to measure; 0 where no index follows (default).")
_CPU = typer.Option("--cpu", help="Only what needs no GPU: bytes, and the mathematics on small "
                    "shapes.")  # fmt: skip
_WEIGHTS = typer.Option("--weights", help="Folder of real weights for the model checks.")
_SAVE = typer.Option("--save", help="Write the fitted constants to this calibration file.")
_PLOT = typer.Option("--plot", help="Draw decode against context to a .png, .svg or .pdf file.")
_LOG = typer.Option("--against-log", help="Hold a boot log of this machine against the plan too.")


class _BareGpu(TyperCommand):
    """Lets ``--gpu`` stand without its index, which is then 0."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_index(args))


def with_index(args: Sequence[str]) -> list[str]:
    """The arguments, with a 0 after each ``--gpu`` that no number follows."""
    given: list[str] = []
    for word, after in zip_longest(args, args[1:], fillvalue=""):
        given.append(word)
        if word == "--gpu" and not after.isdigit():
            given.append("0")
    return given


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("measure", cls=_BareGpu, help="Hold the predictions against your own GPU.")(
        _measure
    )


def _measure(
    model: Annotated[str, _MODEL] = "qwen3.5-0.8b",
    gpu: Annotated[int | None, _GPU] = None,
    cpu: Annotated[bool, _CPU] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points, under 30 s.")] = False,
    weights: Annotated[Path | None, _WEIGHTS] = None,
    save: Annotated[Path | None, _SAVE] = None,
    plot: Annotated[Path | None, _PLOT] = None,
    against_log: Annotated[Path | None, _LOG] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Run this check only; repeatable.")
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch config.json from the hub if needed.")
    ] = False,
    json: JsonFlag = False,
) -> int:
    from hybridplan.config.find import load
    from hybridplan.measure.runner import CHECKS, Ask, run

    if cpu and gpu is not None:
        raise InputError(f"--gpu {gpu} and --cpu exclude one another; leave one out")
    known = [name for name, _ in CHECKS]
    for name in only or ():
        if name not in known:
            raise InputError(f"--only {name!r} is no check; the checks are {', '.join(known)}")
    for path, flag in ((save, "--save"), (plot, "--plot")):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"{flag} {path}: the folder {path.parent} does not exist")
    if save is not None and cpu:
        raise InputError("--save writes measured times, and --cpu measures none; leave one out")
    if plot is not None and cpu:
        raise InputError("--plot draws measured times, and --cpu measures none; leave one out")
    if weights is not None and not weights.is_dir():
        raise InputError(f"--weights {weights} is not a folder")
    if plot is not None:
        from hybridplan.report.canvas import check_target

        check_target(plot)
    spec = load(model, download=download)
    log = _log(against_log, model) if against_log is not None else None
    ask = Ask(spec, None if cpu else gpu or 0, quick, weights, tuple(only or ()), log)
    with _progress() as say:
        result = run(ask, say)
    if save is not None and result.calibration is not None:
        from hybridplan.ledger.calibration import save as write

        write(result.calibration, save)
    if plot is not None:
        _draw(result, plot)
    if json:
        from hybridplan.report.document import document

        print_json(document(result))
    else:
        from hybridplan.report.measure import screen

        print_report(*screen(result))
    if not result.complete:
        return interrupted("interrupted: the checks that were done are shown")
    return 0 if result.agrees else 1


def _draw(result: MeasureResult, path: Path) -> None:
    """The picture; a run that ended before its curves still gives its numbers."""
    from hybridplan.report.measure_plot import curves, has_curves

    if has_curves(result):
        curves(result, path)
    else:
        warn(f"--plot {path}: this run has no times to draw")


def _log(path: Path, model: str) -> LogReport:
    from hybridplan.ledger.logs.explain import explain_log

    try:
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise InputError(f"the log {str(path)!r} cannot be read: {error.strerror}") from None
    return explain_log(lines, path.name, model=model, settings={})


@contextmanager
def _progress() -> Iterator[Say]:
    """Stages on stderr: one changing line on a terminal, one line each elsewhere."""
    start = time.monotonic()
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:
            yield lambda stage: status.update(f"{time.monotonic() - start:5.0f} s  {stage}")
        return

    def say(stage: str) -> None:
        if stage.startswith("["):
            sys.stderr.write(f"{time.monotonic() - start:6.1f} s  {stage}\n")
            sys.stderr.flush()

    yield say
