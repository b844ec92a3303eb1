"""fp64 attention over pages gathered one token at a time, for GQA and for MLA's latent cache."""

from __future__ import annotations

import torch
from torch import Tensor


def gather_pages(cache: Tensor, table: Tensor, tokens: int) -> Tensor:
    """The first ``tokens`` rows a request's block table points at: [tokens, heads, width].

    cache: [blocks, page_tokens, heads, width]; table: [blocks of the request].
    """
    page_tokens = cache.shape[1]
    blocks = table.tolist()
    rows = [cache[blocks[t // page_tokens], t % page_tokens] for t in range(tokens)]
    return torch.stack(rows) if rows else cache[0, :0]


def gqa_decode_reference(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_tokens: Tensor,
    *,
    scale: float,
) -> Tensor:
    """One query token per request against its context; [B, HQ, V] fp64, zero without context.

    q: [B, HQ, D]; caches: [blocks, page_tokens, HKV, D or V]; block_table: [B, max blocks];
    context_tokens: [B].
    """
    out = torch.zeros(*q.shape[:2], value_cache.shape[-1], dtype=torch.float64, device=q.device)
    ratio = q.shape[1] // key_cache.shape[2]
    for b, tokens in enumerate(context_tokens.tolist()):
        if tokens <= 0:
            continue
        keys = gather_pages(key_cache, block_table[b], tokens).double()
        values = gather_pages(value_cache, block_table[b], tokens).double()
        keys, values = (x.repeat_interleave(ratio, dim=1) for x in (keys, values))
        scores = torch.einsum("hd,thd->ht", q[b].double(), keys) * scale
        out[b] = torch.einsum("ht,thv->hv", scores.softmax(-1), values)
    return out


def mla_decode_reference(
    q: Tensor,
    latent_cache: Tensor,
    block_table: Tensor,
    context_tokens: Tensor,
    *,
    latent_width: int,
    scale: float,
) -> Tensor:
    """MLA with absorbed projections: values are the first ``latent_width`` channels of the keys.

    q: [B, HQ, latent + rope]; latent_cache: [blocks, page_tokens, latent + rope].
    Returns [B, HQ, latent_width] fp64.
    """
    keys = latent_cache.unsqueeze(2)
    return gqa_decode_reference(
        q, keys, keys[..., :latent_width], block_table, context_tokens, scale=scale
    )
