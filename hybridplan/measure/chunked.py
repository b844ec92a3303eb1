"""The gated delta rule by chunks of any size in plain torch, to see what a chunk's size costs.

All chunks' own parts are made at once by batched products; then a serial loop carries the state.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    """One sequence from a zero state: q, k [H, T, K] (k of unit length), v [H, T, V], g, beta
    [H, T]; T a multiple of ``chunk_tokens``. Returns outputs [H, T, V] and the state [H, K, V].
    """
    H, T, K = q.shape
    C, n = chunk_tokens, T // chunk_tokens
    q, k, v = (x.reshape(H, n, C, -1) for x in (q, k, v))
    reach = g.reshape(H, n, C).cumsum(-1)
    beta = beta.reshape(H, n, C, 1)
    decay = (reach[..., :, None] - reach[..., None, :]).tril().exp().tril()
    inner = (beta * (k @ k.mT) * decay).tril(-1)
    inverse = inverse_of_unit_lower(inner)
    u = inverse @ (beta * v)
    w = inverse @ (beta * reach.exp()[..., None] * k)
    inside = (q @ k.mT) * decay
    q_in = q * reach.exp()[..., None]
    k_out = (k * (reach[..., -1:] - reach).exp()[..., None]).mT
    last = reach[..., -1].exp()
    state = q.new_zeros((H, K, v.shape[-1]))
    out = torch.empty_like(v)
    for c in range(n):
        fresh = torch.baddbmm(u[:, c], w[:, c], state, alpha=-1)
        out[:, c] = torch.baddbmm(inside[:, c] @ fresh, q_in[:, c], state)
        state = torch.baddbmm(state * last[:, c, None, None], k_out[:, c], fresh)
    return out.reshape(H, T, -1), state


def inverse_of_unit_lower(strict: Tensor) -> Tensor:
    """(I + L)^-1 of strictly lower L [..., C, C], by doubling: its power C is zero."""
    C = strict.shape[-1]
    eye = torch.eye(C, dtype=strict.dtype, device=strict.device)
    power = -strict
    inverse = eye + power
    for _ in range(max(0, math.ceil(math.log2(C)) - 1)):
        power = power @ power
        inverse = inverse + inverse @ power
    return inverse


def flop(tokens: int, heads: int, K: int, V: int, chunk_tokens: int) -> float:
    """Operations of :func:`chunked`."""
    C = chunk_tokens
    doublings = max(0, math.ceil(math.log2(C)) - 1)
    inside = 2 * C * C * (3 * K + V) + 4 * C**3 * doublings
    serial = 6 * C * K * V + 2 * C * C * V
    return tokens / C * heads * (inside + serial)


def serial_steps(tokens: int, chunk_tokens: int) -> int:
    """Chunks that wait for one another."""
    return tokens // chunk_tokens
