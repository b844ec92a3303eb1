"""A parsed config -> ModelSpec: where the text config sits, which family it is, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybridplan.config.families import (
    FAMILIES,
    ORIGINAL_MAMBA,
    ORIGINAL_ZAMBA2,
    Family,
    supported,
)
from hybridplan.config.fields import Fields
from hybridplan.config.jsonfile import read_object
from hybridplan.config.quantization import read_quantization
from hybridplan.config.spec import ModelSpec

TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
VISION_SECTIONS = ("vision_config", "visual", "vision_tower", "audio_config", "vit_config")
GENERATIVE = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
SHARED_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
HF_QUANT = "hf_quant_config.json"


def read_file(path: Path, *, name: str | None = None, companion: Path | None = None) -> ModelSpec:
    """The spec of a config.json; ``companion`` is the hf_quant_config.json that belongs to it.

    Without ``companion`` one lying beside the file is used. Raises ConfigError.
    """
    data = read_object(path)
    beside = path.parent / HF_QUANT if companion is None else companion
    quant = read_object(beside) if beside.is_file() else None
    if name is None:
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return read_config(data, file=str(path), name=name, hf_quant=quant)


def read_config(
    data: Mapping[str, Any],
    *,
    file: str,
    name: str,
    hf_quant: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """The spec of a config already parsed; ``file`` is how errors name it."""
    root = Fields(data, file=file)
    text = _text_fields(root)
    model_type, architecture, family = _family(text, root)
    spec = family.reader()(text, root)
    quantization = read_quantization(root, text, hf_quant)
    return replace(
        spec,
        name=spec.name or name,
        model_type=model_type,
        architecture=architecture,
        file=file,
        vision=any(root.has(key) for key in VISION_SECTIONS),
        quantization=quantization,
        sources=dict(root.sources),
        notes=(*spec.notes, *root.notes),
    )


def _text_fields(root: Fields) -> Fields:
    """The language model's own object; the file itself where nothing is nested."""
    found = [key for key in TEXT_SECTIONS if root.has(key)]
    if len(found) > 1:
        raise root.fail(f"both {found[0]} and {found[1]} are given; which holds the text model?")
    if not found and root.has("thinker_config"):
        thinker = root.section("thinker_config")
        return thinker.section("text_config") if thinker.has("text_config") else thinker
    if not found:
        return root
    text = root.section(found[0])
    for key in SHARED_SIZES:
        if root.has(key) and text.has(key):
            root.agree("the same size", key, root.data[key], text.at(key), text.data[key])
    return text


def _model_type(text: Fields, root: Fields) -> str:
    for home in (text, root):
        value = home.data.get("model_type")
        if value is None:
            continue
        if not isinstance(value, str):
            raise root.fail(f"{home.at('model_type')} must be a string")
        return value
    return ""


def _architecture(text: Fields, root: Fields) -> str:
    for home in (root, text):
        value = home.data.get("architectures")
        if value is None or value == []:
            continue
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise root.fail(f"{home.at('architectures')} must be a list of names")
        return str(value[0])
    return ""


def _family(text: Fields, root: Fields) -> tuple[str, str, Family]:
    model_type = _model_type(text, root)
    architecture = _architecture(text, root)
    if not model_type and not architecture:
        if root.has("d_model") and root.has("n_layer") and root.has("ssm_cfg"):
            return "mamba_ssm", "MambaLMHeadModel", ORIGINAL_MAMBA
        if root.has("layer_mapping") and root.has("num_mem_heads"):
            return "zamba2_original", "Zamba2", ORIGINAL_ZAMBA2
        raise root.fail(
            "neither model_type nor architectures is given, so nothing says which model this is; "
            f"supported families are {supported()}"
        )
    if architecture and not architecture.endswith(GENERATIVE):
        raise root.fail(
            f"architectures says {architecture[:60]}, which does not generate text; hybridplan "
            "reads language models (…ForCausalLM, …ForConditionalGeneration)"
        )
    if not model_type:
        model_type = _type_of(architecture, root)
    family = FAMILIES.get(model_type)
    if family is None:
        key = text.at("model_type") if text.has("model_type") else "model_type"
        raise root.fail(
            f'{key} is "{model_type[:60]}", which is not known; supported families are '
            f"{supported()}"
        )
    nested = text is not root
    if architecture and family.architectures and not nested:
        _check_architecture(architecture, model_type, family, root)
    return model_type, architecture, family


def _type_of(architecture: str, root: Fields) -> str:
    for name, family in FAMILIES.items():
        if architecture in family.architectures:
            return name
    raise root.fail(
        f'model_type is missing and architectures says "{architecture[:60]}", which is not known; '
        f"supported families are {supported()}"
    )


def _check_architecture(architecture: str, model_type: str, family: Family, root: Fields) -> None:
    if architecture in family.architectures:
        return
    raise root.fail(
        f'architectures says "{architecture[:60]}", which is not known to go with model_type '
        f'"{model_type}" ({", ".join(family.architectures[:4])}); supported families are '
        f"{supported()}"
    )
