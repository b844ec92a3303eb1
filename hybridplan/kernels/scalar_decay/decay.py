"""The decays that make one recurrence Mamba-2, lightning attention, RetNet or scalar GLA."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def lightning_log_decay(heads: int, layer: int, layers: int) -> Tensor:
    """Log decay per token of each head of lightning attention (MiniMax-Text-01), fp32 [heads].

    The slopes are ALiBi's (a power of two of heads, else the nearest lower power interleaved with
    the next one), scaled by ``1 - layer / (layers - 1) + 1e-5``.
    """
    depth = 1.0 - layer / max(layers - 1, 1) + 1e-5
    return torch.tensor([-slope * depth for slope in _alibi_slopes(heads)], dtype=torch.float32)


def retnet_log_decay(heads: int) -> Tensor:
    """Log decay per token of each RetNet head, ``log(1 - 2 ** (-5 - head))``, fp32 [heads]."""
    return torch.tensor([math.log1p(-(2.0 ** (-5 - h))) for h in range(heads)])


def mamba_decay(
    dt: Tensor, a_log: Tensor, dt_bias: Tensor | None, *, softplus: bool
) -> tuple[Tensor, Tensor]:
    """Log decay and input weight of Mamba-2 from its raw step, both [tokens, heads] in dt's dtype.

    The step is ``dt + dt_bias``, through softplus if asked; the decay is
    ``-exp(a_log) * step`` and the input is weighted by the step.
    """
    step = dt if dt_bias is None else dt + dt_bias
    if softplus:
        step = torch.nn.functional.softplus(step)
    return -a_log.exp() * step, step


def _alibi_slopes(heads: int) -> list[float]:
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    if power < heads:
        slopes += [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(heads - power)]
    return slopes
