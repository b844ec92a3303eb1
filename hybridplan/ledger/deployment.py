"""What the user decides about serving: engine, parallelism, dtypes, drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybridplan.errors import InputError

Engine: TypeAlias = Literal["vllm", "sglang", "transformers", "llama.cpp", "mlx"]
ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "transformers", "llama.cpp", "mlx")
VLLM_VERSIONS = ("0.32", "0.33")
_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Deployment:
    """Choices that change bytes. ``None`` dtypes are what the engine would pick for the model.

    ``kv_dtype`` is an engine name: bfloat16, float16, fp8 (any plain dtype), or a packed form:
    int8_per_token_head, fp8_per_token_head, int4_per_token_head, nvfp4, fp8_ds_mla, nvfp4_ds_mla.
    ``drafts`` is the number of speculative tokens n; a verify window has n + 1.
    """

    engine: Engine = "vllm"
    version: str = ""
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    kv_dtype: str | None = None
    state_dtype: str | None = None
    conv_dtype: str | None = None
    drafts: int = 0

    def __post_init__(self) -> None:
        for name, least in (("tp", 1), ("pp", 1), ("dcp", 1), ("drafts", 0)):
            value = getattr(self, name)
            if value < least:
                raise InputError(f"{name} is {value}; it must be {least} or more")
            if value > _MOST:
                raise InputError(f"{name} is {value:,}; the most that is accepted is {_MOST:,}")
        if self.engine not in ENGINES:
            raise InputError(f"engine {self.engine!r} is not known; known are {', '.join(ENGINES)}")


def parse_engine(text: str) -> tuple[Engine, str]:
    """Split "vllm@0.32" into engine and version ("" when none is given)."""
    name, _, version = text.partition("@")
    for engine in ENGINES:
        if engine == name.lower():
            return engine, version
    raise InputError(f"engine {name!r} is not known; known are {', '.join(ENGINES)}")
