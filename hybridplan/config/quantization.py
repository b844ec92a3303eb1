"""How a checkpoint says its weights and KV are stored. Filled in by read_quantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridplan.config.fields import Fields
from hybridplan.config.spec import Quantization


def read_quantization(
    root: Fields, text: Fields, hf_quant: Mapping[str, Any] | None
) -> Quantization | None:
    return None
