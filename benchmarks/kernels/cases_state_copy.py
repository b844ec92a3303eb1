"""Copy-on-write of whole requests of Qwen3.5-0.8B: 18 layers of 1 MiB state + 36 KiB window."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.kernels.case import Case, Prepared
from hybridplan.kernels.state_copy.recurrent import StateCopier

LAYERS = 18


def copy(device: torch.device, requests: int) -> Prepared:
    """Copy the slots of some requests to others of the same pools, pairs rotated."""
    gen = torch.Generator(device).manual_seed(requests)
    sets = max(1, 16 // requests)
    slots = 2 * sets * requests
    states = [
        torch.randn((slots, 16, 128, 128), generator=gen, device=device) for _ in range(LAYERS)
    ]
    windows = [
        torch.randn((slots, 3, 6144), generator=gen, device=device, dtype=torch.bfloat16)
        for _ in range(LAYERS)
    ]
    pools = states + windows
    copier = StateCopier(pools)
    order = torch.randperm(slots, generator=gen, device=device).int().view(sets, 2, requests)
    pairs = [(order[i, 0].clone(), order[i, 1].clone()) for i in range(sets)]
    calls = tuple(partial(copier.copy, *pair) for pair in pairs)

    def check() -> dict[str, tuple[float, float]]:
        source, target = (x.long() for x in pairs[0])
        others = torch.ones(slots, dtype=torch.bool, device=device)
        others[target] = False
        before = [p[others].sum(dtype=torch.float64) for p in pools]
        for p in pools:
            p[target] = float("nan")
        calls[0]()
        wrong = sum(not torch.equal(p[source], p[target]) for p in pools)
        moved = sum(
            not torch.equal(p[others].sum(dtype=torch.float64), b)
            for p, b in zip(pools, before, strict=True)
        )
        return {"pools that differ": (wrong, 0), "pools changed elsewhere": (moved, 0)}

    return Prepared(calls, check, 2 * requests * copier.bytes_per_request)


CASES = [
    Case("state_copy", "1 request", partial(copy, requests=1), figure="us", target=15.0),
    Case("state_copy", "8 requests", partial(copy, requests=8)),
    Case(
        "state_copy",
        "64 requests",
        partial(copy, requests=64),
        figure="terabytes_per_s",
        target=3.9,
    ),
]
