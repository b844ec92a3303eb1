"""Gated delta rule, prefill: packed sequences in chunks of 64 tokens, states in a paged pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hybridplan.kernels.common import delta_launch
from hybridplan.kernels.common.checks import require
from hybridplan.kernels.common.delta_inputs import checked_sizes
from hybridplan.kernels.common.delta_plan import CHUNK_TOKENS, Export
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.common.launch import Launcher, Scratch, next_power_of_2, padded
from hybridplan.kernels.gated_delta.prepare import prepare


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
    beta_is_logit: bool = False,
    scale: float | None = None,
    l2norm: bool = True,
    out: torch.Tensor | None = None,
    segment_chunks: int | None = None,
    tma: bool | None = None,
    trust_ids: bool = False,
) -> torch.Tensor:
    """Run N packed sequences; returns o [T, HV, V] and writes each final state into ``pool``.

    q, k [T, H, K], v [T, HV, V], beta, gate_input [T, HV], a_log, dt_bias [HV] and pool
    [slots, HV, V, K] as in :func:`hybridplan.kernels.gated_delta.recurrent.recurrent_step`;
    products take bf16 operands, or fp16 ones for the corrections within a chunk (|v| must stay
    below 65504); sums and states are fp32. cu_seqlens: N + 1 cumulative starts
    (host integers, or a tensor read once per content); None is one sequence.

    slots int32 [N]: where sequence n's final state goes and, unless ``read_slots`` names another
    slot, where its initial state is read; read_slots -1 starts from zero. A sequence whose slot is
    -1 is padding: its outputs stay untouched. ``exports`` keeps more states of the same pass:
    (sequence, p, slot) stores the state after its first p tokens. It equals the final state of a
    prefill of those p tokens; bit for bit if p is a multiple of 64, as are the exports before it,
    and ``segment_chunks`` is the same.

    ``segment_chunks`` cuts long sequences into segments that run side by side (0: never; None:
    when the card would be idle otherwise). ``tma`` forces tensor descriptors on or off; they make
    the kernels faster and an eager launch slower where inputs lie at new addresses.
    Raises KernelInputError before the launch, as recurrent_step; also for a slot that is written
    twice, or written while another sequence starts from it.
    """
    z = checked_sizes(q, k, v, gate_input, beta, pool, gate, a_log, dt_bias, out, False)
    require(gate is not Gate.BOUNDED, "the gated delta rule has no bounded gate")
    if out is None:
        out = torch.empty((z.tokens, z.HV, z.V), dtype=q.dtype, device=q.device)
    b = delta_launch.batch(
        z, q.device, cu_seqlens, slots, read_slots, exports, segment_chunks, trust_ids
    )
    count, C = b.plan.chunk_count, CHUNK_TOKENS
    rows = count * z.HV * C
    a_dtype, p_dtype = delta_launch.square_dtypes(q.dtype)
    number_count = 3 * rows + count * z.HV
    sizes = (rows * C * a_dtype.itemsize, rows * C * p_dtype.itemsize, number_count * 4)
    room = Scratch(padded(sizes[0]) + padded(sizes[1]) + padded(sizes[2]), q.device)
    A, P = room.piece((rows, C), a_dtype), room.piece((rows, C), p_dtype)
    numbers = room.piece((number_count,), torch.float32)
    strides = (q.stride(0), k.stride(0))
    tiles = None
    if delta_launch.tma_usable(z, q, k, v) if tma is None else tma:
        tiles = (delta_launch.row_tiles(q), delta_launch.row_tiles(k), None)
    if count:
        flags = (int(gate), beta_is_logit, l2norm, True, tiles is not None)
        _launch(
            (count, z.H, 1),
            (q, k, gate_input, beta, a_log, dt_bias, A, P, numbers, b.plan.chunks),
            tiles[:2] if tiles else (None, None),
            (rows, *strides, z.K**-0.5 if scale is None else float(scale)),
            (z.H, z.HV, z.K, next_power_of_2(z.K), C, *flags),
            **(PREPARE_ONE if z.H == z.HV else PREPARE_SEVERAL),
        )  # fmt: skip
    stages = 3 if b.plan.segment_count == 1 else 2
    delta_launch.scan(z, b, q, k, k, strides, v, tiles, A, P, numbers, out, pool, False, stages, 4)
    return out


PREPARE_ONE = {"num_warps": 4, "num_stages": 1, "maxnreg": 168}
"""One value head per q/k head: with the cap three programs fit a multiprocessor."""
PREPARE_SEVERAL = {"num_warps": 2, "num_stages": 1}
"""Several: a cap spills; two warps wait less for one another."""

_launch = Launcher(prepare)
