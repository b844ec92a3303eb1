"""Storage types by the names engines use, and the bytes of one element."""

from __future__ import annotations

from functools import cache

from hybridplan.errors import InputError

_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}
_ALIASES = {
    "fp32": "float32",
    "float": "float32",
    "f32": "float32",
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


def canonical(name: str) -> str:
    """The full name of a plain dtype. Raises InputError for one that is not known."""
    key = name.lower().removeprefix("torch.")
    key = _ALIASES.get(key, key)
    if key not in _BYTES:
        known = ", ".join(sorted({*_BYTES, *_ALIASES}))
        raise InputError(f"dtype {name!r} is not known; known are {known}")
    return key


@cache
def element_bytes(name: str) -> int:
    """Bytes of one element of a plain dtype."""
    return _BYTES[canonical(name)]
