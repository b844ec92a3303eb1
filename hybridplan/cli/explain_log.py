"""``hybridplan explain-log``: what each memory line of a boot log means, and whether it adds up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hybridplan.cli.common import JsonFlag, print_json, print_report
from hybridplan.errors import InputError
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.logs.explain import explain_log
from hybridplan.ledger.logs.lines import Value
from hybridplan.ledger.planning.ask import generation_of

_FILE = typer.Argument(help="A log file, or - for standard input.")
_MODEL = typer.Option("--model", help="Model, where the log does not name it.")
_CACHING = typer.Option("--prefix-caching/--no-prefix-caching", help="As the server was started.")
_GPU = typer.Option("--gpu", help="Card the log came from; it decides kernel blocks.")
_BLOCK = typer.Option("--block-size", help="As the server was started.")
_LENGTH = typer.Option("--max-model-len", help="As the server was started.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain-log", help="Explain the memory lines of a boot log.")(_explain)


def _explain(
    file: Annotated[str, _FILE],
    model: Annotated[str | None, _MODEL] = None,
    tp: Annotated[int | None, typer.Option("--tp", help="Tensor parallel size.")] = None,
    pp: Annotated[int | None, typer.Option("--pp", help="Pipeline parallel size.")] = None,
    kv_dtype: Annotated[str | None, typer.Option("--kv-dtype", help="bf16, fp8, ...")] = None,
    state_dtype: Annotated[str | None, typer.Option("--state-dtype", help="float32, ...")] = None,
    drafts: Annotated[int | None, typer.Option("--drafts", help="Speculative tokens.")] = None,
    prefix_caching: Annotated[bool | None, _CACHING] = None,
    max_model_len: Annotated[int | None, _LENGTH] = None,
    block_size: Annotated[int | None, _BLOCK] = None,
    gpu: Annotated[str | None, _GPU] = None,
    json: JsonFlag = False,
) -> int:
    stated: dict[str, Value | None] = {
        "tp": tp,
        "pp": pp,
        "kv_dtype": kv_dtype,
        "state_dtype": state_dtype,
        "drafts": drafts,
        "prefix_caching": None if prefix_caching is None else str(prefix_caching),
        "max_model_len": max_model_len,
        "block_size": block_size,
        "generation": None if gpu is None else generation_of(find_gpu(gpu)),
    }
    settings = {key: value for key, value in stated.items() if value is not None}
    report = explain_log(_lines(file), file, model=model, settings=settings)
    if json:
        from hybridplan.report.document import document

        print_json(document(report))
    else:
        from hybridplan.report.logs import screen

        print_report(*screen(report))
    return 0 if report.agrees else 1


def _lines(file: str) -> list[str]:
    if file == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace").splitlines()
    path = Path(file)
    try:
        return path.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise InputError(f"the log {file!r} cannot be read: {error.strerror}") from None
