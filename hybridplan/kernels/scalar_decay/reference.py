"""fp64 references of the scalar-decay recurrence: token by token, and chunk by chunk.

    S_t = exp(g_t) S_{t-1} + w_t v_t k_t^T        S: [V, K] per v-head
    o_t = scale S_t q_t + skip v_t

Mamba-2 calls them x = v, B = k, C = q, dt = w and D = skip; its groups are the q/k heads here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def recurrent_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    initial_state: Tensor,
    cu_seqlens: Sequence[int],
    *,
    weight: Tensor | None = None,
    skip: Tensor | None = None,
    scale: float = 1.0,
    export_at: Sequence[tuple[int, int]] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Token-by-token recurrence in fp64.

    q, k: [T, G, K]; v: [T, HV, V] with HV a multiple of G; g, weight: [T, HV]; skip: [HV];
    initial_state: [N, HV, V, K]. ``export_at`` lists (sequence, tokens consumed).
    Returns the output [T, HV, V], the final states [N, HV, V, K] and the exported states
    [len(export_at), HV, V, K], all fp64.
    """
    q, k, v, g, weight = _promote(q, k, v, g, weight)
    out = torch.zeros_like(v)
    final = initial_state.double().clone()
    exported = final.new_zeros((len(export_at), *final.shape[1:]))
    for n in range(len(cu_seqlens) - 1):
        for i, t in enumerate(range(cu_seqlens[n], cu_seqlens[n + 1])):
            write = (v[t] * weight[t, :, None])[:, :, None] * k[t][:, None, :]
            final[n] = final[n] * g[t].exp()[:, None, None] + write
            out[t] = scale * (final[n] * q[t][:, None, :]).sum(-1)
            for e, (sequence, position) in enumerate(export_at):
                if sequence == n and position == i + 1:
                    exported[e] = final[n]
    if skip is not None:
        out = out + skip.double()[None, :, None] * v
    return out, final, exported


def chunk_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    initial_state: Tensor,
    cu_seqlens: Sequence[int],
    *,
    weight: Tensor | None = None,
    skip: Tensor | None = None,
    scale: float = 1.0,
    chunk_tokens: int = 64,
) -> tuple[Tensor, Tensor]:
    """The same recurrence as products over chunks, in fp64; arguments as recurrent_reference."""
    q, k, v, g, weight = _promote(q, k, v, g, weight)
    out = torch.zeros_like(v)
    final = initial_state.double().clone()
    for n in range(len(cu_seqlens) - 1):
        for t0 in range(cu_seqlens[n], cu_seqlens[n + 1], chunk_tokens):
            rows = slice(t0, min(t0 + chunk_tokens, cu_seqlens[n + 1]))
            reach = g[rows].cumsum(0)
            pairs = (reach[:, None] - reach[None, :]).permute(2, 0, 1)
            inside = torch.einsum("ihk,jhk->hij", q[rows], k[rows]) * pairs.exp().tril()
            write = v[rows] * weight[rows, :, None]
            out[rows] = scale * torch.einsum("hij,jhv->ihv", inside, write)
            carried = torch.einsum("hvk,ihk->ihv", final[n], q[rows])
            out[rows] += scale * carried * reach.exp()[:, :, None]
            left = (reach[-1] - reach).exp()[:, :, None]
            final[n] = final[n] * reach[-1].exp()[:, None, None]
            final[n] += torch.einsum("jhv,jhk->hvk", write * left, k[rows])
    if skip is not None:
        out = out + skip.double()[None, :, None] * v
    return out, final


def _promote(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    ratio = v.shape[1] // q.shape[1]
    heads = [x.double().repeat_interleave(ratio, dim=1) for x in (q, k)]
    ones = torch.ones_like(g, dtype=torch.float64)
    return heads[0], heads[1], v.double(), g.double(), ones if weight is None else weight.double()
