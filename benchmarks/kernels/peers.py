"""Adapters to the public kernels this project is compared with, and to its own.

Each takes :class:`benchmarks.kernels.registry.Inputs` and returns (o, state [N, HV, V, K] or None
where the pool was updated in place). A library that cannot be imported is left out of a run. Only
their public calls are used; vLLM's ops are imported behind stand-ins for the rest of vLLM, whose
engine they do not need.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.kernels.registry import D, Inputs
from hybridplan.kernels.common.delta_plan import Export
from hybridplan.kernels.gated_delta.chunk import chunk_prefill as gated_prefill
from hybridplan.kernels.gated_delta.recurrent import recurrent_step as gated_step
from hybridplan.kernels.kimi_delta.chunk import chunk_prefill as kimi_prefill
from hybridplan.kernels.kimi_delta.recurrent import recurrent_step as kimi_step

Result = tuple[torch.Tensor, torch.Tensor | None]
Adapter = Callable[[Inputs, dict[str, Any]], Result]
"""An adapter may keep converted inputs in the dict, filled outside the timed region."""


def ours_prefill(x: Inputs, kept: dict[str, Any], exports: Sequence[Export] = ()) -> Result:
    """This project; writes the states of the pool it read."""
    call = kimi_prefill if x.gate_input.dim() == 3 else gated_prefill
    out = kept.setdefault("out", torch.empty_like(x.v))
    call(
        x.q, x.k, x.v, x.beta_logit, x.pool, x.slots, x.starts, gate_input=x.gate_input,
        a_log=x.a_log, dt_bias=x.dt_bias, beta_is_logit=True, out=out, trust_ids=True,
        exports=exports,
    )  # fmt: skip
    return out, None


def ours_decode(x: Inputs, kept: dict[str, Any]) -> Result:
    """This project, one token a request, in place."""
    call = kimi_step if x.gate_input.dim() == 3 else gated_step
    out = kept.setdefault("out", torch.empty_like(x.v))
    call(
        x.q, x.k, x.v, x.beta_logit, x.pool, x.slots, gate_input=x.gate_input, a_log=x.a_log,
        dt_bias=x.dt_bias, beta_is_logit=True, out=out, trust_ids=True,
    )  # fmt: skip
    return out, None


def _fla_inputs(x: Inputs, kept: dict[str, Any]) -> dict[str, Any]:
    if "fla" not in kept:
        cu = x.cu_seqlens if len(x.lengths) > 1 else None
        state = x.pool[x.slots.long()].float().transpose(-1, -2).contiguous()
        kept["fla"] = {"cu_seqlens": cu, "initial_state": state, "output_final_state": True}
        kept["fla_gate"] = (x.log_decay()[None], x.beta()[None])
    return dict(kept["fla"])


def fla_gated_prefill(x: Inputs, kept: dict[str, Any]) -> Result:
    """flash-linear-attention, gates computed outside the timed region."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    more = _fla_inputs(x, kept)
    g, beta = kept["fla_gate"]
    with torch.inference_mode():
        o, s = chunk_gated_delta_rule(
            x.q[None], x.k[None], x.v[None], g, beta, use_qk_l2norm_in_kernel=True, **more
        )
    return o[0], s.transpose(-1, -2)


def fla_kimi_prefill(x: Inputs, kept: dict[str, Any]) -> Result:
    """flash-linear-attention, gate in the kernel."""
    from fla.ops.kda import chunk_kda

    more = _fla_inputs(x, kept)
    with torch.inference_mode():
        o, s = chunk_kda(
            x.q[None], x.k[None], x.v[None], x.gate_input[None], kept["fla_gate"][1],
            use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=x.a_log,
            dt_bias=x.dt_bias.reshape(-1), **more,
        )  # fmt: skip
    return o[0], s.transpose(-1, -2)


def flashqla_prefill(x: Inputs, kept: dict[str, Any]) -> Result:
    """FlashQLA with its own l2-norm."""
    from flash_qla import chunk_gated_delta_rule

    more = _fla_inputs(x, kept)
    g, beta = kept["fla_gate"]
    more["cu_seqlens"] = kept.setdefault("cu32", x.cu_seqlens.int())
    with torch.inference_mode():
        o, s = chunk_gated_delta_rule(
            q=x.q[None], k=x.k[None], v=x.v[None], g=g, beta=beta, use_qk_l2norm_in_kernel=True,
            enable_fwd_cp_cache=False, **more,
        )  # fmt: skip
    return o[0], s.transpose(-1, -2)


def vllm_packed(x: Inputs, kept: dict[str, Any]) -> Result:
    """vLLM's decode from the packed row of the convolution, in place."""
    m = vllm_ops("fused_recurrent")
    out = kept.setdefault("out4", torch.empty_like(x.v)[:, None])
    m.fused_recurrent_gated_delta_rule_packed_decode(
        x.packed, x.gate_input, x.beta_logit, x.a_log, x.dt_bias, D**-0.5, x.pool, out, x.slots,
        True,
    )  # fmt: skip
    return out[:, 0], None


def vllm_sigmoid(x: Inputs, kept: dict[str, Any]) -> Result:
    """vLLM's decode with gates in the kernel, in place; both operators."""
    m = vllm_ops("fused_sigmoid_gating")
    starts = kept.setdefault("cu32", x.cu_seqlens.int())
    o, _ = m.fused_sigmoid_gating_delta_rule_update(
        x.a_log, x.gate_input, x.beta_logit, x.dt_bias, x.q[None], x.k[None], x.v[None],
        initial_state=x.pool, inplace_final_state=True, cu_seqlens=starts,
        ssm_state_indices=x.slots, use_qk_l2norm_in_kernel=True, is_kda=x.gate_input.dim() == 3,
    )  # fmt: skip
    return o[0], None


def vllm_recurrent(x: Inputs, kept: dict[str, Any]) -> Result:
    """vLLM's decode with gates computed outside the timed region, in place."""
    m = vllm_ops("fused_recurrent")
    if "vllm" not in kept:
        kept["vllm"] = (x.log_decay()[None], x.beta()[None], x.cu_seqlens.int())
    g, beta, starts = kept["vllm"]
    o, _ = m.fused_recurrent_gated_delta_rule_fwd(
        x.q[None], x.k[None], x.v[None], g, beta, D**-0.5, x.pool, True, starts, x.slots, None, True
    )
    return o[0], None


@triton.jit
def _read_modify_write(pool, slots, width, BLOCK: tl.constexpr):
    slot = tl.load(slots + tl.program_id(1)).to(tl.int64)
    at = pool + slot * width + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(at, (tl.load(at).to(tl.float32) * 1.0009765625).to(pool.dtype.element_ty))


CEILING_TILES = ((4096, 8), (2048, 4), (1024, 4))
"""(elements, warps) of a program; the fastest is the ceiling."""


def ceiling(x: Inputs, block: int, warps: int) -> None:
    """Read and write the same states in place and do nothing else: the ceiling of decode."""
    width = x.pool[0].numel()
    grid = (width // block, len(x.slots))
    _read_modify_write[grid](x.pool, x.slots, width, block, num_warps=warps)


def vllm_ops(name: str) -> Any:
    """A module of vLLM's vendored ops."""
    if "vllm.triton_utils" not in sys.modules:
        _stand_in_for_vllm()
    return importlib.import_module(f"vllm.third_party.flash_linear_attention.ops.{name}")


def _stand_in_for_vllm() -> None:
    def module(name: str, **contents: Any) -> None:
        made = types.ModuleType(name)
        for key, value in contents.items():
            setattr(made, key, value)
        sys.modules[name] = made

    class Platform:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: name in ("is_cuda", "is_cuda_alike")

    import vllm  # a namespace that holds third_party only

    path = [f"{p}/third_party/flash_linear_attention" for p in vllm.__path__]
    for part in ("", ".ops"):
        package = types.ModuleType(f"vllm.third_party.flash_linear_attention{part}")
        package.__path__ = [p + part.replace(".", "/") for p in path]
        sys.modules[package.__name__] = package
    module("vllm.triton_utils", triton=triton, tl=tl, tldevice=tl.extra.cuda.libdevice)
    module("vllm.platforms", current_platform=Platform())


PREFILL: dict[str, tuple[bool, Adapter]] = {
    "ours": (False, ours_prefill),
    "fla": (False, fla_gated_prefill),
    "flashqla": (False, flashqla_prefill),
    "ours kimi": (True, ours_prefill),
    "fla kimi": (True, fla_kimi_prefill),
}
"""name -> (per-channel decay, adapter)."""

DECODE: dict[str, tuple[frozenset[bool], Adapter]] = {
    "ours": (frozenset({False, True}), ours_decode),
    "vllm packed": (frozenset({False}), vllm_packed),
    "vllm sigmoid": (frozenset({False, True}), vllm_sigmoid),
    "vllm recurrent": (frozenset({False}), vllm_recurrent),
}
"""name -> (operators it serves, adapter)."""
