"""``hybridplan plan``: what the engine will say at boot, before it boots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hybridplan.cli import flags
from hybridplan.cli.common import JsonFlag, print_json, print_report
from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger.deployment import Deployment, parse_engine
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.memory import VLLM_UTILISATION
from hybridplan.ledger.planning.ask import MemoryAsk, VllmAsk
from hybridplan.ledger.planning.sglang import SGLANG_FRACTION, SglangAsk
from hybridplan.ledger.sglang.options import SglangOptions
from hybridplan.ledger.vllm.options import VllmOptions

_WEIGHTS = typer.Option("--weights-memory", help="Weights on a rank, as 'Model loading took' said.")
_ACTIVATION = typer.Option("--activation-memory", help="Peak activations on a rank.")
_GRAPHS = typer.Option("--graph-memory", help="CUDA graphs on a rank.")
_AT = typer.Option("--at", help="Also cost a request of this many tokens; repeatable.")
_PLOT = typer.Option("--plot", help="Draw concurrency by setting to a .png, .svg or .pdf file.")
_BACKEND = typer.Option("--attention-backend", help="FLASH_ATTN, FLASHINFER, TRITON_ATTN, ...")
_METHOD = typer.Option("--draft-method", help="mtp, ngram, eagle3, dflash, ...")
_REPLAY = typer.Option("--replayssm", help="SGLang: off, decode or verify. vLLM: ring length.")
_STRATEGY = typer.Option("--mamba-radix-cache-strategy", help="SGLang: auto, no_buffer, ...")
_RATIO = typer.Option("--mamba-full-memory-ratio", help="SGLang: state bytes over KV bytes.")
_SLOTS = typer.Option("--max-mamba-cache-size", help="SGLang: state slots, given.")
_RUNNING = typer.Option("--max-running-requests", help="SGLang: running requests at most.")
_PAGE = typer.Option("--page-size", help="SGLang: tokens of a KV page.")
_HOST_RATIO = typer.Option("--hicache-ratio", help="SGLang: host tier over device.")
_HOST_SIZE = typer.Option("--hicache-size", help="SGLang: host tier, as in 64GB.")
_PD = typer.Option("--pd-preallocated", help="SGLang PD decode server: preallocated requests.")
_EAGER = typer.Option("--enforce-eager", help="vLLM: no CUDA graphs.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan", help="What the engine will say at boot, before it boots.")(_plan)


def _plan(
    model: flags.Model,
    engine: flags.Engine = "vllm",
    gpu: flags.GpuName = None,
    kv_memory: flags.KvMemory = None,
    memory_utilization: flags.Utilisation = None,
    weights_memory: Annotated[str | None, _WEIGHTS] = None,
    activation_memory: Annotated[str | None, _ACTIVATION] = None,
    graph_memory: Annotated[str | None, _GRAPHS] = None,
    tp: flags.Tp = 1,
    pp: flags.Pp = 1,
    dcp: flags.Dcp = 1,
    kv_dtype: flags.KvDtype = None,
    state_dtype: flags.StateDtype = None,
    conv_dtype: flags.ConvDtype = None,
    drafts: flags.Drafts = 0,
    draft_method: Annotated[str | None, _METHOD] = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.BatchedTokens = None,
    block_size: flags.BlockTokens = None,
    prefix_match_unit: flags.MatchUnit = None,
    prefix_caching: flags.PrefixCaching = None,
    attention_backend: Annotated[str | None, _BACKEND] = None,
    enforce_eager: Annotated[bool, _EAGER] = False,
    replayssm: Annotated[str | None, _REPLAY] = None,
    mamba_radix_cache_strategy: Annotated[str | None, _STRATEGY] = None,
    mamba_full_memory_ratio: Annotated[str | None, _RATIO] = None,
    max_mamba_cache_size: Annotated[int | None, _SLOTS] = None,
    max_running_requests: Annotated[int | None, _RUNNING] = None,
    page_size: Annotated[int | None, _PAGE] = None,
    hicache_ratio: Annotated[str | None, _HOST_RATIO] = None,
    hicache_size: Annotated[str | None, _HOST_SIZE] = None,
    pd_preallocated: Annotated[int | None, _PD] = None,
    at: Annotated[list[int] | None, _AT] = None,
    lengths: flags.LengthsFlag = None,
    seed: flags.Seed = 0,
    plot: Annotated[Path | None, _PLOT] = None,
    download: flags.Download = False,
    json: JsonFlag = False,
) -> None:
    from hybridplan.config.find import load

    name, version = parse_engine(engine)
    deployment = Deployment(name, version, tp, pp, dcp, kv_dtype, state_dtype, conv_dtype, drafts)
    spec = load(model, download=download)
    fraction = SGLANG_FRACTION if name == "sglang" else VLLM_UTILISATION
    memory = MemoryAsk(
        gpu=find_gpu(gpu) if gpu is not None else None,
        kv_memory_bytes=flags.size_or_none(kv_memory, "--kv-memory"),
        utilisation=fraction if memory_utilization is None else memory_utilization,
        weights_bytes=flags.size_or_none(weights_memory, "--weights-memory"),
        activation_bytes=flags.size_or_none(activation_memory, "--activation-memory"),
        graph_bytes=flags.size_or_none(graph_memory, "--graph-memory"),
    )
    vllm_only = {
        "--max-num-seqs": max_num_seqs,
        "--max-num-batched-tokens": max_num_batched_tokens,
        "--block-size": block_size,
        "--prefix-match-unit": prefix_match_unit,
        "--attention-backend": attention_backend,
        "--draft-method": draft_method,
    }
    sglang_only = {
        "--mamba-radix-cache-strategy": mamba_radix_cache_strategy,
        "--mamba-full-memory-ratio": mamba_full_memory_ratio,
        "--max-mamba-cache-size": max_mamba_cache_size,
        "--max-running-requests": max_running_requests,
        "--page-size": page_size,
        "--hicache-ratio": hicache_ratio,
        "--hicache-size": hicache_size,
        "--pd-preallocated": pd_preallocated,
    }
    _check_costs(at)
    if name == "vllm":
        _refuse(sglang_only, "sglang", "vllm")
        options = VllmOptions(
            max_model_len=max_model_len,
            prefix_caching=prefix_caching,
            prefix_match_unit=prefix_match_unit,
            block_tokens=block_size,
            attention_backend=attention_backend,
            replayssm_tokens=flags.ring_tokens(replayssm),
            **_method(draft_method),
        )
        ask = VllmAsk(
            spec=spec,
            deployment=deployment,
            options=options,
            memory=memory,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            graphs=not enforce_eager,
            costs_at=tuple(at or ()),
            lengths=flags.lengths_or_none(lengths, _cap(spec, max_model_len)),
            seed=seed,
        )
        _answer_vllm(ask, json, plot)
    elif name == "sglang":
        _refuse(vllm_only, "vllm", "sglang")
        ratio = mamba_full_memory_ratio
        host = hicache_ratio
        chosen = SglangOptions(
            strategy=mamba_radix_cache_strategy or "auto",
            ratio=flags.fraction(ratio or "0.9", "--mamba-full-memory-ratio"),
            slots=max_mamba_cache_size,
            max_running_requests=max_running_requests,
            context_tokens=max_model_len,
            page_tokens=page_size or 1,
            radix_cache=prefix_caching is not False,
            replay=flags.replay_mode(replayssm),
            preallocated_requests=pd_preallocated or 0,
            host_ratio=flags.fraction(host, "--hicache-ratio") if host else None,
            host_bytes=flags.size_or_none(hicache_size, "--hicache-size"),
        )
        found = flags.lengths_or_none(lengths, _cap(spec, max_model_len))
        question = SglangAsk(spec, deployment, chosen, memory, tuple(at or ()), found, seed)
        _answer_sglang(question, json, plot)
    else:
        raise InputError(f"--engine {name} has no pool plan; plans are made for vllm and sglang")


def _refuse(given: dict[str, Any], owner: str, engine: str) -> None:
    for flag, value in given.items():
        if value is not None:
            raise InputError(f"{flag} is a setting of {owner} and the engine is {engine}; drop it")


def _check_costs(at: list[int] | None) -> None:
    for tokens in at or ():
        if tokens < 1:
            raise InputError(f"--at {tokens} is not a number of tokens above 0")


def _cap(spec: ModelSpec, max_model_len: int | None) -> int:
    return max_model_len if max_model_len and max_model_len > 0 else spec.max_tokens


def _method(name: str | None) -> dict[str, Any]:
    return {} if name is None else {"draft_method": name}


def _answer_vllm(ask: VllmAsk, as_json: bool, plot: Path | None) -> None:
    from hybridplan.ledger.planning.vllm import plan

    result = plan(ask)
    if plot is not None:
        from hybridplan.report.plan_plot import concurrency_by_choice

        concurrency_by_choice(result.lengths, plot)
    if as_json:
        from hybridplan.report.document import document

        print_json(document(result))
        return
    from hybridplan.report.plan import vllm_screen

    print_report(*vllm_screen(result))


def _answer_sglang(ask: SglangAsk, as_json: bool, plot: Path | None) -> None:
    from hybridplan.ledger.planning.sglang import plan

    result = plan(ask)
    if plot is not None:
        from hybridplan.report.plan_plot import concurrency_by_choice

        concurrency_by_choice(result.lengths, plot)
    if as_json:
        from hybridplan.report.document import document

        print_json(document(result))
        return
    from hybridplan.report.plan import sglang_screen

    print_report(*sglang_screen(result))
