"""Time the builds of our delta-rule prefill side by side, each checked against the default first.

    python -m benchmarks.kernels.builds --out results.json [--heads kimi] [--shapes 1x16k 8x4k]

A row with exports also has what the exported states cost beside the same build without any, and
the time their bytes take at copy speed. Builds must give the default's bits.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.kernels.case import COPY_BYTES_PER_US, graph_us, relative_error
from benchmarks.kernels.registry import SEQUENCES, Inputs, make
from hybridplan.kernels.common.variants import Variant
from hybridplan.kernels.gated_delta.chunk import chunk_prefill as gated_prefill
from hybridplan.kernels.kimi_delta.chunk import chunk_prefill as kimi_prefill

STATES = 16
BUILDS = (Variant(), Variant(export="loop"))
"""The default first."""

Row = dict[str, Any]


def prefill(x: Inputs, out: torch.Tensor, variant: Variant, exports: list[Any]) -> None:
    """One call, states in place."""
    call = kimi_prefill if x.gate_input.dim() == 3 else gated_prefill
    call(
        x.q, x.k, x.v, x.beta_logit, x.pool, x.slots, x.starts, gate_input=x.gate_input,
        a_log=x.a_log, dt_bias=x.dt_bias, beta_is_logit=True, out=out, exports=exports,
        trust_ids=True, variant=variant,
    )  # fmt: skip


def rows(heads: str, shape: str, device: torch.device) -> list[Row]:
    """A row a build, without and with exports along the first sequence."""
    lengths = SEQUENCES[shape]
    x = make(heads, lengths, device, 0)
    first = x.pool
    x.pool = torch.zeros((len(first) + STATES, *first.shape[1:]), device=device)
    every = lengths[0] // (STATES + 1) // 64 * 64
    exports = [(0, every * (i + 1), len(first) + i) for i in range(STATES)] if every else []
    least_bytes = len(exports) * first[0].numel() * 4
    found: list[Row] = []
    want: tuple[torch.Tensor, torch.Tensor] | None = None
    for variant in BUILDS:
        x.pool[: len(first)] = first
        out = torch.full_like(x.v, float("nan"))
        prefill(x, out, variant, exports)
        got = (out.clone(), x.pool.clone())
        want = want or got
        errors = [relative_error(a, b.double()) for a, b in zip(got, want, strict=True)]
        row: Row = {
            "heads": heads,
            "shape": shape,
            "export": variant.export,
            "differs": errors,
        }
        if max(errors) == 0.0:
            row["us"], row["spread"] = graph_us((partial(prefill, x, out, variant, []),))
            if exports:
                with_states, _ = graph_us((partial(prefill, x, out, variant, exports),))
                floor_us = least_bytes / COPY_BYTES_PER_US
                row |= {"exports": len(exports), "export_us": with_states - row["us"]}
                row |= {"export_floor_us": floor_us}
        found.append(row)
    return found


def main() -> None:
    """Print rows as they come, and write all with the card's name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--heads", nargs="*", default=["0.8B", "next", "27B", "kimi"])
    parser.add_argument("--shapes", nargs="*", default=["1x4k", "1x16k", "8x4k"])
    args = parser.parse_args()
    device = torch.device("cuda")
    found: list[Row] = []
    for heads in args.heads:
        for shape in args.shapes:
            for row in rows(heads, shape, device):
                found.append(row)
                sys.stdout.write(json.dumps(row) + "\n")
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    card = torch.cuda.get_device_name(device)
    args.out.write_text(json.dumps({"card": card, **versions, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
