"""Kimi delta attention in fp64 torch: what the kernels of this folder are checked against."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hybridplan.kernels.common import delta_reference


def softplus_gate(x: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor) -> torch.Tensor:
    """Log decay -exp(A_log) softplus(x + dt_bias); x [T, HV, K], a_log [HV], dt_bias [HV, K]."""
    y = x.double() + dt_bias.double()
    return -a_log.double().exp()[:, None] * torch.nn.functional.softplus(y)


def bounded_gate(
    x: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, lower_bound: float
) -> torch.Tensor:
    """Log decay lower_bound sigmoid(exp(A_log) (x + dt_bias)); shapes as softplus_gate."""
    y = x.double() + dt_bias.double()
    return lower_bound * torch.sigmoid(a_log.double().exp()[:, None] * y)


def recurrent_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    lengths: Sequence[int],
    initial_state: torch.Tensor | None = None,
    scale: float | None = None,
    l2norm: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token. q, k [T, H, K]; v [T, HV, V]; log_decay [T, HV, K]; beta [T, HV].

    Returns o [T, HV, V] and the final states [N, HV, V, K], both fp64.
    """
    return delta_reference.token_by_token(
        q, k, v, log_decay, beta, lengths, initial_state, scale, l2norm
    )


def chunk_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    lengths: Sequence[int],
    initial_state: torch.Tensor | None = None,
    scale: float | None = None,
    l2norm: bool = True,
    chunk_tokens: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by chunks with a triangular solve; shapes as :func:`recurrent_reference`."""
    return delta_reference.by_chunks(
        q, k, v, log_decay, beta, lengths, initial_state, scale, l2norm, chunk_tokens
    )
