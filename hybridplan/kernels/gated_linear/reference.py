"""fp64 reference of gated linear attention with one decay per key channel (GLA).

S_t = S_{t-1} diag(exp(g_t)) + v_t k_t^T      S: [V, K] per head
o_t = scale S_t q_t
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
    scale: float = 1.0,
    export_at: Sequence[tuple[int, int]] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Token-by-token recurrence in fp64.

    q, k, g: [T, H, K]; v: [T, H, V]; initial_state: [N, H, V, K]; ``export_at`` lists
    (sequence, tokens consumed). Returns output [T, H, V], final states [N, H, V, K] and exported
    states [len(export_at), H, V, K], all fp64.
    """
    q, k, v, g = (x.double() for x in (q, k, v, g))
    out = torch.zeros_like(v)
    final = initial_state.double().clone()
    exported = final.new_zeros((len(export_at), *final.shape[1:]))
    for n in range(len(cu_seqlens) - 1):
        for i, t in enumerate(range(cu_seqlens[n], cu_seqlens[n + 1])):
            final[n] = final[n] * g[t].exp()[:, None, :] + v[t][:, :, None] * k[t][:, None, :]
            out[t] = scale * (final[n] * q[t][:, None, :]).sum(-1)
            for e, (sequence, position) in enumerate(export_at):
                if sequence == n and position == i + 1:
                    exported[e] = final[n]
    return out, final, exported


def chunk_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    initial_state: Tensor,
    cu_seqlens: Sequence[int],
    *,
    scale: float = 1.0,
    chunk_tokens: int = 16,
) -> tuple[Tensor, Tensor]:
    """The same recurrence over chunks, in fp64; no exponent is positive."""
    q, k, v, g = (x.double() for x in (q, k, v, g))
    out = torch.zeros_like(v)
    final = initial_state.double().clone()
    for n in range(len(cu_seqlens) - 1):
        for t0 in range(cu_seqlens[n], cu_seqlens[n + 1], chunk_tokens):
            rows = slice(t0, min(t0 + chunk_tokens, cu_seqlens[n + 1]))
            reach = g[rows].cumsum(0)
            later = torch.ones(len(reach), len(reach), dtype=torch.bool, device=g.device).tril()
            gap = (reach[:, None] - reach[None, :]).masked_fill(~later[..., None, None], -torch.inf)
            inside = torch.einsum("ihk,jhk,ijhk->hij", q[rows], k[rows], gap.exp())
            out[rows] = scale * torch.einsum("hij,jhv->ihv", inside, v[rows])
            out[rows] += scale * torch.einsum("hvk,ihk->ihv", final[n], q[rows] * reach.exp())
            write = torch.einsum("jhv,jhk->hvk", v[rows], k[rows] * (reach[-1] - reach).exp())
            final[n] = final[n] * reach[-1].exp()[:, None, :] + write
    return out, final
