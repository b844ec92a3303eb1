"""``hybridplan ledger``: what a model's caches, states and weights take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from hybridplan.cli.common import JsonFlag, print_json, print_report
from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger.account import default_contexts
from hybridplan.ledger.account import ledger as account
from hybridplan.ledger.deployment import Deployment, parse_engine
from hybridplan.ledger.explain import select
from hybridplan.ledger.result import SCHEMA_VERSION, Comparison, Explanation, Ledger

_LENGTH = re.compile(r"(\d{1,12})([kKmM]?)")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}

_MODELS = typer.Argument(help="Catalogue name, config.json, model folder, or cached repo.")
_ENGINE = typer.Option("--engine", help="vllm[@0.32|@0.33], sglang, transformers, llama.cpp, mlx.")
_KV = typer.Option(
    "--kv-dtype", help="bf16, fp8, int8_per_token_head, nvfp4, fp8_ds_mla, q8_0, ..."
)
_CONTEXT = typer.Option(
    "--context", help="A request length in tokens (128k is 131072); repeatable."
)
_EVERY = typer.Option("--checkpoint-every", help="Tokens between checkpoints; repeatable.")
_EXPLAIN = typer.Option("--explain", help="Print the chain behind a figure, or 'all'.")
_PLOT = typer.Option("--plot", help="Draw memory against context to a .png, .svg or .pdf file.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ledger", help="Bytes of a model's caches, states and weights.")(_ledger)


def _ledger(
    models: Annotated[list[str], _MODELS],
    engine: Annotated[str, _ENGINE] = "vllm",
    tp: Annotated[int, typer.Option("--tp", help="Tensor parallel size.")] = 1,
    pp: Annotated[int, typer.Option("--pp", help="Pipeline parallel size.")] = 1,
    dcp: Annotated[int, typer.Option("--dcp", help="Decode context parallel size.")] = 1,
    kv_dtype: Annotated[str | None, _KV] = None,
    state_dtype: Annotated[str | None, typer.Option("--state-dtype", help="float32, bf16.")] = None,
    conv_dtype: Annotated[str | None, typer.Option("--conv-dtype", help="bf16, float32.")] = None,
    drafts: Annotated[int, typer.Option("--drafts", help="Speculative tokens.")] = 0,
    context: Annotated[list[str] | None, _CONTEXT] = None,
    checkpoint_every: Annotated[list[str] | None, _EVERY] = None,
    explain: Annotated[str | None, _EXPLAIN] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Models side by side.")] = False,
    plot: Annotated[Path | None, _PLOT] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch config.json from the hub if needed.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    if len(models) > 1 and not compare:
        raise InputError(f"{len(models)} models are named; add --compare to put them side by side")
    name, version = parse_engine(engine)
    deployment = Deployment(name, version, tp, pp, dcp, kv_dtype, state_dtype, conv_dtype, drafts)
    lengths = [_tokens(text, "--context") for text in context or ()]
    spacings = [_tokens(text, "--checkpoint-every") for text in checkpoint_every or ()]
    specs = [_load(model, download) for model in models]
    if compare and not lengths:
        stated = [spec.max_tokens for spec in specs if spec.max_tokens]
        lengths = list(default_contexts(min(stated, default=0)))
    ledgers = [
        account(spec, deployment, contexts=lengths, checkpoint_every=spacings) for spec in specs
    ]
    if plot is not None:
        from hybridplan.report.plot import curve_contexts, memory_against_context

        longest = max(line.tokens for ledger in ledgers for line in ledger.contexts)
        lengths = list(curve_contexts(longest))
        curves = [account(spec, deployment, contexts=lengths) for spec in specs]
        memory_against_context(curves, plot)
    if compare:
        _answer_comparison(ledgers, json)
    else:
        _answer(ledgers[0], explain, json)


def _load(model: str, download: bool) -> ModelSpec:
    from hybridplan.config.find import load

    return load(model, download=download)


def _answer(ledger: Ledger, explain: str | None, as_json: bool) -> None:
    wanted = select(ledger.figures, explain) if explain is not None else ()
    if as_json:
        from hybridplan.report.document import document

        print_json(document(ledger if explain is None else Explanation(SCHEMA_VERSION, wanted)))
    elif wanted:
        from hybridplan.report.explain import chains

        for line in chains(wanted, ledger.figures):
            typer.echo(line)
    else:
        from hybridplan.report.ledger import screen

        print_report(*screen(ledger))


def _answer_comparison(ledgers: list[Ledger], as_json: bool) -> None:
    if as_json:
        from hybridplan.report.document import document

        print_json(document(Comparison(SCHEMA_VERSION, tuple(ledgers))))
    else:
        from hybridplan.report.ledger import comparison

        print_report(*comparison(ledgers))


def _tokens(text: str, flag: str) -> int:
    match = _LENGTH.fullmatch(text.replace("_", "").replace(",", ""))
    if match is None or int(match[1]) == 0:
        raise InputError(f"{flag} {text!r} is not a number of tokens; write 4096 or 128k")
    return int(match[1]) * _UNITS[match[2].lower()]
