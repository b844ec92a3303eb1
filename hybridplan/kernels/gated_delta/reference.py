"""Gated delta rule in fp64 torch: what the kernels of this folder are checked against."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hybridplan.kernels.common import delta_reference


def softplus_gate(x: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor) -> torch.Tensor:
    """Log decay -exp(A_log) softplus(x + dt_bias) in fp64; x [T, HV], a_log and dt_bias [HV]."""
    return -a_log.double().exp() * torch.nn.functional.softplus(x.double() + dt_bias.double())


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
    """Token by token. q, k [T, H, K]; v [T, HV, V]; log_decay, beta [T, HV].

    Returns o [T, HV, V] and the final states [N, HV, V, K], both fp64.
    """
    return delta_reference.token_by_token(
        q, k, v, log_decay[..., None], beta, lengths, initial_state, scale, l2norm
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
        q, k, v, log_decay[..., None], beta, lengths, initial_state, scale, l2norm, chunk_tokens
    )
