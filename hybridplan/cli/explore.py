"""``hybridplan explore``: a page with sliders that starts at a model's real shapes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hybridplan.cli import flags
from hybridplan.errors import InputError

_OUTPUT = typer.Option("--output", "-o", help="The .html file to write.")
_MEMORY = typer.Option("--memory-gib", help="Cache memory of a rank to start with, in GiB.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explore", help="One page with sliders: crossover, block, padding, groups, live.")(
        _explore
    )


def _explore(
    model: flags.Model,
    output: Annotated[Path, _OUTPUT] = Path("explore.html"),
    memory_gib: Annotated[int, _MEMORY] = 80,
    tp: flags.Tp = 1,
    kv_dtype: flags.KvDtype = None,
    state_dtype: flags.StateDtype = None,
    conv_dtype: flags.ConvDtype = None,
    drafts: flags.Drafts = 0,
    download: flags.Download = False,
) -> None:
    from hybridplan.config.find import load
    from hybridplan.ledger.deployment import Deployment
    from hybridplan.report.page.assets import check_target, write
    from hybridplan.report.page.explore import explore_page

    check_target(output)
    if not 1 <= memory_gib <= 65536:
        raise InputError(f"--memory-gib {memory_gib} is not between 1 and 65536 GiB")
    deployment = Deployment(
        "vllm",
        tp=tp,
        kv_dtype=kv_dtype,
        state_dtype=state_dtype,
        conv_dtype=conv_dtype,
        drafts=drafts,
    )
    given = [("--memory-gib", memory_gib, 80), ("--tp", tp, 1), ("--kv-dtype", kv_dtype, None)]
    given += [("--state-dtype", state_dtype, None), ("--conv-dtype", conv_dtype, None)]
    given += [("--drafts", drafts, 0)]
    words = ["hybridplan", "explore", model]
    for flag, value, usual in given:
        if value != usual:
            words += [flag, str(value)]
    words += ["-o", output.name]
    page = explore_page(
        load(model, download=download), deployment, model, shlex.join(words), memory_gib
    )
    write(output, page)
    typer.echo(f"wrote {output}")
