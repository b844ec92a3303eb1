"""Gated delta rule, prefill: packed sequences in chunks of 64 tokens, states in a paged pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hybridplan.kernels.common import delta_launch
from hybridplan.kernels.common.delta_plan import CHUNK_TOKENS, Export
from hybridplan.kernels.common.delta_prefill import Call, prefill
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.common.launch import Launch, Launcher, Scratch, has_tma, next_power_of_2
from hybridplan.kernels.common.recipe import Recipes
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
    twice, or written while another sequence starts from it, and for a scale that is not positive.
    """
    return prefill(
        q, k, v, beta, pool, slots, cu_seqlens, read_slots, exports, gate, gate_input, a_log,
        dt_bias, 0.0, beta_is_logit, scale, l2norm, out, segment_chunks, tma, trust_ids,
        False, _RECIPES, _launches,
    )  # fmt: skip


def _launches(c: Call, scratch: Scratch) -> list[Launch]:
    z, count, C = c.z, c.b.plan.chunk_count, CHUNK_TOKENS
    rows = count * z.HV * C
    a_dtype, p_dtype = delta_launch.square_dtypes(c.q.dtype)
    A, P = scratch.piece((rows, C), a_dtype), scratch.piece((rows, C), p_dtype)
    numbers = scratch.piece((3 * rows + count * z.HV,), torch.float32)
    strides = (c.q.stride(0), c.k.stride(0))
    tiles = (delta_launch.row_tiles(c.q), delta_launch.row_tiles(c.k), None) if c.tma else None
    options = {"num_warps": 4, "num_stages": 1}
    heads = max(r for r in (1, 2, 3, 4) if z.HV // z.H % r == 0)
    if c.q.device.type == "cuda" and has_tma(c.q.device):
        options["maxnreg"] = MOST_REGISTERS[heads == 1]
    first = Launch(
        _launch,
        (count, z.HV, 1) if heads == 1 else (count * (z.HV // heads), 1, 1),
        (c.q, c.k, c.gate_input, c.beta, c.a_log, c.dt_bias, A, P, numbers, c.b.plan.chunks),
        (),
        (rows, *strides, c.scale),
        (z.H, z.HV, z.K, next_power_of_2(z.K), C, heads, int(c.gate), c.beta_is_logit, c.l2norm,
         delta_launch.can_overlap(c.q.device)),
        options,
    )  # fmt: skip
    scan = delta_launch.scan(
        z, c.b, scratch, c.q, c.k, c.k, strides, c.v, tiles, A, P, numbers, c.out, c.pool, False,
        STAGES,
    )  # fmt: skip
    return [first, *scan] if count else scan


STAGES = delta_launch.Stages(alone=3, shared=2, wide=3)

MOST_REGISTERS = {True: 128, False: 168}
"""A thread's in prepare, for programs of one value head and of several: with these four and three
programs fit a Hopper multiprocessor, without spills in the second case."""

_launch = Launcher(prepare)
_RECIPES = Recipes()
