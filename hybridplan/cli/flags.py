"""Flags that several commands share, and how they become questions for the library."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from hybridplan.errors import InputError
from hybridplan.ledger.lengths.distribution import Lengths, empirical, is_written, parse_lengths
from hybridplan.ledger.sglang.options import REPLAYS, Replay
from hybridplan.ledger.size import parse_bytes

Model = Annotated[
    str, typer.Argument(help="Catalogue name, config.json, model folder, or cached repo.")
]
Engine = Annotated[str, typer.Option("--engine", help="vllm[@0.32|@0.33] or sglang.")]
GpuName = Annotated[str | None, typer.Option("--gpu", help="h200, h100, a100-80, rtx4090, ...")]
KvMemory = Annotated[
    str | None,
    typer.Option("--kv-memory", help="What is left for the cache on a rank, as in 42GiB."),
]
Utilisation = Annotated[
    float | None,
    typer.Option(
        "--memory-utilization",
        help="--gpu-memory-utilization (0.92) or mem-fraction-static (0.88).",
    ),
]
Tp = Annotated[int, typer.Option("--tp", help="Tensor parallel size.")]
Pp = Annotated[int, typer.Option("--pp", help="Pipeline parallel size.")]
Dcp = Annotated[int, typer.Option("--dcp", help="Decode context parallel size.")]
KvDtype = Annotated[
    str | None,
    typer.Option("--kv-dtype", "--kv-cache-dtype", help="bf16, fp8, nvfp4, fp8_ds_mla."),
]
StateDtype = Annotated[
    str | None,
    typer.Option("--state-dtype", "--mamba-ssm-cache-dtype", help="float32, bfloat16."),
]
ConvDtype = Annotated[str | None, typer.Option("--conv-dtype", help="bfloat16, float32.")]
Drafts = Annotated[int, typer.Option("--drafts", help="Speculative tokens.")]
MaxModelLen = Annotated[
    int | None, typer.Option("--max-model-len", help="Longest request in tokens (-1: fit).")
]
MaxNumSeqs = Annotated[int | None, typer.Option("--max-num-seqs", help="Running requests at most.")]
BatchedTokens = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", help="Tokens of one scheduler step.")
]
BlockTokens = Annotated[int | None, typer.Option("--block-size", help="As vLLM's --block-size.")]
MatchUnit = Annotated[
    int | None, typer.Option("--prefix-match-unit", help="Hits end on multiples of this.")
]
PrefixCaching = Annotated[
    bool | None,
    typer.Option(
        "--prefix-caching/--no-prefix-caching",
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Default: what vLLM picks.",
    ),
]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch config.json from the hub if needed.")
]
LengthsFlag = Annotated[
    str | None,
    typer.Option(
        "--lengths", help="A trace or CSV, or lognormal:p50=2k,p99=60k, uniform:512-8k, fixed:4096."
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the resampling.")]


def size_or_none(text: str | None, flag: str) -> int | None:
    """Bytes of a size flag that may be absent."""
    return None if text is None else parse_bytes(text, flag)


def fraction(text: str, flag: str) -> Fraction:
    """An exact ratio such as 0.9. Raises InputError naming the flag."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{flag} {text!r} is not a number such as 0.9") from None
    if not 0 < value <= 1000:
        raise InputError(f"{flag} {text} must be above 0 and at most 1000")
    return value


def lengths_or_none(text: str | None, cap_tokens: int) -> Lengths | None:
    """The distribution behind ``--lengths``: written out, or prompt plus output of a trace."""
    if text is None:
        return None
    if is_written(text):
        return parse_lengths(text, cap_tokens)
    path = Path(text)
    if not path.exists():
        raise InputError(
            f"--lengths {text!r} is neither a file nor a distribution such as "
            "lognormal:p50=2k,p99=60k"
        )
    from hybridplan.sim.traces import open_trace

    values = [
        min(request.prompt.length_tokens + request.output_tokens, cap_tokens)
        for request in open_trace(path).requests()
    ]
    return empirical(values, path.name)


def ring_tokens(text: str | None) -> int:
    """vLLM's reading of ``--replayssm``: the ring's length."""
    if text is None:
        return 0
    if not text.isdigit():
        raise InputError(f"--replayssm {text!r}: for vllm it is the ring's length, such as 16")
    return int(text)


def replay_mode(text: str | None) -> Replay:
    """SGLang's reading of ``--replayssm``."""
    if text is None:
        return "off"
    if text not in REPLAYS:
        raise InputError(f"--replayssm {text!r}: for sglang it is one of {', '.join(REPLAYS)}")
    return REPLAYS[text]
