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
from hybridplan.ledger.memory import VLLM_UTILISATION
from hybridplan.ledger.planning.ask import VllmAsk
from hybridplan.ledger.planning.sglang import SGLANG_FRACTION, SglangAsk
from hybridplan.ledger.sglang.options import SglangOptions
from hybridplan.ledger.vllm.options import GENERATIONS, VllmOptions

_MAMBA_BACKENDS = ("triton", "flashinfer")
_GDN_BACKENDS = ("auto", "flashinfer", "triton")
_RUNNERS = ("v1", "v2")
_AT = typer.Option("--at", help="Also cost a request of this many tokens; repeatable.")
_PLOT = typer.Option("--plot", help="Draw concurrency by setting to a .png, .svg or .pdf file.")
_GENERATION = typer.Option(
    "--generation", help=f"Kind of card without --gpu: {', '.join(GENERATIONS)}."
)
_KERNEL = typer.Option("--kernel-block", help="vLLM: smallest block of the attention kernel.")
_LAYOUT = typer.Option("--kv-cache-layout", help="vLLM: LBNHC, BLHNC, ... (VLLM_KV_CACHE_LAYOUT).")
_GDN = typer.Option("--gdn-prefill-backend", help="vLLM: auto, flashinfer or triton.")
_MAMBA = typer.Option("--mamba-backend", help="vLLM: triton or flashinfer; ReplaySSM runs on it.")
_RUNNER = typer.Option("--model-runner", help="vLLM: v2, or v1 (VLLM_USE_V2_MODEL_RUNNER=0).")
_FLAT = typer.Option(
    "--disable-hybrid-kv-cache-manager", help="vLLM: windowed layers keep everything."
)
_REPLAY = typer.Option("--replayssm", help="SGLang: off, decode or verify. vLLM: ring length.")
_STRATEGY = typer.Option("--mamba-radix-cache-strategy", help="SGLang: auto, no_buffer, ...")
_RATIO = typer.Option("--mamba-full-memory-ratio", help="SGLang: state bytes over KV bytes.")
_SLOTS = typer.Option("--max-mamba-cache-size", help="SGLang: state slots, given.")
_RUNNING = typer.Option("--max-running-requests", help="SGLang: running requests at most.")
_PAGE = typer.Option("--page-size", help="SGLang: tokens of a KV page.")
_HOST_RATIO = typer.Option("--hicache-ratio", help="SGLang: host tier over device.")
_HOST_SIZE = typer.Option("--hicache-size", help="SGLang: host tier, as in 64GB.")
_PD = typer.Option("--pd-preallocated", help="SGLang PD decode server: preallocated requests.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan", help="What the engine will say at boot, before it boots.")(_plan)


def _plan(
    model: flags.Model,
    engine: flags.Engine = "vllm",
    gpu: flags.GpuName = None,
    kv_memory: flags.KvMemory = None,
    memory_utilization: flags.Utilisation = None,
    weights_memory: flags.Weights = None,
    activation_memory: flags.Activations = None,
    graph_memory: flags.Graphs = None,
    tp: flags.Tp = 1,
    pp: flags.Pp = 1,
    dcp: flags.Dcp = 1,
    kv_dtype: flags.KvDtype = None,
    state_dtype: flags.StateDtype = None,
    conv_dtype: flags.ConvDtype = None,
    drafts: flags.Drafts = 0,
    draft_method: flags.DraftMethodName = None,
    draft_layers: flags.DraftLayers = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.BatchedTokens = None,
    block_size: flags.BlockTokens = None,
    prefix_match_unit: flags.MatchUnit = None,
    prefix_caching: flags.PrefixCaching = None,
    attention_backend: flags.Backend = None,
    kernel_block: Annotated[int | None, _KERNEL] = None,
    generation: Annotated[str | None, _GENERATION] = None,
    kv_cache_layout: Annotated[str | None, _LAYOUT] = None,
    gdn_prefill_backend: Annotated[str | None, _GDN] = None,
    mamba_backend: Annotated[str | None, _MAMBA] = None,
    model_runner: Annotated[str | None, _RUNNER] = None,
    disable_hybrid_kv_cache_manager: Annotated[bool, _FLAT] = False,
    enforce_eager: flags.Eager = False,
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
    memory = flags.memory_ask(
        gpu,
        kv_memory,
        memory_utilization,
        SGLANG_FRACTION if name == "sglang" else VLLM_UTILISATION,
        weights=weights_memory,
        activations=activation_memory,
        graphs=graph_memory,
        eager=enforce_eager,
    )
    vllm_only = {
        "--max-num-seqs": max_num_seqs,
        "--max-num-batched-tokens": max_num_batched_tokens,
        "--block-size": block_size,
        "--prefix-match-unit": prefix_match_unit,
        "--attention-backend": attention_backend,
        "--draft-method": draft_method,
        "--draft-layers": draft_layers,
        "--kernel-block": kernel_block,
        "--generation": generation,
        "--kv-cache-layout": kv_cache_layout,
        "--gdn-prefill-backend": gdn_prefill_backend,
        "--mamba-backend": mamba_backend,
        "--model-runner": model_runner,
        "--disable-hybrid-kv-cache-manager": disable_hybrid_kv_cache_manager or None,
        "--enforce-eager": enforce_eager or None,
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
        if kernel_block and block_size and block_size % kernel_block:
            raise InputError(
                f"--block-size {block_size} is no multiple of --kernel-block {kernel_block}; drop "
                f"one or use --block-size {-(-block_size // kernel_block) * kernel_block}"
            )
        options = VllmOptions(
            max_model_len=max_model_len,
            prefix_caching=prefix_caching,
            prefix_match_unit=prefix_match_unit,
            block_tokens=block_size,
            attention_backend=attention_backend,
            kernel_block_tokens=kernel_block,
            layout=kv_cache_layout,
            hybrid_manager=not disable_hybrid_kv_cache_manager,
            replayssm_tokens=flags.ring_tokens(replayssm),
            replayssm_flashinfer=_one_of("--mamba-backend", mamba_backend, _MAMBA_BACKENDS)
            == "flashinfer",
            model_runner_v2=_one_of("--model-runner", model_runner, _RUNNERS) != "v1",
            **_generation(generation, gpu),
            **_gdn(gdn_prefill_backend),
            **flags.drafter(draft_method, draft_layers, drafts, spec),
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
        if ratio is not None and max_mamba_cache_size is not None:
            raise InputError(
                f"--max-mamba-cache-size {max_mamba_cache_size} sets the slots, so "
                f"--mamba-full-memory-ratio {ratio} decides nothing; drop one of them"
            )
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


def _one_of(flag: str, value: str | None, known: tuple[str, ...]) -> str | None:
    if value is not None and value not in known:
        raise InputError(f"{flag} {value!r} is not known; it is one of {', '.join(known)}")
    return value


def _generation(value: str | None, gpu: str | None) -> dict[str, Any]:
    if value is not None and gpu is not None:
        raise InputError(f"--gpu {gpu} decides its generation; drop --generation {value}")
    return {} if value is None else {"generation": value}


def _gdn(value: str | None) -> dict[str, Any]:
    found = _one_of("--gdn-prefill-backend", value, _GDN_BACKENDS)
    return {} if found is None else {"gdn_prefill": found}


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
