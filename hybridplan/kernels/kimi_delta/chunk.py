"""Kimi delta attention, prefill: packed sequences by chunks of 64 tokens, states in a pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hybridplan.kernels.common import delta_launch
from hybridplan.kernels.common.checks import KernelInputError
from hybridplan.kernels.common.delta_plan import CHUNK_TOKENS, Export
from hybridplan.kernels.common.delta_prefill import Call, prefill
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.common.launch import Launch, Launcher, Scratch, next_power_of_2
from hybridplan.kernels.common.recipe import Recipes
from hybridplan.kernels.kimi_delta.prepare import can_be_steep, prepare


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
    if not lower_bound < 0:
        raise KernelInputError(f"lower_bound is {lower_bound}, needed a negative number")
    return prefill(
        q, k, v, beta, pool, slots, cu_seqlens, read_slots, exports, gate, gate_input, a_log,
        dt_bias, lower_bound, beta_is_logit, scale, l2norm, out, segment_chunks, tma, trust_ids,
        True, _RECIPES, _launches,
    )  # fmt: skip


def _launches(c: Call, scratch: Scratch) -> list[Launch]:
    z, count, C, BK = c.z, c.b.plan.chunk_count, CHUNK_TOKENS, next_power_of_2(c.z.K)
    rows = count * z.HV * C
    a_dtype, p_dtype = delta_launch.square_dtypes(c.q.dtype)
    A, P = scratch.piece((rows, C), a_dtype), scratch.piece((rows, C), p_dtype)
    # fp16 holds k, q and decays, all at most one, eight times finer than bf16.
    q_in, k_in, k_out = (scratch.piece((rows, BK), a_dtype) for _ in "qkk")
    decay = scratch.piece((count * z.HV * BK,), torch.float32)
    tensors = (
        c.q, c.k, c.gate_input, c.beta, c.a_log, c.dt_bias, A, P, q_in, k_in, k_out, decay,
        c.b.plan.chunks,
    )  # fmt: skip
    steep = can_be_steep(c.gate, c.lower_bound)
    sizes = (
        z.H, z.HV, z.K, BK, C, int(c.gate), c.beta_is_logit, c.l2norm, c.q.stride(0),
        c.k.stride(0), min(BK, PREPARE_CHANNELS), STEEP_CHANNELS * steep,
    )  # fmt: skip
    how = {"num_warps": 4, "num_stages": 1, "maxnreg": PREPARE_REGISTERS}
    first = Launch(_launch, (count * z.HV, 1, 1), tensors, (), (c.scale, c.lower_bound), sizes, how)
    tiles = None
    if c.tma:
        tile = delta_launch.tile_map
        tiles = (tile(q_in), tile(k_in), tile(k_out))
    scan = delta_launch.scan(
        z, c.b, scratch, q_in, k_in, k_out, (BK, BK), c.v, tiles, A, P, decay, c.out, c.pool, True,
        STAGES,
    )  # fmt: skip
    return [first, *scan] if count else scan


PREPARE_CHANNELS = 128
"""Channels at a time."""

PREPARE_REGISTERS = 168
"""Cap on a thread's registers: three programs a multiprocessor."""

STEEP_CHANNELS = 16
"""Channels at a time where a chunk is steep: 32 would spill 600 bytes a thread."""

STAGES = delta_launch.Stages(alone=3, shared=3)

_launch = Launcher(prepare)
_RECIPES = Recipes()
