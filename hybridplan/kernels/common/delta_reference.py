"""The delta rule as the mathematics has it, in fp64 torch: token by token, and by chunks.

State S [V, K] of one value head; k of unit length; decay a = exp(log_decay), one number or one a
channel of K:  S <- S a;  S <- S + beta (v - S k) k^T;  o = S q scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def unit_length(x: torch.Tensor) -> torch.Tensor:
    """x / sqrt(|x|^2 + 1e-6) over the last dimension, the q/k l2-norm of the released models."""
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def _prepared(
    q: torch.Tensor, k: torch.Tensor, value_heads: int, scale: float | None, l2norm: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = q.double(), k.double()
    if l2norm:
        q, k = unit_length(q), unit_length(k)
    ratio = value_heads // q.shape[1]
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    return q.repeat_interleave(ratio, 1), k.repeat_interleave(ratio, 1)


def token_by_token(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay_log: torch.Tensor,
    beta: torch.Tensor,
    lengths: Sequence[int],
    initial_state: torch.Tensor | None,
    scale: float | None,
    l2norm: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 recurrence. decay_log [T, HV, 1 or K] -> o [T, HV, V], states [N, HV, V, K]."""
    heads, width = v.shape[1:]
    q, k = _prepared(q, k, heads, scale, l2norm)
    v, a, beta = v.double(), decay_log.double().exp(), beta.double()
    out = torch.zeros_like(v)
    states = v.new_zeros(len(lengths), heads, width, q.shape[-1])
    if initial_state is not None:
        states += initial_state.double()
    t = 0
    for n, length in enumerate(lengths):
        s = states[n]
        for _ in range(length):
            s = s * a[t, :, None, :]
            u = beta[t, :, None] * (v[t] - torch.einsum("hvk,hk->hv", s, k[t]))
            s = s + u[:, :, None] * k[t, :, None, :]
            out[t] = torch.einsum("hvk,hk->hv", s, q[t])
            t += 1
        states[n] = s
    return out, states


def by_chunks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay_log: torch.Tensor,
    beta: torch.Tensor,
    lengths: Sequence[int],
    initial_state: torch.Tensor | None,
    scale: float | None,
    l2norm: bool,
    chunk_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same over chunks: the updates u of a chunk solve a unit lower-triangular system.

    With G the running log decay from the chunk's start, pair(x, y)_ij = sum_d x_id y_jd
    exp(G_id - G_jd):  (I + diag(beta) strict_lower(pair(k, k))) u = diag(beta) (v - (k e^G) S^T);
    o = (q e^G) S^T + lower(pair(q, k)) u;  S <- S e^{G_end} + u^T (k e^{G_end - G}).
    """
    heads, width = v.shape[1:]
    q, k = _prepared(q, k, heads, scale, l2norm)
    v, beta = v.double(), beta.double()
    decay_log = decay_log.double().expand(*decay_log.shape[:2], q.shape[-1])
    out = torch.zeros_like(v)
    states = v.new_zeros(len(lengths), heads, width, q.shape[-1])
    if initial_state is not None:
        states += initial_state.double()
    start = 0
    for n, length in enumerate(lengths):
        s = states[n]
        for a in range(start, start + length, chunk_tokens):
            z = min(a + chunk_tokens, start + length)
            qc, kc, vc = (x[a:z].transpose(0, 1) for x in (q, k, v))
            g = decay_log[a:z].cumsum(0).transpose(0, 1)
            bc = beta[a:z].T[:, :, None]
            lower = torch.ones(z - a, z - a, dtype=torch.bool, device=v.device).tril()
            gap = (g[:, :, None, :] - g[:, None, :, :]).masked_fill(~lower[None, :, :, None], 0)
            kk = torch.einsum("hid,hjd,hijd->hij", kc, kc, gap.exp()).tril(-1)
            qk = torch.einsum("hid,hjd,hijd->hij", qc, kc, gap.exp()).tril()
            right = bc * (vc - (kc * g.exp()) @ s.transpose(1, 2))
            eye = torch.eye(z - a, dtype=v.dtype, device=v.device)
            u = torch.linalg.solve_triangular(eye + bc * kk, right, upper=False, unitriangular=True)
            out[a:z] = ((qc * g.exp()) @ s.transpose(1, 2) + qk @ u).transpose(0, 1)
            end = g[:, -1:, :]
            s = s * end.exp() + u.transpose(1, 2) @ (kc * (end - g).exp())
        states[n] = s
        start += length
    return out, states
