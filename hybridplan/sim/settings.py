"""One configuration as named plain values: what a sweep varies and a comparison lines up.

Names are the flags of ``hybridplan simulate`` with underscores; values are what JSON can hold, so
that a configuration can be hashed, stored and sent to another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from hybridplan.errors import InputError
from hybridplan.ledger.size import MAX_BYTES, parse_bytes
from hybridplan.sim.policies import FAMILIES, Family, parse_policy

Value: TypeAlias = "str | int | float | bool | None"
Settings: TypeAlias = "Mapping[str, Value]"
_Parse: TypeAlias = "Callable[[str, object], Value]"

_EVERY: tuple[Family, ...] = FAMILIES
_VLLM: tuple[Family, ...] = ("vllm",)
_SGLANG: tuple[Family, ...] = ("sglang",)
_ENGINES: tuple[Family, ...] = ("vllm", "sglang")
_MARCONI: tuple[Family, ...] = ("marconi",)


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting: which engines know it, and how a value a user wrote becomes the stored one."""

    families: tuple[Family, ...]
    parse: _Parse


def _word(name: str, value: object) -> Value:
    if isinstance(value, str) and value:
        return value
    raise InputError(f"{name} {value!r} is not a word")


def _whole(name: str, value: object) -> Value:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lstrip("-").isdigit():
        return int(value)
    raise InputError(f"{name} {value!r} is not a whole number")


def _number(name: str, value: object) -> Value:
    try:
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            raise ValueError
        return float(value)
    except ValueError:
        raise InputError(f"{name} {value!r} is not a number") from None


def _ratio(name: str, value: object) -> Value:
    try:
        exact = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{name} {value!r} is not a number such as 0.9") from None
    if exact <= 0:
        raise InputError(f"{name} {value} must be above 0")
    return str(exact)


def _size(name: str, value: object) -> Value:
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 < value <= MAX_BYTES:
            raise InputError(
                f"{name} {value} is no size in bytes from 1 to 1 EiB; write one as in 42GiB"
            )
        return value
    return parse_bytes(str(value), name)


def _switch(name: str, value: object) -> Value:
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    found = value if isinstance(value, bool) else words.get(str(value).lower())
    if found is None:
        raise InputError(f"{name} {value!r} is neither true nor false")
    return found


def _interval(name: str, value: object) -> Value:
    if value is None or str(value).lower() == "none":
        return "none"
    return _whole(name, value)


def _drafts_list(name: str, value: object) -> Value:
    parts = [part.strip() for part in str(value).split("/")]
    if not all(part.isdigit() for part in parts):
        raise InputError(f"{name} {value!r} must be whole numbers such as 2 or 0/1/2")
    return "/".join(parts)


def _engine(name: str, value: object) -> Value:
    return parse_policy(str(value)).name


AXES: dict[str, Axis] = {
    "trace": Axis(_EVERY, _word),
    "model": Axis(_EVERY, _word),
    "engine": Axis(_EVERY, _engine),
    "kv_memory": Axis(_EVERY, _size),
    "gpu": Axis(_EVERY, _word),
    "memory_utilization": Axis(_EVERY, _number),
    "weights_memory": Axis(_EVERY, _size),
    "tp": Axis(_EVERY, _whole),
    "pp": Axis(_EVERY, _whole),
    "dcp": Axis(_EVERY, _whole),
    "kv_dtype": Axis(_EVERY, _word),
    "state_dtype": Axis(_EVERY, _word),
    "conv_dtype": Axis(_EVERY, _word),
    "drafts": Axis(_ENGINES, _whole),
    "max_model_len": Axis(_ENGINES, _whole),
    "num_blocks": Axis(_VLLM, _whole),
    "draft_method": Axis(_VLLM, _word),
    "accepted_drafts": Axis(_VLLM, _drafts_list),
    "max_num_seqs": Axis(_VLLM, _whole),
    "max_num_batched_tokens": Axis(_VLLM, _whole),
    "block_size": Axis(_VLLM, _whole),
    "prefix_match_unit": Axis(_VLLM, _whole),
    "prefix_cache_retention_interval": Axis(_VLLM, _interval),
    "enable_mamba_shared_prefix_checkpoint": Axis(_VLLM, _switch),
    "prefix_caching": Axis(_VLLM, _switch),
    "attention_backend": Axis(_VLLM, _word),
    "watermark": Axis(_VLLM, _number),
    "mamba_full_memory_ratio": Axis(_SGLANG, _ratio),
    "max_mamba_cache_size": Axis(_SGLANG, _whole),
    "max_running_requests": Axis(_SGLANG, _whole),
    "page_size": Axis(_SGLANG, _whole),
    "chunked_prefill_size": Axis(_SGLANG, _whole),
    "mamba_max_states_per_path": Axis(_SGLANG, _whole),
    "mamba_track_interval": Axis(_SGLANG, _whole),
    "hicache_ratio": Axis(_SGLANG, _ratio),
    "hicache_size": Axis(_SGLANG, _size),
    "marconi_block": Axis(_MARCONI, _whole),
    "marconi_chunk": Axis(_MARCONI, _whole),
    "bootstrap_multiplier": Axis(_MARCONI, _whole),
    "arrival": Axis(_EVERY, _word),
    "session_gap": Axis(_EVERY, _number),
    "calibration": Axis(_EVERY, _word),
    "rate": Axis(_EVERY, _word),
    "limit": Axis(_EVERY, _whole),
    "format": Axis(_EVERY, _word),
    "block_tokens": Axis(_EVERY, _whole),
    "tail": Axis(_EVERY, _word),
    "time_unit": Axis(_EVERY, _word),
    "clock": Axis(_EVERY, _word),
    "id_scope": Axis(_EVERY, _word),
    "tokenizer": Axis(_EVERY, _word),
    "tokens_per_char": Axis(_EVERY, _number),
    "inputs": Axis(_EVERY, _word),
    "output_tokens": Axis(_EVERY, _whole),
    "turns": Axis(_EVERY, _word),
    "subagents": Axis(_EVERY, _switch),
    "order": Axis(_EVERY, _word),
    "window": Axis(_EVERY, _whole),
    "link_sessions": Axis(_EVERY, _switch),
    "drop_empty": Axis(_EVERY, _switch),
    "skip_bad": Axis(_EVERY, _whole),
}
TRACE_OPTIONS = tuple(AXES)[tuple(AXES).index("limit") :]
SHORT = {
    "memory": "kv_memory",
    "block": "block_size",
    "unit": "prefix_match_unit",
    "retention": "prefix_cache_retention_interval",
    "ratio": "mamba_full_memory_ratio",
    "page": "page_size",
}
DEFAULTS: dict[str, Value] = {"engine": "vllm@0.33", "arrival": "sequential"}


def axis_name(name: str) -> str:
    """The setting behind a name, a short name or a flag. Raises InputError for none."""
    plain = name.lstrip("-").replace("-", "_")
    plain = SHORT.get(plain, plain)
    if plain in AXES:
        return plain
    from difflib import get_close_matches

    near = get_close_matches(plain, [*AXES, *SHORT], n=3)
    hint = f"closest are {', '.join(near)}" if near else f"known are {', '.join(AXES)}"
    raise InputError(f"setting {name!r} is not known; {hint}")


def canonical(settings: Mapping[str, object]) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The settings in one order with parsed values, and the names its engine does not know.

    A setting that is None is not given. Those of another engine are left out: a grid over
    engines varies each by what it has. Raises InputError for unknown names and bad values.
    """
    given = {axis_name(name): value for name, value in settings.items() if value is not None}
    given = {**DEFAULTS, **given}
    family = parse_policy(str(given["engine"])).family
    found: dict[str, Value] = {}
    foreign = []
    for name, axis in AXES.items():
        if name not in given:
            continue
        value = axis.parse(name, given[name])
        if family in axis.families:
            found[name] = value
        else:
            foreign.append(name)
    return found, tuple(foreign)
