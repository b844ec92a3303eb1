"""One prefill call of the delta rule: checks, tables, launches, and their repetition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from hybridplan.kernels.common.checks import require
from hybridplan.kernels.common.delta_inputs import Sizes, checked_sizes, layouts
from hybridplan.kernels.common.delta_launch import Batch, batch, check_use, tma_usable
from hybridplan.kernels.common.delta_plan import Export
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.common.launch import Launch, Scratch
from hybridplan.kernels.common.recipe import Recipes, launch_all
from hybridplan.kernels.common.varlen import sequence_lengths


class Call(NamedTuple):
    """A checked prefill: what an operator's launches are made from."""

    z: Sizes
    b: Batch
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    beta: torch.Tensor
    pool: torch.Tensor
    gate_input: torch.Tensor | None
    a_log: torch.Tensor | None
    dt_bias: torch.Tensor | None
    out: torch.Tensor
    gate: Gate
    lower_bound: float
    beta_is_logit: bool
    scale: float
    l2norm: bool
    tma: bool


def prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor | Sequence[int] | None,
    read_slots: torch.Tensor | None,
    exports: Sequence[Export],
    gate: Gate,
    gate_input: torch.Tensor | None,
    a_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float,
    beta_is_logit: bool,
    scale: float | None,
    l2norm: bool,
    out: torch.Tensor | None,
    segment_chunks: int | None,
    tma: bool | None,
    trust_ids: bool,
    per_channel: bool,
    recipes: Recipes,
    launches: Callable[[Call, Scratch], list[Launch]],
) -> torch.Tensor:
    """Shared body of the two operators' ``chunk_prefill``; see their docstrings."""
    tensors = (q, k, v, beta, pool, gate_input, a_log, dt_bias, slots, read_slots)
    layout = layouts((*tensors, out))
    lengths = None if cu_seqlens is None else sequence_lengths(cu_seqlens, q.shape[0])
    wanted = tuple(exports)
    key = (
        layout, lengths, wanted, gate, lower_bound, beta_is_logit, scale, l2norm, segment_chunks,
        tma,
    )  # fmt: skip
    known = recipes.get(key, q.device)
    if known is not None:
        if not trust_ids:
            stops = (q.shape[0],) if lengths is None else lengths
            check_use(slots, read_slots, wanted, stops, pool.shape[0])
        if out is None:
            out = torch.empty(v.shape, dtype=q.dtype, device=q.device)
        if known.run((*tensors, out)):
            return out
    require(scale is None or scale > 0, f"scale is {scale}, but must be positive")
    z = checked_sizes(q, k, v, gate_input, beta, pool, gate, a_log, dt_bias, out, per_channel)
    stops = (z.tokens,) if lengths is None else lengths
    b = batch(
        z, pool, stops, slots, read_slots, wanted, segment_chunks, trust_ids, per_channel
    )  # fmt: skip
    if out is None:
        out = torch.empty((z.tokens, z.HV, z.V), dtype=q.dtype, device=q.device)
    call = Call(
        z, b, q, k, v, beta, pool, gate_input, a_log, dt_bias, out, gate, float(lower_bound),
        beta_is_logit, z.K**-0.5 if scale is None else float(scale), l2norm,
        tma_usable(z, q, k, v, out) if tma is None else tma and z.tokens > 0,
    )  # fmt: skip
    scratch = Scratch(q.device)
    p = b.plan
    tables = (p.chunks, p.runs, p.segments, p.stops, p.inner)
    recipes.add(key, launch_all(launches(call, scratch), (*tensors, out), scratch, tables))
    return out
