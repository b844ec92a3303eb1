"""Gated delta rule, decode: one or several tokens per request on a paged state pool, in place."""

from __future__ import annotations

import torch

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
    beta_is_logit: bool = False,
    accepted: torch.Tensor | None = None,
    scale: float | None = None,
    l2norm: bool = True,
    out: torch.Tensor | None = None,
    trust_ids: bool = False,
) -> torch.Tensor:
    """Advance each request by D tokens; returns o [B*D, HV, V] and updates ``pool`` in place.

    q, k [B*D, H, K] and v [B*D, HV, V]: fp32, bf16 or fp16; tokens of one request are neighbours;
    only heads and channels need be contiguous, so slices of one packed row are fine. HV is a
    multiple of H. beta, gate_input [B*D, HV]; a_log, dt_bias [HV] fp32 (see :class:`Gate`; the
    default is Qwen3-Next's softplus gate; ``Gate.NONE`` is plain DeltaNet). ``beta_is_logit``
    applies a sigmoid.
    pool [slots, HV, V, K], fp32, bf16 or fp16: K contiguous; arithmetic is fp32.

    slots int32 [B] (D = 1) or [B, D]: token d's state is written to slots[n, d]. The state read is
    slots[n, accepted[n] - 1], or slots[n, 0] without ``accepted`` (int32 [B], values 1 to D: how
    many tokens of the last call were kept). A request whose read slot is -1 is padding: its output
    rows and all slots stay untouched. A written slot of -1 drops that snapshot.

    Raises KernelInputError before the launch on wrong shapes, dtypes, devices, layouts, and on
    slot ids that are out of range or used twice. The id check reads ``slots`` on the host once per
    content; ``trust_ids`` skips it (ids outside the pool then count as padding). Graph capture
    works with ids checked before, or trusted.
    """
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
        0.0,
        beta_is_logit,
        l2norm,
        scale,
        out,
        trust_ids,
        per_channel=False,
    )
