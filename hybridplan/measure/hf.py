"""transformers' implementation of the model: built with random or real weights, and looked into."""

from __future__ import annotations

import copy
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridplan.config.read import read_config
from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError
from hybridplan.measure import extras
from hybridplan.measure.context import Context

_SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "attn_rotary_emb": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "mtp_num_hidden_layers": 0,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 4096,
}
_SMALL_LAYERS = 4


class NoClassError(InputError):
    """transformers has no implementation of the model, so nothing of it can be looked at."""


@dataclass(frozen=True)
class Model:
    """A causal language model in eval mode, the spec of the config it was built from."""

    module: Any
    spec: ModelSpec
    device: Any
    what: str

    @property
    def core(self) -> Any:
        """The decoder without its head."""
        return self.module.model

    def tokens(self, count: int, seed: int = 5) -> Tensor:
        """Random ids [1, count]."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, self.spec.vocab_size, (1, count), generator=generator)
        return ids.to(self.device)


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes of a cache by what they are."""

    kv: int
    state: int
    conv: int
    other: int


def build(context: Context, dtype: str, *, untied: bool = False) -> Model:
    """The model on the context's device.

    On a CPU, or where full size takes more than half the free memory, it is a small model of the
    same architecture. ``untied`` gives random weights a head of their own: tied to the embedding,
    they would choose each token again for ever. Raises NoClassError where transformers has no class
    for the model.
    """
    transformers = extras.load("transformers", "the cache of a real model")
    transformers.utils.logging.set_verbosity_error()
    if context.weights is not None:
        return _real(transformers, context, dtype)
    raw = json.loads(Path(context.spec.file).read_text(encoding="utf-8"))
    for key in ("quantization_config", "compression_config"):
        raw.pop(key, None)
        raw.get("text_config", {}).pop(key, None)
    small = not context.gpu
    if not small:
        size = _parameters(transformers, raw, context) * getattr(torch, dtype).itemsize
        small = size > context.free_bytes() // 2
    if small:
        raw = shrunk(raw)
    config, model_class = _classes(transformers, raw, context)
    if untied:
        config.tie_word_embeddings = False
    torch.manual_seed(0)
    with torch.device(context.device):
        module = model_class._from_config(config, dtype=getattr(torch, dtype))
    module = module.to(context.device).eval()
    spec = read_config(raw, name=context.spec.name, file=context.spec.file) if small else None
    size = "small" if small else "full"
    what = f"transformers {transformers.__version__}, {size} size, random weights"
    return Model(module, spec or context.spec, context.device, what)


def _real(transformers: Any, context: Context, dtype: str) -> Model:
    assert context.weights is not None
    try:
        module = transformers.AutoModelForCausalLM.from_pretrained(
            str(context.weights), dtype=getattr(torch, dtype), local_files_only=True
        )
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"--weights {context.weights} cannot be loaded: {first}") from None
    what = f"transformers {transformers.__version__}, weights of {context.weights.name}"
    return Model(module.to(context.device).eval(), context.spec, context.device, what)


def shrunk(raw: dict[str, Any]) -> dict[str, Any]:
    """The config with few layers and everything small; the architecture stays."""
    raw = copy.deepcopy(raw)
    text = raw.get("text_config", raw)
    before = text.get("num_hidden_layers")
    kept = _one_of_each_kind(text.get("layer_types"))
    alike = text.get("num_key_value_heads") == text.get("num_attention_heads")
    for key, value in list(text.items()):
        if key in _SMALL and value:
            text[key] = _SMALL[key]
        if isinstance(value, list) and len(value) == before:
            text[key] = [value[index] for index in kept]
    if alike and "num_key_value_heads" in text:
        text["num_key_value_heads"] = text["num_attention_heads"]
    text["num_hidden_layers"] = _SMALL_LAYERS
    _fewer_layers(text)
    _fewer_mamba_heads(text)
    text["pad_token_id"] = 0
    rope = text.get("rope_parameters")
    if isinstance(rope, dict) and "mrope_section" in rope:
        rope["mrope_section"] = [2, 1, 1]
    return raw


def _one_of_each_kind(kinds: object) -> list[int]:
    """Layers to keep, in order: the first of every kind, then from the start."""
    if not isinstance(kinds, list):
        return list(range(_SMALL_LAYERS))
    firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    rest = [index for index in range(len(kinds)) if index not in firsts]
    return sorted([*firsts, *rest][:_SMALL_LAYERS])


def _fewer_layers(text: dict[str, Any]) -> None:
    """What says otherwise than by a list a layer which layer is of which kind."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        kept = _one_of_each_kind(list(pattern))
        text["hybrid_override_pattern"] = "".join(pattern[index] for index in kept)
    if text.get("attn_layer_indices"):
        text["attn_layer_indices"] = [_SMALL_LAYERS - 1]
    if text.get("attn_layer_period"):
        text["attn_layer_period"], text["attn_layer_offset"] = _SMALL_LAYERS, _SMALL_LAYERS - 1
    linear = text.get("linear_attn_config")
    if isinstance(linear, dict):
        lists = [key for key in ("kda_layers", "full_attn_layers") if key in linear]
        first = min(index for key in lists for index in linear[key])
        for key in lists:
            linear[key] = [index for index in linear[key] if index < first + _SMALL_LAYERS]


def _fewer_mamba_heads(text: dict[str, Any]) -> None:
    """As many heads as the small hidden size has room for, in one group."""
    if "mamba_d_ssm" in text:
        return
    for heads, width in (("mamba_n_heads", "mamba_d_head"), ("mamba_num_heads", "mamba_head_dim")):
        if isinstance(text.get(heads), int) and isinstance(text.get(width), int):
            text[heads] = max(1, text.get("mamba_expand", 2) * text["hidden_size"] // text[width])
            for groups in ("mamba_n_groups", "n_groups"):
                if groups in text:
                    text[groups] = 1


def _classes(transformers: Any, raw: dict[str, Any], context: Context) -> tuple[Any, Any]:
    known = transformers.CONFIG_MAPPING
    kind = raw.get("model_type", "")
    if kind not in known:
        raise NoClassError(
            f"transformers {transformers.__version__} has no class for {context.spec.name} "
            f"(model_type {kind!r}), so its cache cannot be looked at"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # old names of keys in published configs
        text = known[kind].from_dict(copy.deepcopy(raw)).get_text_config(decoder=True)
    mapping = transformers.AutoModelForCausalLM._model_mapping
    if type(text) not in mapping:
        raise NoClassError(
            f"transformers {transformers.__version__} has no language model for "
            f"{context.spec.name} (model_type {kind!r})"
        )
    return text, mapping[type(text)]


def _parameters(transformers: Any, raw: dict[str, Any], context: Context) -> int:
    config, model_class = _classes(transformers, raw, context)
    with torch.device("meta"):
        return sum(p.numel() for p in model_class(config).parameters())


def empty_cache(model: Model) -> Any:
    """A dynamic cache for the model."""
    transformers = extras.load("transformers", "the cache of a real model")
    return transformers.DynamicCache(config=model.module.config)


def forward(model: Model, ids: Tensor, cache: Any, *, last: bool = False) -> Tensor:
    """Logits [T, vocab] (of the last token with ``last``), the cache updated in place."""
    keep: dict[str, Any] = {"logits_to_keep": 1} if last else {}
    name = "cache" if _takes(model.module, "cache") else "past_key_values"
    with torch.no_grad():
        out = model.module(input_ids=ids, use_cache=True, **{name: cache}, **keep)
    return out.logits[0]


def _takes(module: Any, name: str) -> bool:
    return name in inspect.signature(module.forward).parameters


def prefill(model: Model, tokens: int) -> Any:
    """A cache after one prefill of random tokens."""
    cache = empty_cache(model)
    forward(model, model.tokens(tokens), cache, last=True)
    return cache


def cache_bytes(cache: Any) -> CacheBytes:
    """Bytes of every tensor of the cache, by the attribute that holds it."""
    found = {"kv": 0, "state": 0, "conv": 0, "other": 0}
    for layer in (*cache.layers, *getattr(cache, "linear_cache", ())):
        for name, tensor in _tensors(layer):
            part = "other"
            if name in ("keys", "values"):
                part = "kv"
            elif "conv" in name:
                part = "conv"
            elif "recurrent" in name or "ssm" in name:
                part = "state"
            found[part] += tensor.numel() * tensor.element_size()
    return CacheBytes(**found)


def _tensors(layer: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(layer, Tensor):
        yield "recurrent", layer
        return
    seen: set[int] = set()
    for name, value in vars(layer).items():
        if name.startswith("_"):
            continue
        for part in value.values() if isinstance(value, dict) else [value]:
            if isinstance(part, Tensor) and id(part) not in seen:
                seen.add(id(part))
                yield name, part


@contextmanager
def replaced(home: Any, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Give a module these functions inside the block."""
    before = {name: getattr(home, name) for name in functions}
    for name, function in functions.items():
        setattr(home, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(home, name, function)


@contextmanager
def own_functions(module: Any) -> Iterator[None]:
    """Run ``module`` with the torch functions written beside its class.

    Where fla or causal-conv1d is installed, transformers wraps these functions and calls that
    package instead, whose products are not fp32 and whose first call tunes itself for a minute.
    """
    home = sys.modules[type(module).__module__]
    wrapped = {name: f for name, f in vars(home).items() if inspect.isfunction(f)}
    plain = {name: inspect.unwrap(f) for name, f in wrapped.items() if hasattr(f, "__wrapped__")}
    with replaced(home, {n: f for n, f in plain.items() if f.__module__ == home.__name__}):
        yield


@contextmanager
def exact_products() -> Iterator[None]:
    """fp32 products and convolutions without tf32."""
    before = _allow_tf32(False, False)
    try:
        yield
    finally:
        _allow_tf32(*before)


def _allow_tf32(convolutions: bool, products: bool) -> tuple[bool, bool]:
    """Set both and return what they were."""
    with warnings.catch_warnings():
        # torch 2.9 on says that these switches have newer names; older releases have no others
        warnings.simplefilter("ignore", UserWarning)
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        before = cudnn.allow_tf32, matmul.allow_tf32
        cudnn.allow_tf32, matmul.allow_tf32 = convolutions, products
    return before
