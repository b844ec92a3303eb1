"""How a checkpoint says its weights and KV are stored.

Places: ``quantization_config`` or ``compression_config`` at the top or in the text config, MLX's
``quantization``, and the ``hf_quant_config.json`` beside a config.json. Methods: fp8,
compressed-tensors, modelopt, mxfp4, awq, gptq, bitsandbytes, auto-round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hybridplan.config.fields import Fields
from hybridplan.config.spec import Quantization

_PLACES = ("quantization_config", "compression_config", "quantization")
_FP32_BITS, _FP16_BITS, _FP8_BITS = 32, 16, 8
_FP4_GROUP = 32

# Bits of a weight and of its scales: modelopt quant_algo.
_ALGORITHMS: dict[str, tuple[int, float]] = {
    "FP8": (8, 0.0),
    "FP8_PER_CHANNEL_PER_TOKEN": (8, 0.0),
    "FP8_PB_WO": (8, _FP32_BITS / (128 * 128)),
    "FP8_PB_REAL": (8, _FP32_BITS / (128 * 128)),
    "NVFP4": (4, _FP8_BITS / 16),
    "W4A16_NVFP4": (4, _FP8_BITS / 16),
    "NVFP4_AWQ": (4, _FP8_BITS / 16),
    "W4A8_MXFP4_FP8": (4, _FP8_BITS / 32),
    "MXFP4": (4, _FP8_BITS / 32),
    "MXFP8": (8, _FP8_BITS / 32),
    "W4A16_AWQ": (4, _FP16_BITS / 128),
    "INT4_AWQ": (4, _FP16_BITS / 128),
    "W8A8_SQ_PER_CHANNEL": (8, 0.0),
    "INT8_SQ": (8, 0.0),
}
_KV = {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8"}


def read_quantization(
    root: Fields, text: Fields, hf_quant: Mapping[str, Any] | None
) -> Quantization | None:
    """The checkpoint's scheme, or None where it states none. Raises ConfigError for an unknown one.

    ``hf_quant`` is the parsed hf_quant_config.json; where config.json also states a KV dtype the
    two must agree.
    """
    inline = _inline(root, text)
    beside = None
    if hf_quant is not None:
        where = "hf_quant_config.json"
        fields = Fields(hf_quant, file=root.file, path=where).section("quantization")
        beside = _modelopt(fields)
    if inline is None or beside is None:
        return inline or beside
    if None not in (inline.kv_dtype, beside.kv_dtype) and inline.kv_dtype != beside.kv_dtype:
        raise root.fail(
            f"{inline.stated_in} says the KV cache is {inline.kv_dtype} and {beside.stated_in} "
            f"says {beside.kv_dtype}; correct one of them or remove it"
        )
    return inline


def _inline(root: Fields, text: Fields) -> Quantization | None:
    homes = (root,) if text is root else (root, text)
    found = [home.section(key) for home in homes for key in _PLACES if home.has(key)]
    if not found:
        return None
    for other in found[1:]:
        if other.data != found[0].data:
            raise root.fail(f"{found[0].path} and {other.path} state different quantisations")
    section = found[0]
    if not section.has("quant_method") and section.has("bits") and section.has("group_size"):
        return _mlx(section)
    method = section.text("quantization.method", "quant_method")
    reader = _METHODS.get(method)
    if reader is None:
        raise section.fail(
            f'{section.at("quant_method")} is "{method[:40]}", whose bytes are not known; known '
            f"are {', '.join(_METHODS)} (remove {section.path} to count the weights unquantised)"
        )
    scheme = reader(section)
    return _with_expert_dtype(scheme, (section, *homes))


def _with_expert_dtype(scheme: Quantization, homes: tuple[Fields, ...]) -> Quantization:
    """``expert_dtype``: DeepSeek-V4 has it at the top of the file, V4.1 inside the quantisation."""
    named = {str(home.data["expert_dtype"]): home for home in homes if home.has("expert_dtype")}
    if len(named) > 1:
        raise homes[0].fail(f"expert_dtype is given as {' and as '.join(sorted(named))}")
    for dtype, home in named.items():
        if dtype == "fp4":
            return replace(
                scheme, expert_bits=4, expert_scale_bits_per_weight=_FP8_BITS / _FP4_GROUP
            )
        if dtype != "fp8":
            raise home.fail(f"{home.at('expert_dtype')} is {dtype[:40]!r}, not fp4 or fp8")
    return scheme


def _excluded(section: Fields, *keys: str) -> tuple[str, ...]:
    names: list[str] = []
    for key in keys:
        if section.has(key):
            names += section.words(key)
    return tuple(names)


def _fp8(section: Fields) -> Quantization:
    """Blocks of ``weight_block_size`` share one fp32 scale."""
    scale = 0.0
    if section.has("weight_block_size"):
        sizes = section.wholes("weight_block_size", least=1)
        scale = _FP32_BITS / max(1, _product(sizes))
    return Quantization(
        method="fp8",
        weight_bits=8,
        scale_bits_per_weight=scale,
        excluded=_excluded(section, "modules_to_not_convert", "ignored_layers"),
        stated_in=section.path,
    )


def _product(sizes: list[int]) -> int:
    product = 1
    for size in sizes[:4]:
        product *= size
    return product


def _mxfp4(section: Fields) -> Quantization:
    return Quantization(
        method="mxfp4",
        weight_bits=4,
        scale_bits_per_weight=_FP8_BITS / 32,
        experts_only=True,
        excluded=_excluded(section, "modules_to_not_convert"),
        stated_in=section.path,
    )


def _compressed_tensors(section: Fields) -> Quantization:
    """One group for all Linear modules, or several that list the modules they apply to."""
    groups = section.section("config_groups")
    if not groups.data:
        raise section.fail(f"{groups.path} is empty")
    read = [_group(groups.section(name)) for name in groups.data]
    overrides: list[tuple[str, float]] = []
    if len(read) > 1:
        for bits, scale, targets in read:
            overrides += [(target, bits + scale) for target in targets]
    bits, scale, _ = read[0]
    return Quantization(
        method=f"compressed-tensors {section.data.get('format') or ''}".strip(),
        weight_bits=bits,
        scale_bits_per_weight=scale,
        kv_dtype=_kv_scheme(section),
        overrides=tuple(overrides),
        excluded=_excluded(section, "ignore"),
        stated_in=section.path,
    )


def _group(group: Fields) -> tuple[int, float, list[str]]:
    """Bits, scale bits per weight and targets of one compressed-tensors group."""
    weights = group.section("weights")
    bits = weights.whole("quantization.weight_bits", "num_bits", most=64)
    size = weights.maybe_whole("quantization.group_size", "group_size", least=-1)
    scale = 0.0
    if size is not None and size > 0:
        is_float4 = weights.data.get("type") == "float" and bits == 4
        scale = (_FP8_BITS if is_float4 else _FP16_BITS) / size
    elif weights.has("block_structure"):
        block = weights.data["block_structure"]
        if isinstance(block, list) and all(isinstance(n, int) and n > 0 for n in block):
            scale = _FP32_BITS / _product(block)
    return bits, scale, group.words("targets") if group.has("targets") else []


def _kv_scheme(section: Fields) -> str | None:
    if not section.has("kv_cache_scheme"):
        return None
    if isinstance(section.data["kv_cache_scheme"], str):
        return _kv_name(section, "kv_cache_scheme")
    scheme = section.section("kv_cache_scheme")
    bits = scheme.whole("quantization.kv_bits", "num_bits", most=64)
    kind = scheme.text("quantization.kv_type", "type")
    known = {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "nvfp4"}
    if (bits, kind) not in known:
        raise scheme.fail(f"{scheme.path} of {bits} bits ({kind[:20]}) is no known KV dtype")
    return known[bits, kind]


def _kv_name(section: Fields, key: str) -> str | None:
    if not section.has(key):
        return None
    name = section.text("quantization.kv_dtype", key)
    if name.upper() not in _KV:
        known = ", ".join(_KV)
        raise section.fail(f'{section.at(key)} is "{name[:40]}", not one of {known}')
    return _KV[name.upper()]


def _modelopt(section: Fields) -> Quantization:
    """One ``quant_algo``, or MIXED_PRECISION with an algorithm per module."""
    overrides: tuple[tuple[str, float], ...] = ()
    algorithm = section.text("quantization.algorithm", "quant_algo")
    if algorithm == "MIXED_PRECISION":
        layers = section.section("quantized_layers")
        overrides = tuple((name, sum(_algorithm(layers.section(name)))) for name in layers.data)
        bits, scale = 16, 0.0
    else:
        bits, scale = _algorithm(section)
    return Quantization(
        method=f"modelopt {algorithm}",
        weight_bits=bits,
        scale_bits_per_weight=scale,
        kv_dtype=_kv_scheme(section) or _kv_name(section, "kv_cache_quant_algo"),
        overrides=overrides,
        excluded=_excluded(section, "exclude_modules", "ignore"),
        stated_in=section.path,
    )


def _algorithm(section: Fields) -> tuple[int, float]:
    name = section.text("quantization.algorithm", "quant_algo")
    if name not in _ALGORITHMS:
        raise section.fail(
            f'{section.at("quant_algo")} is "{name[:40]}", whose bytes are not known; known are '
            f"{', '.join(_ALGORITHMS)} and MIXED_PRECISION"
        )
    return _ALGORITHMS[name]


def _grouped(method: str) -> Callable[[Fields], Quantization]:
    """awq, gptq and auto-round: ``bits``, an fp16 scale and a zero point per ``group_size``."""

    def read(section: Fields) -> Quantization:
        bits = section.whole("quantization.weight_bits", "bits", "w_bit", most=64)
        size = section.whole(
            "quantization.group_size", "group_size", "q_group_size", least=-1, most=1 << 20
        )
        symmetric = section.data.get("sym") is True
        scale = (_FP16_BITS + (0 if symmetric else bits)) / size if size > 0 else 0.0
        return Quantization(
            method=method,
            weight_bits=bits,
            scale_bits_per_weight=scale,
            excluded=_excluded(section, "modules_to_not_convert"),
            stated_in=section.path,
        )

    return read


def _bitsandbytes(section: Fields) -> Quantization:
    """4 bits with an fp32 maximum per 64 weights (8 bits of it with double quantisation), or 8."""
    four = section.flag("quantization.four", "load_in_4bit", False)
    double = section.flag("quantization.double", "bnb_4bit_use_double_quant", False)
    scale = (_FP8_BITS + _FP32_BITS / 256 if double else _FP32_BITS) / 64
    return Quantization(
        method="bitsandbytes",
        weight_bits=4 if four else 8,
        scale_bits_per_weight=scale if four else 0.0,
        excluded=_excluded(section, "llm_int8_skip_modules"),
        stated_in=section.path,
    )


def _mlx(section: Fields) -> Quantization:
    """MLX: an fp16 scale and bias per group, with overrides (false: not quantised) by module."""
    bits = section.whole("quantization.weight_bits", "bits", most=64)
    size = section.whole("quantization.group_size", "group_size", most=1 << 20)
    kept = [name for name, value in section.data.items() if value is False]
    own = [(name, value) for name, value in section.data.items() if isinstance(value, dict)]
    if any(not {"bits", "group_size"} <= value.keys() for _, value in own):
        raise section.fail(f"{section.path} overrides a module without bits and group_size")
    notes = f" with {len(own)} modules of other widths" if own else ""
    return Quantization(
        method=f"mlx {bits} bits{notes}",
        weight_bits=bits,
        scale_bits_per_weight=2 * _FP16_BITS / size,
        excluded=tuple(kept),
        stated_in=section.path,
    )


_METHODS: dict[str, Callable[[Fields], Quantization]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
    "awq": _grouped("awq"),
    "gptq": _grouped("gptq"),
    "auto-round": _grouped("auto-round"),
    "bitsandbytes": _bitsandbytes,
}
