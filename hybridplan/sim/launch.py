"""A configuration as the command that starts its engine, with flags an operator can really set."""

from __future__ import annotations

import json
from collections.abc import Callable
from shlex import join

from hybridplan.config.find import in_catalogue
from hybridplan.errors import InputError
from hybridplan.sim.policies import parse_policy
from hybridplan.sim.settings import Settings

_VLLM = (
    ("tp", "--tensor-parallel-size"),
    ("pp", "--pipeline-parallel-size"),
    ("dcp", "--decode-context-parallel-size"),
    ("memory_utilization", "--gpu-memory-utilization"),
    ("kv_memory", "--kv-cache-memory-bytes"),
    ("max_model_len", "--max-model-len"),
    ("max_num_seqs", "--max-num-seqs"),
    ("max_num_batched_tokens", "--max-num-batched-tokens"),
    ("block_size", "--block-size"),
    ("kv_dtype", "--kv-cache-dtype"),
    ("state_dtype", "--mamba-ssm-cache-dtype"),
    ("conv_dtype", "--mamba-cache-dtype"),
    ("prefix_match_unit", "--prefix-match-unit"),
    ("attention_backend", "--attention-backend"),
)
_SGLANG = (
    ("tp", "--tp-size"),
    ("pp", "--pp-size"),
    ("memory_utilization", "--mem-fraction-static"),
    ("max_model_len", "--context-length"),
    ("mamba_full_memory_ratio", "--mamba-full-memory-ratio"),
    ("max_mamba_cache_size", "--max-mamba-cache-size"),
    ("max_running_requests", "--max-running-requests"),
    ("page_size", "--page-size"),
    ("chunked_prefill_size", "--chunked-prefill-size"),
)
_SGLANG_KV = {"fp8": "fp8_e4m3", "bf16": "bfloat16"}


def launch_command(settings: Settings) -> str:
    """The command line of a vLLM or SGLang configuration, ready for a shell.

    Raises InputError for a policy that no engine offers.
    """
    policy = parse_policy(str(settings["engine"]))
    if policy.family == "vllm" and policy.choice == "":
        return join(_vllm(settings))
    if policy.family == "sglang":
        return join(_sglang(settings, policy.choice))
    raise InputError(f"{policy.name} is a policy to compare with, and no engine starts with it")


def _vllm(settings: Settings) -> list[str]:
    get = settings.get
    words = ["vllm", "serve", _model(settings), *_named(settings, _VLLM)]
    caching = get("prefix_caching")
    words.append("--no-enable-prefix-caching" if caching is False else "--enable-prefix-caching")
    interval = get("prefix_cache_retention_interval")
    if interval is not None:
        words += [
            "--prefix-cache-retention-interval",
            "None" if interval == "none" else f"{interval}",
        ]
    if get("enable_mamba_shared_prefix_checkpoint"):
        words.append("--enable-mamba-shared-prefix-checkpoint")
    if get("drafts"):
        method = get("draft_method") or "mtp"
        speculation = {"method": method, "num_speculative_tokens": get("drafts")}
        words += ["--speculative-config", json.dumps(speculation)]
    return words


def _sglang(settings: Settings, strategy: str) -> list[str]:
    get: Callable[[str], object] = settings.get
    words = ["python", "-m", "sglang.launch_server", "--model-path", _model(settings)]
    words += _named(settings, _SGLANG)
    if strategy != "auto":
        words += ["--mamba-radix-cache-strategy", strategy]
    if get("kv_dtype") is not None:
        kv = str(get("kv_dtype"))
        words += ["--kv-cache-dtype", _SGLANG_KV.get(kv, kv)]
    if get("drafts"):
        words += ["--speculative-algorithm", "NEXTN"]
        words += ["--speculative-num-draft-tokens", f"{int(str(get('drafts'))) + 1}"]
    return words


def _named(settings: Settings, names: tuple[tuple[str, str], ...]) -> list[str]:
    words = []
    for name, flag in names:
        value = settings.get(name)
        if value is None or (name in ("tp", "pp", "dcp") and value == 1):
            continue
        text = str(value)
        if name == "mamba_full_memory_ratio" and "/" in text:
            top, bottom = text.split("/")
            text = f"{int(top) / int(bottom):g}"
        words += [flag, text]
    return words


def _model(settings: Settings) -> str:
    asked = str(settings["model"])
    entry = in_catalogue(asked)
    if entry is None or asked.endswith(".json"):
        return asked
    return entry.model_id.split(" ")[0]
