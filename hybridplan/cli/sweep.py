"""``hybridplan sweep``: a grid of configurations, resumable, here or on a cluster."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridplan.cli.common import JsonFlag, interrupted, print_json, print_report, warn
from hybridplan.errors import InputError

if TYPE_CHECKING:
    from hybridplan.sim.sweep.curve import Curve
    from hybridplan.sim.sweep.grid import Grid
    from hybridplan.sim.sweep.sweep import SweepResult

_GRID = typer.Argument(metavar="[GRID]", help="A .yaml or .json grid; flags are laid over it.")
_TRACE = typer.Option("--trace", metavar="FILE", help="A request trace; repeatable.")
_MODEL = typer.Option("--model", help="A model; repeatable.")
_ENGINE = typer.Option("--engine", help="A policy as in compare: vllm@0.32, sglang:no_buffer, ...")
_MEMORY = typer.Option("--kv-memory", help="Cache bytes of a rank, as in 42GiB; repeatable.")
_GPU = typer.Option("--gpu", help="A card instead of bytes; repeatable.")
_TP = typer.Option("--tp", help="Tensor parallel size; repeatable.")
_BLOCK = typer.Option("--block-size", help="vLLM's --block-size; repeatable.")
_UNIT = typer.Option("--prefix-match-unit", help="Hits end on multiples of this; repeatable.")
_RETENTION = typer.Option(
    "--prefix-cache-retention-interval", help="none, 0 or a number of tokens; repeatable."
)
_KV = typer.Option("--kv-dtype", help="Repeatable.")
_STATE = typer.Option("--state-dtype", help="Repeatable.")
_DRAFTS = typer.Option("--drafts", help="Speculative tokens; repeatable.")
_SET = typer.Option("--set", help="NAME=VALUE[,VALUE] for any other setting; repeatable.")
_LIMIT = typer.Option("--limit", help="Read no more requests of a trace than this.")
_STORE_FILE = Path("hybridplan-sweep.jsonl")
_STORE = typer.Option("--store", help="The .jsonl file results land in and are resumed from.")
_JOBS = typer.Option("--jobs", help="Local worker processes (default: one a core).")
_SCHEDULER = typer.Option("--scheduler", help="tcp://HOST:PORT (Dask) or ray://HOST:PORT (Ray).")
_RETRY = typer.Option("--retry-failed", help="Run cells again whose worker died or failed.")
_EXPORT = typer.Option("--export", help="Also write the cells to a .jsonl, .csv or .parquet.")
_BOUNDS = typer.Option("--bounds", help="Replay again for the upper bound on coarse traces.")
_LOSSES = typer.Option("--losses/--no-losses", help="Track causes of loss; without is faster.")
_CURVE = typer.Option("--curve", help="memory: hit rate over memory for one configuration.")
_CHECKS = typer.Option("--checks", help="Points of a sampled curve that are also run in full.")
_PLOT = typer.Option("--plot", help="Draw hit rate over memory to a .png, .svg or .pdf.")
_REPEATABLE = (
    "trace", "model", "engine", "kv_memory", "gpu", "tp", "block_size", "prefix_match_unit",
    "prefix_cache_retention_interval", "kv_dtype", "state_dtype", "drafts",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep", help="A grid of configurations over traces; resumable.")(_sweep)


def _sweep(
    grid: Annotated[Path | None, _GRID] = None,
    trace: Annotated[list[str] | None, _TRACE] = None,
    model: Annotated[list[str] | None, _MODEL] = None,
    engine: Annotated[list[str] | None, _ENGINE] = None,
    kv_memory: Annotated[list[str] | None, _MEMORY] = None,
    gpu: Annotated[list[str] | None, _GPU] = None,
    tp: Annotated[list[int] | None, _TP] = None,
    block_size: Annotated[list[int] | None, _BLOCK] = None,
    prefix_match_unit: Annotated[list[int] | None, _UNIT] = None,
    prefix_cache_retention_interval: Annotated[list[str] | None, _RETENTION] = None,
    kv_dtype: Annotated[list[str] | None, _KV] = None,
    state_dtype: Annotated[list[str] | None, _STATE] = None,
    drafts: Annotated[list[int] | None, _DRAFTS] = None,
    set_: Annotated[list[str] | None, _SET] = None,
    limit: Annotated[int | None, _LIMIT] = None,
    store: Annotated[Path, _STORE] = _STORE_FILE,
    jobs: Annotated[int | None, _JOBS] = None,
    scheduler: Annotated[str | None, _SCHEDULER] = None,
    retry_failed: Annotated[bool, _RETRY] = False,
    export: Annotated[Path | None, _EXPORT] = None,
    bounds: Annotated[bool, _BOUNDS] = False,
    losses: Annotated[bool, _LOSSES] = True,
    curve: Annotated[str | None, _CURVE] = None,
    checks: Annotated[int, _CHECKS] = 2,
    plot: Annotated[Path | None, _PLOT] = None,
    json: JsonFlag = False,
) -> int:
    given = locals()
    from hybridplan.sim.sweep.grid import expand, laid_over, parse_assignment, read_grid

    given_flags: dict[str, object] = {name: given[name] for name in _REPEATABLE if given[name]}
    for assignment in set_ or ():
        name, values = parse_assignment(assignment)
        given_flags[name] = values
    if limit is not None:
        given_flags["limit"] = limit
    asked = laid_over(read_grid(grid) if grid is not None else {}, given_flags)
    if not asked:
        raise InputError("nothing to sweep; give a grid file, or --trace, --model, --kv-memory ...")
    if plot is not None:
        from hybridplan.report.canvas import check_target

        check_target(plot)
    if curve is not None:
        if curve != "memory":
            raise InputError(f"--curve {curve!r} is not known; use memory")
        idle = {
            "--store": store != _STORE_FILE,
            "--export": export is not None,
            "--jobs": jobs is not None,
            "--scheduler": scheduler is not None,
            "--retry-failed": retry_failed,
            "--bounds": bounds,
            "--no-losses": not losses,
        }
        for flag in (flag for flag, asked_for in idle.items() if asked_for):
            raise InputError(f"{flag} is of a grid's cells and --curve replays none; drop it")
        return _curve(asked, checks, plot, json)
    if export is not None:
        from hybridplan.sim.sweep.export import check_target as check_export

        check_export(export)
    cells = expand(asked, bounds=bounds, losses=losses)
    result = _run(cells, store, _connecting(scheduler, jobs), retry_failed)
    if export is not None:
        from hybridplan.sim.sweep.export import write

        write(result, export)
    if plot is not None:
        from hybridplan.report.sweep_plot import draw

        draw(result, plot)
    if json:
        from hybridplan.report.document import document

        print_json(document(result))
    else:
        from hybridplan.report.sweep import screen

        print_report(*screen(result))
    if result.missing:
        return interrupted(
            f"interrupted with {result.missing:,} cells to go; the same command resumes"
        )
    return 0 if any(cell.row is not None for cell in result.cells) else 1


def _connecting(scheduler: str | None, jobs: int | None) -> Any:
    from os import cpu_count

    from hybridplan.sim.sweep.runner import connect

    if scheduler is not None and jobs is not None:
        raise InputError(f"--jobs {jobs} counts local processes; drop it beside --scheduler")
    return lambda: connect(scheduler, jobs if jobs is not None else cpu_count() or 1)


def _run(cells: Grid, store: Path, connecting: Any, retry_failed: bool) -> SweepResult:
    from hybridplan.cli.sweep_progress import counting
    from hybridplan.sim.sweep.store import opened
    from hybridplan.sim.sweep.sweep import sweep

    with ExitStack() as stack:
        records = stack.enter_context(opened(store))
        if records.torn:
            warn(f"{store} ended inside a line; that cell is run again")
        watch = stack.enter_context(counting())
        return sweep(cells, records, connecting, retry_failed=retry_failed, watch=watch)


def _curve(asked: dict[str, object], checks: int, plot: Path | None, as_json: bool) -> int:
    from hybridplan.cli.sweep_progress import stepping
    from hybridplan.sim.sweep.curve import memory_curve

    with stepping("curve") as watch:
        found: Curve = memory_curve(asked, checks=checks, watch=watch)
    if plot is not None:
        from hybridplan.report.sweep_plot import draw_curve

        draw_curve(found, plot)
    if as_json:
        from hybridplan.report.document import document

        print_json(document(found))
    else:
        from hybridplan.report.curve import screen

        print_report(*screen(found))
    return 0
