"""A vLLM case (engine arguments, and a model or layers) as a plan, beside the engine's answer.

Shared by the golden test and the conformance fuzzer; both load it by path.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from hybridplan.config.read import read_config
from hybridplan.config.spec import Attention, Layer
from hybridplan.errors import RefusalError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import canonical
from hybridplan.ledger.vllm.alignment import align
from hybridplan.ledger.vllm.backends import Backend
from hybridplan.ledger.vllm.bootlog import boot_log, gib
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.page import (
    AttentionCache,
    LayerCache,
    MultipleOf,
    StateCache,
    state_bytes,
)
from hybridplan.ledger.vllm.plan import PoolPlan, plan_layers, plan_vllm, request_limits
from hybridplan.ledger.vllm.pool import DoesNotFitError
from hybridplan.ledger.vllm.rules import rules_of

KINDS = {
    "full": "full",
    "mla": "mla",
    "sliding_window": "sliding",
    "chunked_local": "chunked",
    "circular_buffer": "ring",
}
LATENTS = ("mla",)


def plan_case(case: dict[str, Any], version: str) -> PoolPlan:
    """The plan of a golden case. Raises what the plan raises."""
    if case.get("hf_config") is not None:
        return _plan_model(case, version)
    return _plan_given(case, version)


def _deployment(case: dict[str, Any], version: str) -> Deployment:
    args = case.get("engine_args", {})
    speculative = args.get("speculative_config") or {}
    named = {
        "kv_dtype": args.get("kv_cache_dtype"),
        "state_dtype": args.get("mamba_ssm_cache_dtype"),
        "conv_dtype": args.get("mamba_cache_dtype"),
    }
    return Deployment(
        version=version,
        tp=args.get("tensor_parallel_size", 1),
        pp=args.get("pipeline_parallel_size", 1),
        dcp=args.get("decode_context_parallel_size", 1),
        drafts=speculative.get("num_speculative_tokens", 0),
        **{key: value for key, value in named.items() if value != "auto"},
    )


def _options(case: dict[str, Any]) -> VllmOptions:
    args = case.get("engine_args", {})
    speculative = args.get("speculative_config") or {}
    available = case["available_bytes"]
    drafter = speculative.get("draft_hf_config")
    return VllmOptions(
        generation=case.get("gpu") or "sm90",
        max_model_len=args.get("max_model_len"),
        max_num_batched_tokens=args.get("max_num_batched_tokens", 2048),
        async_scheduling=args.get("async_scheduling", True),
        prefix_caching=args.get("enable_prefix_caching"),
        prefix_match_unit=args.get("prefix_match_unit"),
        block_tokens=args.get("block_size"),
        gdn_prefill=args.get("gdn_prefill_backend", "auto"),
        draft_method=speculative.get("method", "mtp"),
        draft_layers=_drafter(drafter) if drafter else None,
        block_drop=not speculative.get("disable_eagle_block_drop", False),
        lookahead_hashes=not speculative.get("disable_lookahead_block_hashes", False),
        hybrid_manager=not args.get("disable_hybrid_kv_cache_manager", False),
        replayssm_tokens=args.get("replayssm_buffer_len", 16) if args.get("use_replayssm") else 0,
        replayssm_flashinfer=args.get("mamba_backend") == "flashinfer",
        num_gpu_blocks_override=args.get("num_gpu_blocks_override"),
        available_bytes_per_rank=tuple(available) if isinstance(available, list) else (),
    )


def _drafter(config: dict[str, Any]) -> tuple[Layer, ...]:
    """The layers of an EAGLE-style drafter, from its own config."""
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    mixer = Attention(heads, config["num_key_value_heads"], width, width)
    return tuple(Layer(i, (mixer,), None) for i in range(config["num_hidden_layers"]))


def _plan_model(case: dict[str, Any], version: str) -> PoolPlan:
    config = published_keys(case["hf_config"])
    spec = read_config(config, file="case", name=config["model_type"])
    available = case["available_bytes"]
    smallest = min(available) if isinstance(available, list) else available
    return plan_vllm(spec, _deployment(case, version), _options(case), smallest)


def published_keys(config: dict[str, Any]) -> dict[str, Any]:
    """A case's config in the keys checkpoints use.

    The GLM-5.3-Flash cases write the engine's flat config attributes (``linear_num_heads`` ...) and
    lean on its defaults, one attention layer after three KDA layers and three dense MLPs; published
    files say the former in ``linear_attn_config``.
    """
    config = {key: value for key, value in config.items() if key != "_generic_config_class"}
    if "text_config" in config:
        return {**config, "text_config": published_keys(config["text_config"])}
    if "linear_num_heads" in config and "linear_attn_config" not in config:
        layers = range(config["num_hidden_layers"])
        config["linear_attn_config"] = {
            "num_heads": config.pop("linear_num_heads"),
            "head_dim": config.pop("linear_head_dim"),
            "short_conv_kernel_size": config.pop("linear_conv_kernel_dim"),
            "gate_lower_bound": config.pop("linear_lower_bound"),
            "kda_layers": [i for i in layers if i % 4 != 3],
            "full_attn_layers": [i for i in layers if i % 4 == 3],
        }
        config["first_k_dense_replace"] = 3
    return config


def _plan_given(case: dict[str, Any], version: str) -> PoolPlan:
    rules = rules_of(version)
    deployment, options = _deployment(case, version), _options(case)
    layers = given_layers(case["layers"], drafts_known=rules.flags_drafts_by_layer)
    limits = request_limits(
        deployment,
        options,
        options.max_model_len or 131072,
        case.get("mamba_cache_mode", "none"),
    )
    layout = case.get("layout", "LBNHC")
    prefix = options.prefix_caching
    return plan_layers(
        layers,
        limits,
        case["available_bytes"],
        rules=rules,
        options=options,
        supported_layouts=layout if isinstance(layout, list) else [layout],
        prefix_caching=True if prefix is None else prefix,
    )


def given_layers(entries: list[dict[str, Any]], *, drafts_known: bool) -> dict[str, LayerCache]:
    """Layers written by hand, named as the engine's driver names them."""
    layers: dict[str, LayerCache] = {}
    for entry in entries:
        fields = dict(entry)
        kind = fields.pop("type")
        name, count = fields.pop("name", None), fields.pop("count", 1)
        if not drafts_known:
            fields.pop("is_draft", None)
        cache = _state(fields) if kind == "mamba" else _attention(KINDS[kind], fields)
        for i in range(count):
            full = name or f"layers.{len(layers)}.{kind}"
            if count > 1:
                full = full.replace("{i}", str(i)) if "{i}" in full else f"{full}.{i}"
            layers[full] = cache
    return layers


def _attention(kind: str, fields: dict[str, Any]) -> AttentionCache:
    alignment = fields.pop("block_stride_alignment", None)
    if isinstance(alignment, dict):
        alignment = MultipleOf(alignment["multiple_of"])
    width = fields.pop("head_size")
    known = {
        "block_size": "block_tokens",
        "num_kv_heads": "heads",
        "head_size_v": "value_dim",
        "num_head_slots": "head_slots",
        "state_content_bytes": "entry_bytes",
        "page_size_padded": "padded_page_bytes",
        "sliding_window": "window_tokens",
        "attention_chunk_size": "chunk_tokens",
        "extra_retained_tokens": "extra_retained_tokens",
        "cache_dtype_str": "cache_dtype",
        "dcp_sharded": "dcp_sharded",
        "is_draft": "draft",
    }
    renamed = {known[key]: value for key, value in fields.items() if key in known}
    rest = {key: value for key, value in fields.items() if key not in known}
    renamed["role"] = "indexer" if rest.pop("indexer", False) else "attention"
    renamed["dtype"] = canonical(rest.pop("dtype"))
    renamed["tokens_per_entry"] = Fraction(rest.pop("tokens_per_state", 1))
    assert not rest, rest
    renamed.setdefault("value_dim", 0 if kind in LATENTS else width)
    return AttentionCache(kind=kind, key_dim=width, stride_alignment=alignment, **renamed)


def _state(fields: dict[str, Any]) -> StateCache:
    known = {
        "block_size": "block_tokens",
        "page_size_padded": "padded_page_bytes",
        "mamba_cache_mode": "mode",
        "num_speculative_blocks": "speculative_blocks",
        "num_prefill_checkpoint_blocks": "checkpoint_blocks",
        "prefill_checkpoint_alignment": "checkpoint_alignment_tokens",
        "tp_replicated": "replicated",
        "is_draft": "draft",
    }
    renamed = {known[key]: value for key, value in fields.items() if key in known}
    return StateCache(
        shapes=tuple(tuple(shape) for shape in fields["shapes"]),
        dtypes=tuple(canonical(dtype) for dtype in fields["dtypes"]),
        **renamed,
    )


def align_case(case: dict[str, Any], version: str) -> dict[str, Any]:
    """The answer to a case that asks for the hybrid alignment alone, in the engine's words."""
    given = case["align"]
    sizes = [given["kernel_block_sizes"], *given.get("other_backends_kernel_block_sizes", [])]
    backends = [Backend(f"backend {i}", _kernel_blocks(one)) for i, one in enumerate(sizes)]
    state = given["mamba"][0]
    shapes = tuple(tuple(shape) for shape in state["shapes"])
    width = given["head_size"] * (1 if given["use_mla"] else 2 * given["num_kv_heads"])
    found = align(
        backends,
        token_bytes=width * 2,
        state_bytes=state_bytes(shapes, tuple(state["dtypes"])),
        mla=given["use_mla"],
        mode=case.get("mamba_cache_mode", "none"),
        rules=rules_of(version),
        checkpoint_alignment_tokens=given.get("checkpoint_alignment"),
        start_tokens=given.get("initial_block_size", 16),
        max_model_len=case["engine_args"]["max_model_len"],
    )
    return {
        "block_size": found.block_tokens,
        "mamba_block_size": found.state_block_tokens,
        "mamba_page_size_padded": found.state_page_bytes,
    }


def _kernel_blocks(sizes: list[Any]) -> tuple[int | MultipleOf, ...]:
    return tuple(s if isinstance(s, int) else MultipleOf(s["multiple_of"]) for s in sizes)


def as_engine_tells(plan: PoolPlan) -> dict[str, Any]:
    """The plan under the names of the driver's answer."""
    first = plan.ranks[0]
    reads = plan.draft_reads
    answer: dict[str, Any] = {
        "kv_cache_layout": plan.layout,
        "group_sizes": [len(group.layers) for group in first.groups],
        "raw_bytes_per_block": first.page_bytes_per_block,
        "block_stride_alignment_lcm": first.stride_alignment_bytes,
        "bytes_per_block": first.bytes_per_block,
        "num_blocks": plan.num_blocks,
        "cache_config_block_size": plan.block_tokens,
        "scheduler_block_size": plan.units.scheduler_tokens,
        "hash_block_size": plan.units.hash_tokens,
        "cache_hit_alignment_tokens": plan.units.hit_alignment_tokens,
        "max_model_len": plan.limits.max_model_len,
        "kv_cache_size_tokens": plan.kv_tokens,
        "max_concurrency": plan.max_concurrency,
        "max_in_flight_tokens": plan.limits.in_flight_tokens,
        "num_speculative_tokens": reads.draft_tokens,
        "num_lookahead_tokens": reads.slot_tokens,
        "num_hash_lookahead_tokens": reads.hash_tokens,
        "workers": [_worker(plan, rank) for rank in plan.ranks],
        "layers": {
            name: (
                cache.block_tokens,
                cache.content_bytes,
                cache.page_bytes,
                cache.stride_alignment_bytes,
            )
            for name, cache in plan.layers.items()
        },
    }
    if plan.alignment is not None:
        answer["aligned"] = (
            plan.alignment.block_tokens,
            plan.alignment.state_block_tokens,
            plan.alignment.state_page_bytes,
        )
    return answer


def _worker(plan: PoolPlan, rank: Any) -> dict[str, Any]:
    return {
        "bytes_per_block": rank.bytes_per_block,
        "num_blocks": rank.num_blocks,
        "groups": [
            {
                "layer_names": list(group.layers),
                "block_size": whole.block_tokens,
                "page_bytes_sum": group.page_bytes,
                "is_eagle_group": whole.draft,
                "prefix_cacheable": whole.prefix_cacheable,
                "max_blocks_per_request": whole.blocks_per_request(plan.limits),
            }
            for group, whole in zip(rank.groups, plan.groups, strict=True)
        ],
        "tensors": [
            {
                "layers": list(entry.layers),
                "size": entry.size_bytes,
                "offset": entry.offset_bytes,
                "layer_stride": entry.layer_stride_bytes,
                "block_stride": entry.block_stride_bytes,
            }
            for entry in rank.tensors
        ],
    }


def engine_told(result: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """The engine's answer cut to the fields of ``like``."""
    told = {key: result[key] for key in like if key in result and key != "workers"}
    told["workers"] = [
        {
            "bytes_per_block": worker["bytes_per_block"],
            "num_blocks": worker["num_blocks"],
            "groups": [
                {key: group[key] for key in like["workers"][0]["groups"][0]}
                for group in worker["groups"]
            ],
            "tensors": [dict(entry) for entry in worker["tensors"]],
        }
        for worker in result["workers"]
    ]
    told["layers"] = {
        name: (
            one["spec"]["block_size"],
            one["spec"].get("real_page_size_bytes", one["spec"]["page_size_bytes"]),
            one["spec"]["page_size_bytes"],
            one["spec"]["block_stride_alignment_bytes"],
        )
        for one in result["layer_specs"]
        for name in one["layers"]
    }
    if told.get("num_hash_lookahead_tokens", 0) is None:
        told["num_hash_lookahead_tokens"] = 0
    if told.get("cache_hit_alignment_tokens", 0) is None:
        told["cache_hit_alignment_tokens"] = like["cache_hit_alignment_tokens"]
    if "aligned" in like:
        after = result["after_alignment"]
        state = after["mamba_block_size"] if like["aligned"][1] is not None else None
        told["aligned"] = (after["block_size"], state, after["mamba_page_size_padded"])
    return told


def differences(
    case: dict[str, Any], result: dict[str, Any], version: str, *, log: bool = True
) -> list[str]:
    """Every field in which the plan and the engine disagree; empty where they agree.

    ``log`` also compares the boot log (an engine that answers several cases in one process prints
    some lines only once).
    """
    if "align_result" in result and not case.get("layers"):
        ours = align_case(case, version)
        return [] if ours == result["align_result"] else [f"{ours} != {result['align_result']}"]
    try:
        plan = plan_case(case, version)
    except DoesNotFitError as error:
        told = result.get("error")
        return refusal_differences(error, told) if told else [f"refused by us only: {error}"]
    except RefusalError as error:
        return [] if "error" in result else [f"refused by us only: {error}"]
    if "error" in result:
        return [f"refused by the engine only: {result['error']}"]
    ours = as_engine_tells(plan)
    told = engine_told(result, ours)
    found = _compare("", ours, told)
    return found + (
        log_differences(plan, result["vllm_log"]) if log and case.get("hf_config") else []
    )


def refusal_differences(error: DoesNotFitError, told: str) -> list[str]:
    """The figures of the engine's "does not fit" message beside ours."""
    figures = re.search(r"\(([\d.]+) GiB KV cache .*? memory \(([\d.]+) GiB\)", told)
    if figures is None:
        none_left = "No available memory" in told and error.usable_bytes <= 0
        return [] if none_left else [f"refused for another reason: {told}; ours: {error}"]
    length = re.search(r"estimated maximum model length is (\d+)", told)
    ours = (gib(error.needed_bytes), gib(error.usable_bytes), error.longest_tokens)
    theirs = (*figures.groups(), int(length.group(1)) if length else 0)
    return [] if ours == theirs else [f"does not fit: ours {ours}, engine {theirs}"]


def _compare(path: str, ours: Any, told: Any) -> list[str]:
    if isinstance(ours, dict) and isinstance(told, dict):
        found = []
        for key in dict.fromkeys([*ours, *told]):
            if key not in ours or key not in told:
                found.append(f"{path}.{key}: only in {'ours' if key in ours else 'the engine'}")
            else:
                found += _compare(f"{path}.{key}", ours[key], told[key])
        return found
    if isinstance(ours, list) and isinstance(told, list) and len(ours) == len(told):
        return [
            d
            for i, (a, b) in enumerate(zip(ours, told, strict=True))
            for d in _compare(f"{path}[{i}]", a, b)
        ]
    return [] if ours == told else [f"{path}: ours {ours!r}, engine {told!r}"]


def log_differences(plan: PoolPlan, told: list[str]) -> list[str]:
    """Lines of the engine's log that the plan does not predict, or predicts otherwise.

    Which backends stood to choose is not predicted, so those lines are left out; of the plan's
    lines only those are held against the log that the driver keeps.
    """
    kept = (
        "attention block size",
        "Padding mamba",
        "padding layers",
        "KV cache size",
        "KV cache layout",
        "GDN prefill kernel",
        "Auto-fit",
    )
    ours = [line for line in boot_log(plan) if any(word in line for word in kept)]
    expected = [line for line in told if "out of potential backends" not in line]
    return _compare("log", ours, expected)
