"""Flags that several commands share, and how they become questions for the library."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from hybridplan.config.spec import Attention, Layer, ModelSpec, Window
from hybridplan.errors import InputError
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.lengths.distribution import (
    Lengths,
    empirical,
    is_written,
    parse_lengths,
    read_column,
)
from hybridplan.ledger.planning.ask import MemoryAsk
from hybridplan.ledger.sglang.options import REPLAYS, Replay
from hybridplan.ledger.size import parse_bytes

_DRAFT_KEYS = ("layers", "kv-heads", "head-dim", "heads", "window")
_MOST_DRAFT_LAYERS = 128

Model = Annotated[
    str, typer.Argument(help="Catalogue name, config.json, model folder, or cached repo.")
]
ModelOption = Annotated[
    str, typer.Option("--model", help="Catalogue name, config.json, folder, or cached repo.")
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
Weights = Annotated[
    str | None,
    typer.Option("--weights-memory", help="Weights on a rank, as 'Model loading took' said."),
]
Activations = Annotated[
    str | None, typer.Option("--activation-memory", help="Peak activations on a rank.")
]
Graphs = Annotated[str | None, typer.Option("--graph-memory", help="CUDA graphs on a rank.")]
Eager = Annotated[bool, typer.Option("--enforce-eager", help="vLLM: no CUDA graphs.")]
Backend = Annotated[
    str | None,
    typer.Option("--attention-backend", help="FLASH_ATTN, FLASHINFER, TRITON_ATTN, ..."),
]
DraftMethodName = Annotated[
    str | None, typer.Option("--draft-method", help="mtp, ngram, eagle3, dflash, ...")
]
DraftLayers = Annotated[
    list[str] | None,
    typer.Option(
        "--draft-layers",
        help="A drafter's layers: layers=1,kv-heads=8,head-dim=128[,heads=32][,window=2048]; "
        "repeatable.",
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
    """The distribution behind ``--lengths``: written out, a column of lengths, or a trace's.

    A trace's lengths are prompt plus output; none exceeds ``cap_tokens``.
    """
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
    column = read_column(path)
    if column is not None:
        return replace(column, values=tuple(min(value, cap_tokens) for value in column.values))
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


def memory_ask(
    gpu: str | None,
    kv_memory: str | None,
    utilisation: float | None,
    default_utilisation: float,
    *,
    weights: str | None = None,
    activations: str | None = None,
    graphs: str | None = None,
    eager: bool = False,
) -> MemoryAsk:
    """The memory flags as one question. Raises InputError where one makes another idle."""
    parts = {
        "--memory-utilization": utilisation,
        "--weights-memory": weights,
        "--activation-memory": activations,
        "--graph-memory": graphs,
    }
    for flag, value in parts.items():
        if kv_memory is not None and value is not None:
            raise InputError(
                f"--kv-memory {kv_memory} is what is left for the cache and {flag} {value} works "
                "it out; drop one of them"
            )
    if eager and graphs is not None:
        raise InputError(f"--enforce-eager captures no graphs; drop it or --graph-memory {graphs}")
    return MemoryAsk(
        gpu=find_gpu(gpu) if gpu is not None else None,
        kv_memory_bytes=size_or_none(kv_memory, "--kv-memory"),
        utilisation=default_utilisation if utilisation is None else utilisation,
        weights_bytes=size_or_none(weights, "--weights-memory"),
        activation_bytes=size_or_none(activations, "--activation-memory"),
        graph_bytes=size_or_none(graphs, "--graph-memory"),
    )


def drafter(
    method: str | None, layers: list[str] | None, drafts: int, spec: ModelSpec
) -> dict[str, Any]:
    """Fields of VllmOptions that say who drafts. Raises InputError for what contradicts."""
    for flag, value in (("--draft-method", method), ("--draft-layers", layers)):
        if value and not drafts:
            raise InputError(f"{flag} says who drafts and --drafts is 0; give --drafts 1 or more")
    fields: dict[str, Any] = {} if method is None else {"draft_method": method}
    if layers:
        if method == "ngram":
            raise InputError("--draft-method ngram has no layers; drop --draft-layers")
        fields["draft_layers"] = tuple(one for text in layers for one in _draft_layers(text, spec))
    return fields


def _draft_layers(text: str, spec: ModelSpec) -> list[Layer]:
    asked: dict[str, int] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key not in _DRAFT_KEYS or key in asked or not value.isdigit() or len(value) > 9:
            raise InputError(
                f"--draft-layers {text}: {part!r} is not one of {', '.join(_DRAFT_KEYS)}, each "
                "once, with a whole number as in kv-heads=8"
            )
        asked[key] = int(value)
        if not asked[key]:
            raise InputError(f"--draft-layers {text}: {key} is 0; it must be 1 or more")
    missing = [key for key in ("kv-heads", "head-dim") if key not in asked]
    if missing:
        raise InputError(f"--draft-layers {text}: {' and '.join(missing)} missing")
    count = asked.get("layers", 1)
    if count > _MOST_DRAFT_LAYERS:
        raise InputError(f"--draft-layers {text}: {count} layers; the most is {_MOST_DRAFT_LAYERS}")
    heads = asked.get("heads") or max(
        (m.heads for one in spec.layers for m in one.mixers if isinstance(m, Attention)),
        default=asked["kv-heads"],
    )
    window = Window("sliding", asked["window"]) if "window" in asked else None
    width = asked["head-dim"]
    mixer = Attention(heads, asked["kv-heads"], width, width, window=window)
    return [Layer(index, (mixer,), None) for index in range(count)]
