"""Accelerators by name: memory, bandwidth and arithmetic rates as their vendors publish them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hybridplan.errors import InputError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator. ``arch`` is "sm90" or "gfx942"; rates are dense, without sparsity.

    ``memory_bytes`` is the driver's total, of which an engine may use its utilisation share.
    ``flops_per_s`` maps bf16, fp8, fp4, fp32 to operations per second; a missing dtype is one the
    card has no tensor unit for.
    """

    name: str
    title: str
    arch: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    link_bytes_per_s: float
    source: str


@cache
def gpus() -> dict[str, Gpu]:
    """Every known accelerator under its name and its aliases."""
    document = json.loads(Path(__file__).with_name("gpus.json").read_text(encoding="utf-8"))
    known: dict[str, Gpu] = {}
    for row in document["gpus"]:
        gpu = Gpu(
            name=row["name"],
            title=row["title"],
            arch=row["arch"],
            memory_bytes=row["memory_mib"] * 1024**2,
            bandwidth_bytes_per_s=row["bandwidth_gb_s"] * 1e9,
            flops_per_s={name: rate * 1e12 for name, rate in row["tflops"].items()},
            link_bytes_per_s=row["link_gb_s"] * 1e9,
            source=row["source"],
        )
        for name in (row["name"], *row["aliases"]):
            known[name] = gpu
    return known


def find_gpu(name: str) -> Gpu:
    """The accelerator of that name in any case; InputError with the closest names otherwise."""
    known = gpus()
    key = name.lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    if key in known:
        return known[key]
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.4)
    hint = f"closest are {', '.join(near)}" if near else f"known are {', '.join(sorted(known))}"
    raise InputError(
        f"GPU {name!r} is not known; {hint}; or give --kv-memory with a size such as 42GiB"
    )
