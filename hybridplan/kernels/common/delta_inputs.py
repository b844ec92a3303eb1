"""Input checks common to the delta-rule operators (gated_delta, kimi_delta)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hybridplan.kernels.common.checks import FLOATS, check_tensor, require
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.common.launch import require_device


@dataclass(frozen=True)
class Sizes:
    """Sizes of a delta-rule layer: tokens, q/k heads H, value heads HV, key width K, width V."""

    tokens: int
    H: int
    HV: int
    K: int
    V: int
    slots: int


_checked: dict[tuple[object, ...], Sizes] = {}


def layouts(tensors: Sequence[torch.Tensor | None]) -> tuple[object, ...]:
    """Shape, strides, dtype and device of each tensor: all that checks of them look at."""
    return tuple([None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors])


def checked_sizes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate_input: torch.Tensor | None,
    beta: torch.Tensor,
    pool: torch.Tensor,
    gate: Gate,
    a_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    out: torch.Tensor | None,
    per_channel: bool,
) -> Sizes:
    """Check all tensors of a call; the same shapes, strides and dtypes are checked only once."""
    key = (gate, per_channel, layouts((q, k, v, beta, pool, gate_input, a_log, dt_bias, out)))
    known = _checked.get(key)
    if known is not None:
        return known
    sizes = _check(q, k, v, gate_input, beta, pool, gate, a_log, dt_bias, out, per_channel)
    if len(_checked) > 4096:
        _checked.clear()
    _checked[key] = sizes
    return sizes


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate_input: torch.Tensor | None,
    beta: torch.Tensor,
    pool: torch.Tensor,
    gate: Gate,
    a_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    out: torch.Tensor | None,
    per_channel: bool,
) -> Sizes:
    device = q.device
    require_device(device)
    require(q.dim() == 3, f"q has {q.dim()} dimensions, needed [tokens, heads, K]")
    require(v.dim() == 3, f"v has {v.dim()} dimensions, needed [tokens, heads, V]")
    tokens, H, K = q.shape
    HV, V = v.shape[1:]
    check_tensor("q", q, (-1, -1, -1), FLOATS, device, dense_dims=2)
    check_tensor("k", k, (tokens, H, K), (q.dtype,), device, dense_dims=2)
    check_tensor("v", v, (tokens, HV, V), (q.dtype,), device, dense_dims=2)
    require(HV % H == 0, f"{HV} value heads are not a multiple of {H} query heads")
    require(16 <= K <= 256, f"key width K is {K}, needed 16 to 256")
    require(V % 16 == 0, f"value width V is {V}, needed a multiple of 16")
    check_tensor("beta", beta, (tokens, HV), FLOATS, device)
    check_tensor("pool", pool, (-1, HV, V, K), FLOATS, device, dense_dims=3)
    gate_shape = (tokens, HV, K) if per_channel else (tokens, HV)
    bounded = gate is Gate.BOUNDED
    require(per_channel or not bounded, "the gated delta rule has no bounded gate")
    if gate is Gate.NONE:
        require(gate_input is None, "gate NONE takes no gate input")
    else:
        require(gate_input is not None, f"gate {gate.name} needs a gate input {gate_shape}")
        assert gate_input is not None
        check_tensor("gate input", gate_input, gate_shape, FLOATS, device)
    if gate in (Gate.SOFTPLUS, Gate.BOUNDED):
        require(
            a_log is not None and dt_bias is not None,
            f"gate {gate.name} needs a_log and dt_bias",
        )
        assert a_log is not None
        assert dt_bias is not None
        check_tensor("a_log", a_log, (HV,), (torch.float32,), device)
        bias_shape = (HV, K) if per_channel else (HV,)
        check_tensor("dt_bias", dt_bias, bias_shape, (torch.float32,), device)
    if out is not None:
        check_tensor("out", out, (tokens, HV, V), FLOATS, device)
    return Sizes(tokens, H, HV, K, V, pool.shape[0])
