"""``model_type: "hybridplan"``: an architecture described by hand, for models nobody has released.

The form is documented in docs/configs.md. Its mixers and MLPs have exactly the fields of the types
in hybridplan.config.spec; unknown fields, missing ones and values of another type are errors.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from hybridplan.config import spec as types_of
from hybridplan.config.fields import MOST_LAYERS, MOST_SIZE, Fields
from hybridplan.config.spec import MLP, Layer, Mixer, ModelSpec, Source

_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)
_MAY_BE_ZERO = (
    "rope_dim",
    "nope_dim",
    "conv_channels",
    "conv_kernel",
    "compress_ratio",
    "shared_intermediate",
    "decay_lora",
    "gate_lora",
    "a_lora",
    "v_lora",
    "kv_source_layer",
)
_Count = Annotated[int, Field(ge=1, le=MOST_SIZE)]
_Size = Annotated[int, Field(ge=0, le=MOST_SIZE)]
_models: dict[type, type[BaseModel]] = {}


def _model_of(kind: type) -> type[BaseModel]:
    """A strict pydantic model with the fields of a dataclass of hybridplan.config.spec."""
    if kind not in _models:
        hints = get_type_hints(kind, vars(types_of))
        wanted: dict[str, Any] = {}
        for field in fields(kind):
            default = ... if field.default is MISSING else field.default
            if field.name == "kind":
                default = ...
            wanted[field.name] = (_strict_type(field.name, hints[field.name]), default)
        _models[kind] = create_model(kind.__name__, __config__=_STRICT, **wanted)
    return _models[kind]


def _strict_type(name: str, hint: Any) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return _model_of(hint)
    if hint is int:
        return _Size if name in _MAY_BE_ZERO else _Count
    if get_origin(hint) in (Union, types.UnionType):
        members = tuple(_strict_type(name, member) for member in get_args(hint))
        return Union[members]  # noqa: UP007 (built from a tuple)
    return hint


def _build(value: BaseModel, kind: type) -> Any:
    """The dataclass instance that a validated model stands for."""
    made = {}
    for field in fields(kind):
        item = getattr(value, field.name)
        if isinstance(item, BaseModel):
            inner = next(kind for kind, made in _models.items() if made is type(item))
            item = _build(item, inner)
        made[field.name] = item
    return kind(**made)


def _kinds(union: Any) -> list[type]:
    found: list[type] = []
    for member in get_args(union):
        found += _kinds(member) if get_args(member) else [member]
    return found


_MIXERS = _kinds(Mixer)
_MLPS = _kinds(MLP)


class _Slot(BaseModel):
    """One entry of ``layers``: named mixers (two run in parallel), a named MLP, a repeat count."""

    model_config = _STRICT
    mixers: list[str] = Field(default_factory=list, max_length=4)
    mlp: str | None = None
    norms: _Size = 2
    repeat: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 1


class _Form(BaseModel):
    model_config = _STRICT
    model_type: Literal["hybridplan"]
    name: str = ""
    note: str = ""
    dtype: Literal["bfloat16", "float16", "float32"]
    state_dtype: Literal["bfloat16", "float16", "float32"] | None = None
    max_position_embeddings: Annotated[int, Field(ge=1, le=1 << 32)]
    hidden_size: _Size = 0
    vocab_size: _Size = 0
    tie_word_embeddings: bool = False
    prefix_tokens: _Size = 0
    mixers: dict[str, dict[str, Any]] = Field(min_length=1, max_length=64)
    mlps: dict[str, dict[str, Any]] = Field(default_factory=dict, max_length=64)
    layers: list[_Slot] = Field(min_length=1, max_length=MOST_LAYERS)
    repeat: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 1


def read(f: Fields, root: Fields) -> ModelSpec:
    """The spec of a hand-written description. Raises ConfigError naming the field at fault."""
    form = _validated(_Form, f.data, f, "")
    mixers = {n: _one(m, _MIXERS, f, f"mixers.{n}") for n, m in form.mixers.items()}
    mlps = {n: _one(m, _MLPS, f, f"mlps.{n}") for n, m in form.mlps.items()}
    layers = _layers(form, mixers, mlps, f)
    _record(form, mixers, f)
    if form.note:
        f.notes.append(form.note)
    if not form.hidden_size:
        f.notes.append("no hidden_size is given, so weights are not counted")
    return ModelSpec(
        name=form.name,
        model_type="",
        architecture="",
        hidden_size=form.hidden_size,
        vocab_size=form.vocab_size,
        tied_embeddings=form.tie_word_embeddings,
        max_tokens=form.max_position_embeddings,
        dtype=form.dtype,
        layers=tuple(layers),
        prefix_tokens=form.prefix_tokens,
        state_dtype=form.state_dtype,
        extra_params={"final_norm": form.hidden_size} if form.hidden_size else {},
    )


def _record(form: _Form, mixers: Mapping[str, Mixer], f: Fields) -> None:
    """Name the key behind every field; two mixers of one kind share an entry, the first wins."""
    for name, mixer in mixers.items():
        for field in fields(mixer):
            path = f"mixers.{name}.{field.name}"
            stated = field.name in form.mixers[name]
            source = Source(path) if stated else Source(f"{path} absent: its default", "derived")
            f.sources.setdefault(f"{mixer.kind}.{field.name}", source)
    f.sources["model.pattern"] = f.sources["model.layers"] = Source("layers")
    f.sources["model.dtype"] = Source("dtype")
    f.sources["model.max_tokens"] = Source("max_position_embeddings")
    if form.state_dtype is not None:
        f.sources["model.state_dtype"] = Source("state_dtype")


def _validated(model: type[_Form], data: Mapping[str, Any], f: Fields, where: str) -> _Form:
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise f.fail(_first(error, where)) from error


def _first(error: ValidationError, where: str) -> str:
    """The first fault pydantic found, as one clause with the path of the field."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(str(step) for step in (where, *fault["loc"]) if step != "")
    return f"{path}: {fault['msg'][:200]}"


def _one(data: Mapping[str, Any], kinds: list[type], f: Fields, where: str) -> Any:
    """A mixer or an MLP by its ``kind``."""
    by_name = {
        str(field.default): kind for kind in kinds for field in fields(kind) if field.name == "kind"
    }
    name = data.get("kind")
    if not isinstance(name, str) or name not in by_name:
        raise f.fail(f"{where}.kind must be one of {', '.join(sorted(by_name))}")
    kind = by_name[name]
    try:
        value = _model_of(kind).model_validate(dict(data))
    except ValidationError as error:
        raise f.fail(_first(error, where)) from error
    built = _build(value, kind)
    heads, kv_heads = getattr(built, "heads", 0), getattr(built, "kv_heads", 1)
    if heads % kv_heads:
        raise f.fail(f"{where}: {heads} heads are not a multiple of {kv_heads} kv_heads")
    return built


def _layers(
    form: _Form, mixers: Mapping[str, Mixer], mlps: Mapping[str, MLP], f: Fields
) -> list[Layer]:
    count = form.repeat * sum(slot.repeat for slot in form.layers)
    if count > MOST_LAYERS:
        raise f.fail(f"layers and repeat make {count} layers; the most read is {MOST_LAYERS}")
    layers: list[Layer] = []
    for _ in range(form.repeat):
        for number, slot in enumerate(form.layers):
            for name, known, what in (
                *((mixer, mixers, "mixer") for mixer in slot.mixers),
                *(((slot.mlp, mlps, "MLP"),) if slot.mlp is not None else ()),
            ):
                if name not in known:
                    raise f.fail(f'layers.{number} names the {what} "{name[:40]}", not described')
            for _ in range(slot.repeat):
                chosen = tuple(mixers[name] for name in slot.mixers)
                mlp = None if slot.mlp is None else mlps[slot.mlp]
                layers.append(Layer(len(layers), chosen, mlp, norms=slot.norms))
    for layer in layers:
        for mixer in layer.mixers:
            source = getattr(mixer, "kv_source_layer", None)
            if source is not None and source >= layer.index:
                raise f.fail(
                    f"layer {layer.index} reads the KV of layer {source}, which does not precede it"
                )
    return layers
