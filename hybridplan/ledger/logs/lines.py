"""The memory lines engines print at boot, as typed facts.

Wording read from vLLM 0.11 to 0.33 (config/compilation.py, platforms/interface.py,
v1/core/kv_cache_utils.py, v1/worker/gpu_worker.py) and SGLang 0.5.23 (mem_cache/memory_pool.py,
managers/scheduler.py), and from logs in public threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from hybridplan.errors import InputError

Value: TypeAlias = int | float | str

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NUMBER = r"([\d][\d,_]*(?:\.\d+)?)"
MAX_LINE_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class Fact:
    """One recognised line. ``kind`` names the rule that printed it; ``values`` its numbers."""

    kind: str
    engine: str
    line_number: int
    text: str
    values: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Pattern:
    kind: str
    engine: str
    regex: re.Pattern[str]
    names: tuple[str, ...]


def _p(kind: str, engine: str, regex: str, *names: str) -> _Pattern:
    return _Pattern(kind, engine, re.compile(regex), names)


_PATTERNS = (
    _p("engine", "vllm", r"Initializing an? (?:V1 )?LLM engine \(v([^)\s]+)\)", "version"),
    _p("version", "vllm", r"vLLM (?:API server )?version[: ]+v?([0-9][\w.+-]*)", "version"),
    _p("block_size", "vllm", rf"Setting attention block size to {_NUMBER} tokens", "block_tokens"),
    _p("padding", "vllm", rf"Padding mamba page size by {_NUMBER}%", "padding_pct"),
    _p("weights", "vllm", rf"Model loading took {_NUMBER} GiB", "weights_gib"),
    _p("available", "vllm", rf"Available KV cache memory: {_NUMBER} GiB", "available_gib"),
    _p(
        "capacity",
        "vllm",
        rf"KV cache size: {_NUMBER} tokens, Maximum concurrency for {_NUMBER} tokens per "
        rf"request: {_NUMBER}x",
        "kv_tokens",
        "max_model_len",
        "concurrency",
    ),
    _p("kv_tokens", "vllm", rf"KV cache size: {_NUMBER} tokens", "kv_tokens"),
    _p(
        "concurrency",
        "vllm",
        rf"Maximum concurrency for {_NUMBER} tokens per request: {_NUMBER}x",
        "max_model_len",
        "concurrency",
    ),
    _p("padding_layers", "vllm", rf"Add {_NUMBER} padding layers", "padding_layers"),
    _p(
        "mamba_blocks",
        "vllm",
        rf"max_num_seqs \({_NUMBER}\) exceeds available Mamba cache blocks \({_NUMBER}\)",
        "max_num_seqs",
        "num_blocks",
    ),
    _p(
        "too_small",
        "vllm",
        rf"max seq len \({_NUMBER}\),? \(?{_NUMBER} GiB KV cache is needed, which is larger than "
        rf"the available KV cache memory \({_NUMBER} GiB\)",
        "max_model_len",
        "needed_gib",
        "available_gib",
    ),
    _p(
        "estimated_length",
        "vllm",
        rf"estimated maximum model length is {_NUMBER}",
        "estimated_max_len",
    ),
    _p(
        "override",
        "vllm",
        rf"Overriding num_gpu_blocks={_NUMBER} with num_gpu_blocks_override={_NUMBER}",
        "num_blocks",
        "override_blocks",
    ),
    _p("gpu_blocks", "vllm", rf"# ?GPU blocks: {_NUMBER}", "num_blocks"),
    _p("backend", "vllm", r"Using ([A-Z][A-Z0-9_]+) attention backend", "backend"),
    _p(
        "budget_guard",
        "vllm",
        rf"block_size \({_NUMBER}\) must be <= max_num_batched_tokens \({_NUMBER}\)",
        "block_tokens",
        "max_num_batched_tokens",
    ),
    _p(
        "state_pool",
        "sglang",
        rf"Mamba Cache is allocated\. max_mamba_cache_size: {_NUMBER}, conv_state size: "
        rf"{_NUMBER} ?GB, ssm_state size: {_NUMBER} ?GB",
        "slots",
        "conv_gib",
        "state_gib",
    ),
    _p(
        "kv_pool",
        "sglang",
        rf"KV Cache is allocated\. (?:dtype: (?P<dtype>[\w.]+), )?#tokens: {_NUMBER}, "
        rf"K size: {_NUMBER} GB, V size: {_NUMBER} GB",
        "kv_dtype",
        "kv_tokens",
        "k_gib",
        "v_gib",
    ),
    _p(
        "kv_pool",
        "sglang",
        rf"KV Cache is allocated\. (?:dtype: (?P<dtype>[\w.]+), )?#tokens: {_NUMBER}, "
        rf"KV size: {_NUMBER} GB",
        "kv_dtype",
        "kv_tokens",
        "kv_gib",
    ),
    _p(
        "limits",
        "sglang",
        rf"max_total_num_tokens={_NUMBER}.*?max_running_requests={_NUMBER}"
        rf"(?:.*?context_len={_NUMBER})?",
        "kv_tokens",
        "max_running_requests",
        "context_tokens",
    ),
    _p(
        "weights",
        "sglang",
        rf"Load weight end\..*?avail mem={_NUMBER} GB(?:, mem usage={_NUMBER} GB)?",
        "available_gib",
        "weights_gib",
    ),
)

_ARGUMENTS = {
    "model": r"\bmodel(?:_path|_tag)?['\"]?[=:]\s*['\"]([^'\"]+)['\"]",
    "tp": r"\b(?:tensor_parallel_size|tp_size)['\"]?[=:]\s*(\d+)",
    "pp": r"\b(?:pipeline_parallel_size|pp_size)['\"]?[=:]\s*(\d+)",
    "dtype": r"(?<![_\w])dtype['\"]?[=:]\s*['\"]?(?:torch\.)?(\w+)",
    "max_model_len": r"\b(?:max_seq_len|max_model_len|context_length)['\"]?[=:]\s*(\d+)",
    "kv_dtype": r"\bkv_cache_dtype['\"]?[=:]\s*['\"]?(\w+)",
    "state_dtype": r"\bmamba_ssm_(?:cache_)?dtype['\"]?[=:]\s*['\"]?(\w+)",
    "prefix_caching": r"\benable_prefix_caching['\"]?[=:]\s*(True|False)",
    "max_num_seqs": r"\bmax_num_seqs['\"]?[=:]\s*(\d+)",
    "max_num_batched_tokens": r"\bmax_num_batched_tokens['\"]?[=:]\s*(\d+)",
    "drafts": r"\bnum_spec(?:ulative)?_tokens['\"]?[=:]\s*(\d+)",
    "ratio": r"\bmamba_full_memory_ratio['\"]?[=:]\s*([\d.]+)",
    "max_running_requests": r"\bmax_running_requests['\"]?[=:]\s*(\d+)",
    "strategy": r"\bmamba_radix_cache_strategy['\"]?[=:]\s*['\"]?(\w+)",
    "block_size": r"(?<![_\w])block_size['\"]?[=:]\s*(\d+)",
}
_ARGUMENT_REGEXES = {name: re.compile(pattern) for name, pattern in _ARGUMENTS.items()}
_ARGUMENT_LINES = (
    ("vllm", re.compile(r"Initializing an? (?:V1 )?LLM engine|non-default args:")),
    ("sglang", re.compile(r"server_args=ServerArgs\(")),
)

_FLAGS = {
    "tp": r"(?:--tensor-parallel-size|-tp|--tp(?:-size)?)[ =](\d+)",
    "pp": r"(?:--pipeline-parallel-size|-pp|--pp(?:-size)?)[ =](\d+)",
    "max_model_len": r"(?:--max-model-len|--context-length)[ =](\d+)",
    "kv_dtype": r"--kv-cache-dtype[ =](\w+)",
    "state_dtype": r"--mamba-ssm-(?:cache-)?dtype[ =](\w+)",
    "max_num_seqs": r"--max-num-seqs[ =](\d+)",
    "max_num_batched_tokens": r"--max-num-batched-tokens[ =](\d+)",
    "block_size": r"--block-size[ =](\d+)",
    "ratio": r"--mamba-full-memory-ratio[ =]([\d.]+)",
    "max_running_requests": r"--max-running-requests[ =](\d+)",
    "drafts": r"num_speculative_tokens\\?['\"]?\s*:\s*(\d+)",
    "model": r"(?:vllm serve|--model-path|--model)[ =]['\"]?([^\s'\"]+)",
}
_FLAG_REGEXES = {name: re.compile(pattern) for name, pattern in _FLAGS.items()}
_COMMANDS = (
    ("vllm", re.compile(r"\bvllm serve\b|vllm\.entrypoints")),
    ("sglang", re.compile(r"sglang\.launch_server|\bsglang serve\b")),
)


def _number(text: str) -> Value:
    plain = text.replace(",", "").replace("_", "")
    try:
        return float(plain) if "." in plain else int(plain)
    except ValueError:
        return text


def _arguments(text: str) -> tuple[str, dict[str, Value]] | None:
    for engine, marker in _ARGUMENT_LINES:
        if marker.search(text):
            return engine, _search(_ARGUMENT_REGEXES, text)
    for engine, marker in _COMMANDS:
        if marker.search(text):
            return engine, _search(_FLAG_REGEXES, text)
    return None


def _search(regexes: dict[str, re.Pattern[str]], text: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, regex in regexes.items():
        match = regex.search(text)
        if match:
            found[name] = _number(match.group(1))
    return found


def read_facts(lines: Iterable[str], name: str) -> tuple[Fact, ...]:
    """Every known memory line of a log, in order; unknown lines are passed over.

    Raises InputError, naming the log, when it is binary or holds no known line.
    """
    facts: list[Fact] = []
    count = 0
    for count, raw in enumerate(lines, start=1):
        if "\x00" in raw:
            raise InputError(f"{name} is not a text log: line {count} holds a NUL byte")
        text = _ANSI.sub("", raw[:MAX_LINE_CHARACTERS]).strip()
        facts.extend(_facts_of(text, count))
    if not any(fact.kind not in ("arguments", "version", "engine") for fact in facts):
        raise InputError(
            f"{name} holds no memory line of vLLM or SGLang in {count} lines; "
            "give the part of the boot log that says 'KV cache size' or 'Mamba Cache is allocated'"
        )
    return tuple(facts)


def _facts_of(text: str, line_number: int) -> list[Fact]:
    facts = []
    arguments = _arguments(text)
    if arguments is not None and arguments[1]:
        facts.append(Fact("arguments", arguments[0], line_number, text, arguments[1]))
    taken: set[str] = set()
    for pattern in _PATTERNS:
        match = pattern.regex.search(text)
        if not match or taken & set(pattern.names):
            continue
        taken |= set(pattern.names)
        values = {
            key: _number(value)
            for key, value in zip(pattern.names, match.groups(), strict=True)
            if value is not None
        }
        facts.append(Fact(pattern.kind, pattern.engine, line_number, text, values))
    return facts
