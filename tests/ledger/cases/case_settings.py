"""What a logged case says of its configuration, read from its own words.

Settings are inputs: model, parallel sizes, dtypes, draft length, drafter, request length, whether
prefixes are cached. No observed figure is a setting. What a thread did not show stands in
``INFERRED``, beside the words of the case's own derivation it comes from.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hybridplan.config.catalogue import folder
from hybridplan.config.read import read_config
from hybridplan.config.spec import Attention, Layer, ModelSpec, Window
from hybridplan.errors import InputError
from hybridplan.ledger.logs.model import find_model

Case = dict[str, Any]


class NotDerivableError(Exception):
    """The case shows no figure that a configuration decides, or not enough of the configuration."""


@dataclass(frozen=True)
class Settings:
    """A configuration; None for what neither the case nor its derivation says."""

    model: ModelSpec
    version: str = ""
    tp: int | None = None
    pp: int | None = None
    kv_dtype: str | None = None
    state_dtype: str | None = None
    drafts: int | None = None
    prefix_caching: bool | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    drafter: tuple[Layer, ...] | None = None
    given: dict[str, Any] = field(default_factory=dict)


INFERRED: dict[str, dict[str, Any]] = {
    "A04": {"state_dtype": "bfloat16"},  # "with a bf16 SSM state"
    "A07": {"points": [{"kv_dtype": "bfloat16"}, {"kv_dtype": "int8_per_token_head"}]},
    "A20": {"kernel_block_tokens": 128},  # "R1 with align=128"
    "B12": {  # "no_spec" for the first pool, "spec4" for the others
        "points": [
            {
                "drafts": 0,
                "at": {"kv_tokens": ("pool_tokens", 0), "concurrency": ("concurrency", 0)},
            },
            {
                "drafts": 4,
                "at": {
                    "block_size": ("block_size",),
                    "kv_tokens": ("pool_tokens", 1),
                    "concurrency": ("concurrency", 1),
                },
            },
            {"drafts": 4, "at": {"kv_tokens": ("pool_tokens", 2)}},
        ]
    },
    "C04": {"kv_dtype": "bfloat16", "state_dtype": "bfloat16", "tp": 1, "kernel_block_tokens": 64},
    "H04": {
        "points": [
            {"kv_dtype": "bfloat16", "at": {"kv_tokens": ("kv_tokens_bf16",)}},
            {
                "kv_dtype": "fp8",
                "same_blocks": True,  # "with the same 361 blocks for both"
                "at": {
                    "kv_tokens_about": ("kv_tokens_fp8_about",),
                    "concurrency": ("concurrency_fp8",),
                },
            },
        ]
    },
}

# The published file of Qwen3.8-Flash-Next does not say which layers have n-gram embeddings; every
# logged boot of it shows the group of their states.
_NGRAM_MODEL, _NGRAM_LAYERS = "qwen3.8-flash-next", (2,)
_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "f32": "float32",
    "f16": "float16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "int8_per_token_head": "int8_per_token_head",
}
R4B_WINDOW_TOKENS, R4B_IN_FLIGHT_TOKENS = 2048, 16384  # cases/README, rule R4b
# A drafter's KV heads hold a target page in half-wide heads, so that its spec is one of its own.
_DRAFTER_HEAD_DIM = 128


def settings_of(case: Case) -> Settings:
    """Everything the case states. Raises NotDerivableError where no known model is named."""
    said = INFERRED.get(case["id"], {})
    spec = model_of(case["model"])
    flags = " ".join(case.get("flags", []))
    dtype = case.get("dtype", {})
    drafts = said.get("drafts", _drafts(case, flags))
    drafter = _drafter(case, spec)
    length = _number(r"max[-_]model[-_]len[ =](\d+)", flags)
    budget = _number(r"max[-_]num[-_]batched[-_]tokens[ =](\d+)", flags)
    return Settings(
        model=spec,
        version=case.get("engine_version") or "",
        tp=said.get("tp", case.get("tp")),
        pp=_number(r"\bPP (\d+)", flags),
        kv_dtype=said.get("kv_dtype", _dtype(dtype.get("kv"))),
        state_dtype=said.get("state_dtype", _dtype(dtype.get("state"))),
        drafts=drafts,
        prefix_caching=_caching(case, flags),
        max_model_len=case["observed"].get("max_model_len", length),
        max_num_batched_tokens=_in_flight(case) // 2 if drafter and _windowed(case) else budget,
        drafter=drafter,
        given={k: said[k] for k in ("kernel_block_tokens",) if k in said},
    )


def model_of(text: str) -> ModelSpec:
    """The model a case names, less what it says about weights, drafters and titles."""
    name = re.split(r" \(| \+|,", text)[0].removeprefix("NVIDIA-")
    words = [word for word in name.split() if word != "geometry"]
    while words:
        try:
            spec, _ = find_model(None, "-".join(words))
        except InputError:
            words.pop()
            continue
        assert spec is not None
        return spec if spec.name != _NGRAM_MODEL else _with_ngram_layers(spec.name, _NGRAM_LAYERS)
    raise NotDerivableError(f"the model ({text}) is not one whose config.json is known")


@cache
def _with_ngram_layers(name: str, layers: tuple[int, ...]) -> ModelSpec:
    path = folder() / f"{name}.json"
    data = copy.deepcopy(json.loads(path.read_text()))
    data["text_config"]["ple_layer_ids"] = list(layers)
    return read_config(data, file=str(path), name=name)


def _dtype(text: str | None) -> str | None:
    return _DTYPES.get(text.split(" ")[0]) if text else None


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else None


def _drafts(case: Case, flags: str) -> int | None:
    for text in (flags, case["model"], (case.get("derived") or {}).get("rule", "")):
        for pattern in (
            r"(?:MTP|DFlash2?) n=(\d+)",
            r"\bMTP (\d+)",
            r"num_speculative_tokens=(\d+)",
            r"n_spec=(\d+)",
        ):
            found = _number(pattern, text)
            if found is not None:
                return found
    return None


def _caching(case: Case, flags: str) -> bool | None:
    rule = (case.get("derived") or {}).get("rule", "")
    if "R4(none)" in rule:
        return False
    if re.search(r"prefix[-_ ]caching|PREFIX_CACHE=1|align", flags) or "R4(align" in rule:
        return True
    return None


def _windowed(case: Case) -> bool:
    """Whether the derivation gives the drafter a window (its rule R4b)."""
    return "R4b" in (case.get("derived") or {}).get("rule", "")


def _in_flight(case: Case) -> int:
    """Tokens in flight that R4b names: twice the step's budget, with async scheduling."""
    found = re.search(r"([\d,]+) tokens in flight", case["derived"]["rule"])
    return int(found.group(1).replace(",", "")) if found else R4B_IN_FLIGHT_TOKENS


def _drafter(case: Case, spec: ModelSpec) -> tuple[Layer, ...] | None:
    """A DFlash drafter. Raises NotDerivableError where its number of layers is not said."""
    text = " ".join([case["model"], *case.get("flags", ()), *case["observed"]])
    rule = (case.get("derived") or {}).get("rule", "")
    if not re.search(r"DFlash|draft_bytes", text) or case["observed"].keys() & {"page_bytes"}:
        return None
    found = re.search(r"(\d+)-layer DFlash", text) or re.search(r"group size (\d+)", rule)
    if found is None:
        raise NotDerivableError("it has a drafter whose layers and window are not said")
    full = next(m for x in spec.layers for m in x.mixers if isinstance(m, Attention))
    one = Attention(
        heads=full.heads * full.key_dim // _DRAFTER_HEAD_DIM,
        kv_heads=full.kv_heads * full.key_dim // _DRAFTER_HEAD_DIM,
        key_dim=_DRAFTER_HEAD_DIM,
        value_dim=_DRAFTER_HEAD_DIM,
        window=Window("sliding", R4B_WINDOW_TOKENS) if _windowed(case) else None,
    )
    return tuple(Layer(i, (one,), None) for i in range(int(found.group(1))))
