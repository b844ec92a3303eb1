"""Kimi delta attention, decode: one or several tokens per request on a paged pool, in place."""

from __future__ import annotations

import torch

from hybridplan.kernels.common.checks import require
from hybridplan.kernels.common.delta_decode import decode
from hybridplan.kernels.common.gates import Gate


def recurrent_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    *,
    gate: Gate = Gate.SOFTPLUS,
    gate_input: torch.Tensor | None = None,
    a_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float = -5.0,
    beta_is_logit: bool = False,
    accepted: torch.Tensor | None = None,
    scale: float | None = None,
    l2norm: bool = True,
    out: torch.Tensor | None = None,
    trust_ids: bool = False,
) -> torch.Tensor:
    """Advance each request by D tokens; returns o [B*D, HV, V] and updates ``pool`` in place.

    As :func:`hybridplan.kernels.gated_delta.recurrent.recurrent_step`, with one decay a channel:
    gate_input [B*D, HV, K], a_log [HV] and dt_bias [HV, K] fp32. ``Gate.SOFTPLUS`` is the released
    Kimi Linear gate; ``Gate.BOUNDED`` keeps each log decay above ``lower_bound`` (negative).
    """
    require(lower_bound < 0, f"lower_bound is {lower_bound}, needed a negative number")
    return decode(
        q,
        k,
        v,
        gate_input,
        beta,
        pool,
        slots,
        accepted,
        gate,
        a_log,
        dt_bias,
        lower_bound,
        beta_is_logit,
        l2norm,
        scale,
        out,
        trust_ids,
        per_channel=True,
    )
