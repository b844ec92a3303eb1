"""``hybridplan calibrate``: step-time constants from a log of served requests, and their test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hybridplan.cli import engine_options as engine_flag
from hybridplan.cli import flags
from hybridplan.cli.common import JsonFlag, print_json, print_report
from hybridplan.errors import InputError

_LOG = typer.Argument(metavar="LOG", help="Served requests with their stamps: .jsonl or .csv.")
_SAVE = typer.Option("--save", help="Write the constants for simulate --calibration.")
_SHARE = typer.Option("--fit-share", help="Share of the requests that is fitted; rest: judged.")
_SPLIT = typer.Option("--split", help="time: fit the first by arrival; alternate: spread out.")
_CARD = typer.Option("--card", help="Name of the card the log is from, for the file.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate", help="Fit step times to a log of served requests, and judge them.")(
        _calibrate
    )


def _calibrate(
    log: Annotated[str, _LOG],
    model: flags.ModelOption,
    save: Annotated[Path | None, _SAVE] = None,
    fit_share: Annotated[float, _SHARE] = 0.5,
    split: Annotated[str, _SPLIT] = "time",
    card: Annotated[str, _CARD] = "",
    engine: flags.Engine = "vllm@0.33",
    gpu: flags.GpuName = None,
    kv_memory: flags.KvMemory = None,
    num_blocks: engine_flag.NumBlocks = None,
    memory_utilization: flags.Utilisation = None,
    weights_memory: flags.Weights = None,
    tp: flags.Tp = 1,
    pp: flags.Pp = 1,
    dcp: flags.Dcp = 1,
    kv_dtype: flags.KvDtype = None,
    state_dtype: flags.StateDtype = None,
    conv_dtype: flags.ConvDtype = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.BatchedTokens = None,
    block_size: flags.BlockTokens = None,
    prefix_caching: flags.PrefixCaching = None,
    async_scheduling: engine_flag.AsyncScheduling = True,
    max_running_requests: engine_flag.MaxRunningRequests = None,
    download: flags.Download = False,
    json: JsonFlag = False,
) -> int:
    given = locals()
    from hybridplan.config.find import load
    from hybridplan.ledger.calibration import save as write
    from hybridplan.ledger.deployment import Deployment, parse_engine
    from hybridplan.sim.setup import EngineAsk
    from hybridplan.sim.time.fit import SPLITS, FitAsk, fit_log
    from hybridplan.sim.time.fit_log import read_log

    if split not in SPLITS:
        raise InputError(f"--split {split!r} is not known; use {' or '.join(SPLITS)}")
    name, version = parse_engine(engine)
    deployment = Deployment(name, version, tp, pp, dcp, kv_dtype, state_dtype, conv_dtype)
    asked = EngineAsk(
        load(model, download=download),
        deployment,
        engine_flag.engine_flags(deployment, given),
        engine_flag.engine_memory(name, given),
    )
    on_round = _show if sys.stderr.isatty() else None
    result = fit_log(FitAsk(read_log(log), asked, fit_share, split, card), on_round=on_round)
    if save is not None:
        write(result.calibration, save)
    if json:
        from hybridplan.report.document import document

        print_json(document(result))
    else:
        from hybridplan.report.calibrate import screen

        print_report(*screen(result))
    return 0 if result.holds else 1


def _show(replay: int) -> None:
    sys.stderr.write(f"\rreplay {replay} \r")
    sys.stderr.flush()
