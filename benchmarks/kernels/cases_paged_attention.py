"""Paged decode attention: Qwen3.5-0.8B's GQA heads and MLA latents, pages shuffled."""

from __future__ import annotations

import math
from functools import partial

import torch

from benchmarks.kernels.case import READ_BYTES_PER_US, Case, Prepared, input_sets, relative_error
from hybridplan.kernels.paged_attention.recurrent import decode_gqa, decode_mla

CHECKED_REQUESTS = 2


def _pages(batch: int, context: int, page: int, gen: torch.Generator) -> torch.Tensor:
    blocks = context // page
    order = torch.randperm(batch * blocks, generator=gen, device=gen.device)
    return order.view(batch, blocks).int()


def gqa(device: torch.device, batch: int, context: int, page: int) -> Prepared:
    """8 query heads over 2 KV heads of width 256, bf16."""
    HQ, HKV, D = 8, 2, 256
    gen = torch.Generator(device).manual_seed(batch)
    least_bytes = batch * context * HKV * D * 4 + 2 * batch * HQ * D * 2
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
    out = torch.empty((batch, HQ, D), dtype=torch.bfloat16, device=device)
    sets = []
    for _ in range(input_sets(least_bytes, 4)):
        table = _pages(batch, context, page, gen)
        q, keys, values = (
            torch.randn(size, generator=gen, device=device, dtype=torch.bfloat16)
            for size in ((batch, HQ, D), *[(table.numel(), page, HKV, D)] * 2)
        )
        sets.append((q, keys, values, table, lengths))
    calls = tuple(partial(decode_gqa, *inputs, out=out) for inputs in sets)

    def check() -> dict[str, tuple[float, float]]:
        out.fill_(math.nan)
        calls[0]()
        worst = 0.0
        q, keys, values, table, _ = sets[0]
        for b in range(min(batch, CHECKED_REQUESTS)):
            k, v = (c[table[b].long()].flatten(0, 1).double() for c in (keys, values))
            k, v = (x.repeat_interleave(HQ // HKV, 1) for x in (k, v))
            weights = torch.einsum("hd,lhd->hl", q[b].double() * D**-0.5, k).softmax(-1)
            worst = max(worst, relative_error(out[b], torch.einsum("hl,lhd->hd", weights, v)))
        return {"output": (worst, 4e-3)}

    return Prepared(calls, check, least_bytes)


def mla(device: torch.device, batch: int, context: int, heads: int) -> Prepared:
    """Latent 512 + rope 64, pages of 64 tokens, bf16."""
    gen = torch.Generator(device).manual_seed(heads)
    least_bytes = batch * context * 576 * 2 + batch * heads * (576 + 512) * 2
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
    out = torch.empty((batch, heads, 512), dtype=torch.bfloat16, device=device)
    scale = 192**-0.5
    sets = []
    for _ in range(input_sets(least_bytes, 4)):
        table = _pages(batch, context, 64, gen)
        q, cache = (
            torch.randn(size, generator=gen, device=device, dtype=torch.bfloat16)
            for size in ((batch, heads, 576), (table.numel(), 64, 576))
        )
        sets.append((q, cache, table, lengths))
    options = {"latent_width": 512, "scale": scale, "out": out}
    calls = tuple(partial(decode_mla, *inputs, **options) for inputs in sets)

    def check() -> dict[str, tuple[float, float]]:
        out.fill_(math.nan)
        calls[0]()
        worst = 0.0
        q, cache, table, _ = sets[0]
        for b in range(min(batch, CHECKED_REQUESTS)):
            k = cache[table[b].long()].flatten(0, 1).double()
            weights = (q[b].double() @ k.T * scale).softmax(-1)
            worst = max(worst, relative_error(out[b], weights @ k[:, :512]))
        return {"output": (worst, 4e-3)}

    return Prepared(calls, check, least_bytes)


def _gqa(batch: int, context: int, page: int = 16, **bound: object) -> Case:
    make = partial(gqa, batch=batch, context=context, page=page)
    shape = f"8/2 heads D=256 {batch}x{context} page {page}"
    return Case("paged_attention gqa", shape, make, READ_BYTES_PER_US, **bound)  # type: ignore[arg-type]


CASES = [
    _gqa(64, 4096, figure="terabytes_per_s", target=3.9),
    _gqa(64, 4096, 64),
    _gqa(256, 1024),
    _gqa(8, 16384),
    _gqa(1, 65536),
    *(
        Case(
            "paged_attention mla",
            f"{heads} heads 512+64 64x4096",
            partial(mla, batch=64, context=4096, heads=heads),
            READ_BYTES_PER_US,
        )
        for heads in (16, 32, 128)
    ),
]
