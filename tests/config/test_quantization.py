"""How checkpoints state the storage of weights and KV, in every place and form we know."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hybridplan.config import catalogue
from hybridplan.config.find import load
from hybridplan.config.read import read_config
from hybridplan.config.spec import Quantization
from hybridplan.errors import ConfigError

Changed = Callable[..., dict[str, Any]]


def scheme(data: dict[str, Any], beside: dict[str, Any] | None = None) -> Quantization:
    found = read_config(data, file="config.json", name="x", hf_quant=beside).quantization
    assert found is not None
    return found


# name: method, bits, bits of scales per weight, expert bits, KV dtype
SHIPPED: dict[str, tuple[str, int, float, int | None, str | None]] = {
    "deepseek-v3": ("fp8", 8, 32 / 16384, None, None),
    "deepseek-v4-flash": ("fp8", 8, 32 / 16384, 4, None),
    "deepseek-v4.1-flash": ("fp8", 8, 32 / 1024, 4, None),
    "gpt-oss-20b": ("mxfp4", 4, 0.25, None, None),
    "kimi-k3": ("compressed-tensors mxfp4-pack-quantized", 4, 0.25, None, None),
    "qwen3.6-27b-nvfp4": ("modelopt MIXED_PRECISION", 16, 0, None, "fp8"),
    "nemotron-3-nano-30b-a3b-nvfp4": ("modelopt NVFP4", 4, 0.5, None, "fp8"),
    "nemotron-3-super-120b-a12b-nvfp4": ("modelopt NVFP4", 4, 0.5, None, "fp8"),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped(name: str) -> None:
    found = load(name).quantization
    assert found is not None
    assert SHIPPED[name] == (
        found.method,
        found.weight_bits,
        found.scale_bits_per_weight,
        found.expert_bits,
        found.kv_dtype,
    )


@pytest.mark.parametrize("path", sorted((catalogue.folder() / "hf_quant").glob("*.json")), ids=str)
def test_companions(path: Any, changed: Changed) -> None:
    beside = json.loads(path.read_text(encoding="utf-8"))
    found = scheme(changed("llama-3.1-8b"), beside)
    assert found.kv_dtype == "fp8"
    assert found.stated_in == "hf_quant_config.json.quantization"
    assert len(found.excluded) == len(beside["quantization"].get("exclude_modules", []))


FORMS: dict[str, tuple[dict[str, Any], int, float]] = {
    "fp8 per tensor": ({"quant_method": "fp8"}, 8, 0),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4, 20 / 128),
    "gptq symmetric": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
        4,
        16 / 128,
    ),
    "gptq per column": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, 0),
    "auto-round": (
        {"quant_method": "auto-round", "bits": 2, "group_size": 64, "sym": True},
        2,
        16 / 64,
    ),
    "bitsandbytes nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4, 0.5),
    "bitsandbytes double": (
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_use_double_quant": True,
        },
        4,
        (8 + 32 / 256) / 64,
    ),
    "bitsandbytes int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8, 0),
    "compressed-tensors channel": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}
            },
        },
        8,
        0,
    ),
    "compressed-tensors int4": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "int", "group_size": 128},
                }
            },
        },
        4,
        16 / 128,
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["quantization_config", "compression_config"])
def test_forms(form: str, place: str, changed: Changed) -> None:
    block, bits, scale = FORMS[form]
    found = scheme(changed("llama-3.1-8b", **{place: block}))
    assert (found.weight_bits, found.scale_bits_per_weight) == (bits, scale)
    assert found.stated_in == place


def test_mlx(changed: Changed) -> None:
    block = {
        "group_size": 64,
        "bits": 4,
        "model.embed_tokens": {"group_size": 64, "bits": 8},
        "model.layers.0.mlp.gate": False,
    }
    found = scheme(changed("llama-3.1-8b", quantization=block))
    assert (found.weight_bits, found.scale_bits_per_weight) == (4, 0.5)
    assert found.excluded == ("model.layers.0.mlp.gate",)
    same = scheme(changed("llama-3.1-8b", quantization=block, quantization_config=block))
    assert same == scheme(changed("llama-3.1-8b", quantization_config=block))


KV: dict[str, tuple[Any, str | None]] = {
    "float 8": ({"num_bits": 8, "type": "float"}, "fp8"),
    "int 8": ({"num_bits": 8, "type": "int"}, "int8"),
    "float 4": ({"num_bits": 4, "type": "float"}, "nvfp4"),
    "none": (None, None),
}


@pytest.mark.parametrize("form", KV)
def test_kv_scheme(form: str, changed: Changed) -> None:
    value, expected = KV[form]
    block = FORMS["compressed-tensors channel"][0] | {"kv_cache_scheme": value}
    assert scheme(changed("llama-3.1-8b", quantization_config=block)).kv_dtype == expected


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no method": ({"bits": 4}, "quant_method is missing"),
    "unknown method": ({"quant_method": "sparse-magic"}, "sparse-magic"),
    "unknown algorithm": ({"quant_method": "modelopt", "quant_algo": "W1"}, "W1"),
    "unknown KV": (
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP3"},
        "FP3",
    ),
    "bits as a string": ({"quant_method": "awq", "bits": "4", "group_size": 128}, "bits must be"),
    "names of another type": (
        {"quant_method": "fp8", "modules_to_not_convert": [1]},
        "must hold strings",
    ),
    "unknown expert dtype": ({"quant_method": "fp8", "expert_dtype": "fp3"}, "fp3"),
    "no groups": ({"quant_method": "compressed-tensors", "config_groups": {}}, "is empty"),
}


@pytest.mark.parametrize("form", BAD)
def test_bad_blocks(form: str, changed: Changed) -> None:
    block, wanted = BAD[form]
    with pytest.raises(ConfigError, match=wanted):
        scheme(changed("llama-3.1-8b", quantization_config=block))


def test_two_places_that_disagree(changed: Changed) -> None:
    fp8, awq = FORMS["fp8 per tensor"][0], FORMS["awq"][0]
    data = changed("llama-3.1-8b", quantization_config=fp8, compression_config=awq)
    with pytest.raises(ConfigError, match=r"quantization_config and compression_config"):
        scheme(data)


def test_kv_dtypes_that_disagree(changed: Changed) -> None:
    inline = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}}
    with pytest.raises(ConfigError, match=r"quantization_config says .* fp8 .* nvfp4"):
        scheme(changed("llama-3.1-8b", quantization_config=inline), beside)
