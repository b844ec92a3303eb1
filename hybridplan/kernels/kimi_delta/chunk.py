"""Kimi delta attention, prefill: packed sequences by chunks of 64 tokens, states in a pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hybridplan.kernels.common import delta_launch
from hybridplan.kernels.common.checks import require
from hybridplan.kernels.common.delta_inputs import checked_sizes
from hybridplan.kernels.common.delta_plan import CHUNK_TOKENS, Export
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.common.launch import Launcher, Scratch, next_power_of_2, padded
from hybridplan.kernels.kimi_delta.prepare import prepare


def chunk_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    *,
    read_slots: torch.Tensor | None = None,
    exports: Sequence[Export] = (),
    gate: Gate = Gate.SOFTPLUS,
    gate_input: torch.Tensor | None = None,
    a_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float = -5.0,
    beta_is_logit: bool = False,
    scale: float | None = None,
    l2norm: bool = True,
    out: torch.Tensor | None = None,
    segment_chunks: int | None = None,
    tma: bool | None = None,
    trust_ids: bool = False,
) -> torch.Tensor:
    """Run N packed sequences; returns o [T, HV, V] and writes each final state into ``pool``.

    As :func:`hybridplan.kernels.gated_delta.chunk.chunk_prefill`, with one decay a channel:
    gate_input [T, HV, K], a_log [HV] and dt_bias [HV, K] fp32. ``Gate.SOFTPLUS`` is the released
    Kimi Linear gate; ``Gate.BOUNDED`` keeps each log decay above ``lower_bound`` (negative).
    Products on the state take fp16 operands: |v| and states must stay below 65504.
    """
    require(lower_bound < 0, f"lower_bound is {lower_bound}, needed a negative number")
    z = checked_sizes(q, k, v, gate_input, beta, pool, gate, a_log, dt_bias, out, True)
    if out is None:
        out = torch.empty((z.tokens, z.HV, z.V), dtype=q.dtype, device=q.device)
    b = delta_launch.batch(
        z, q.device, cu_seqlens, slots, read_slots, exports, segment_chunks, trust_ids
    )
    count, C, BK = b.plan.chunk_count, CHUNK_TOKENS, next_power_of_2(z.K)
    rows = count * z.HV * C
    a_dtype, p_dtype = delta_launch.square_dtypes(q.dtype)
    squares, wide = rows * C, rows * BK
    room = Scratch(
        padded(squares * a_dtype.itemsize)
        + padded(squares * p_dtype.itemsize)
        + 3 * padded(wide * a_dtype.itemsize)
        + padded(count * z.HV * BK * 4)
        + padded(count * z.HV * 4),
        q.device,
    )
    A, P = room.piece((rows, C), a_dtype), room.piece((rows, C), p_dtype)
    # fp16 holds k, q and decays, all at most one, eight times finer than bf16.
    q_in, k_in, k_out = (room.piece((rows, BK), a_dtype) for _ in "qkk")
    decay = room.piece((count * z.HV * BK,), torch.float32)
    steep = room.piece((count * z.HV,), torch.int32)
    if count:
        tensors = (
            q, k, gate_input, beta, a_log, dt_bias, A, P, q_in, k_in, k_out, decay, steep,
            b.plan.chunks,
        )  # fmt: skip
        factor = z.K**-0.5 if scale is None else float(scale)
        fixed = (z.H, z.HV, z.K, BK, C, int(gate), beta_is_logit, l2norm)
        for again in (False,) if gate is Gate.NONE else (False, True):
            _launch(
                (count, z.HV, 1),
                tensors,
                (),
                (q.stride(0), k.stride(0), factor, float(lower_bound)),
                (*fixed, min(BK, PREPARE_CHANNELS), again, True),
                num_warps=4,
                num_stages=1,
                maxnreg=None if again else 168,
            )
    tiles = None
    if delta_launch.tma_usable(z, q, k, v) if tma is None else tma:
        tiles = tuple(delta_launch.tile_map(t) for t in (q_in, k_in, k_out))
    delta_launch.scan(
        z, b, q_in, k_in, k_out, (BK, BK), v, tiles, A, P, decay, out, pool, True, 3, 4
    )
    return out


PREPARE_CHANNELS = 32
"""Channels at a time: more need registers that cost concurrent programs."""

_launch = Launcher(prepare)
