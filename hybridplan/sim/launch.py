"""A configuration as the command that starts its engine, with flags an operator can really set."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from shlex import join

from hybridplan.config.find import in_catalogue
from hybridplan.errors import InputError
from hybridplan.ledger.dtypes import canonical
from hybridplan.ledger.kv_formats import kv_format
from hybridplan.sim.policies import Family, parse_policy
from hybridplan.sim.settings import Settings, Value

_VLLM = {
    "tp": "--tensor-parallel-size",
    "pp": "--pipeline-parallel-size",
    "dcp": "--decode-context-parallel-size",
    "memory_utilization": "--gpu-memory-utilization",
    "kv_memory": "--kv-cache-memory-bytes",
    "num_blocks": "--num-gpu-blocks-override",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "watermark": "--watermark",
    "block_size": "--block-size",
    "kv_dtype": "--kv-cache-dtype",
    "state_dtype": "--mamba-ssm-cache-dtype",
    "conv_dtype": "--mamba-cache-dtype",
    "prefix_match_unit": "--prefix-match-unit",
    "attention_backend": "--attention-backend",
    "prefix_caching": "--enable-prefix-caching",
    "prefix_cache_retention_interval": "--prefix-cache-retention-interval",
    "enable_mamba_shared_prefix_checkpoint": "--enable-mamba-shared-prefix-checkpoint",
    "drafts": "--speculative-config",
    "draft_method": "--speculative-config",
}
_SGLANG = {
    "engine": "--mamba-radix-cache-strategy",
    "tp": "--tp-size",
    "pp": "--pp-size",
    "dcp": "--dcp-size",
    "memory_utilization": "--mem-fraction-static",
    "max_model_len": "--context-length",
    "mamba_full_memory_ratio": "--mamba-full-memory-ratio",
    "max_mamba_cache_size": "--max-mamba-cache-size",
    "max_running_requests": "--max-running-requests",
    "page_size": "--page-size",
    "chunked_prefill_size": "--chunked-prefill-size",
    "mamba_max_states_per_path": "--mamba-max-states-per-path",
    "mamba_track_interval": "--mamba-track-interval",
    "hicache_ratio": "--hicache-ratio",
    "hicache_size": "--hicache-size",
    "kv_dtype": "--kv-cache-dtype",
    "state_dtype": "--mamba-ssm-dtype",
    "drafts": "--speculative-algorithm",
}
_SPELT_OUT = frozenset(
    ("engine", "prefix_caching", "prefix_cache_retention_interval", "drafts", "draft_method",
     "enable_mamba_shared_prefix_checkpoint")
)  # fmt: skip
_GIGABYTE = 10**9
_FP8 = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def launch_flag(family: Family, setting: str) -> str | None:
    """The server's flag behind a setting, None where it has none (a trace's option, a card)."""
    return (_VLLM if family == "vllm" else _SGLANG).get(setting)


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
    if get("conv_dtype") is not None:  # no flag, a variable of the environment
        words = ["env", f"SGLANG_MAMBA_CONV_DTYPE={canonical(str(get('conv_dtype')))}", *words]
    words += _named(settings, _SGLANG)
    if get("hicache_ratio") is not None or get("hicache_size") is not None:
        words.append("--enable-hierarchical-cache")
    if strategy != "auto":
        words += ["--mamba-radix-cache-strategy", strategy]
    if get("drafts"):
        drafts = int(str(get("drafts")))
        words += ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", f"{drafts}"]
        words += ["--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", f"{drafts + 1}"]
    return words


def _named(settings: Settings, flags: Mapping[str, str]) -> list[str]:
    words = []
    for name, flag in flags.items():
        value = settings.get(name)
        if value is None or name in _SPELT_OUT or (name in ("tp", "pp", "dcp") and value == 1):
            continue
        words += [flag, spelt(name, value)]
    return words


def spelt(name: str, value: Value) -> str:
    """A setting's value as the servers take it: full dtypes, decimal ratios."""
    text = str(value)
    if name == "kv_dtype":
        full = kv_format(text)
        return _FP8.get(full, full)
    if name in ("state_dtype", "conv_dtype"):
        return canonical(text)
    if name == "hicache_size":
        if int(text) % _GIGABYTE:
            raise InputError(
                f"hicache_size is {int(text):,} bytes and SGLang takes whole gigabytes; give"
                f" {-(-int(text) // _GIGABYTE)}GB"
            )
        return str(int(text) // _GIGABYTE)
    if name in ("mamba_full_memory_ratio", "hicache_ratio") and "/" in text:
        top, bottom = text.split("/")
        return f"{int(top) / int(bottom):g}"
    return "None" if text == "none" else text


def _model(settings: Settings) -> str:
    asked = str(settings["model"])
    entry = in_catalogue(asked)
    if entry is None or asked.endswith(".json"):
        return asked
    return entry.model_id.split(" ")[0]
