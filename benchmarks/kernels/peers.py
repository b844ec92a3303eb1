"""Adapters to the public kernels this project is compared with, and to its own.

Each takes :class:`benchmarks.kernels.registry.Inputs` and returns (o, state [N, HV, V, K] or None
where the pool was updated in place). Only the libraries' public calls are used. l2-norm is part of
every call; gates are too where the library has them in a kernel, else they are made outside the
timed region. vLLM's ops run behind stand-ins for the rest of vLLM, whose engine they do not need.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl

from benchmarks.kernels.registry import LOWER_BOUND, D, Inputs
from benchmarks.kernels.stand_ins import vllm_ops
from hybridplan.kernels.common.delta_plan import Export
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.gated_delta.chunk import chunk_prefill as gated_prefill
from hybridplan.kernels.gated_delta.recurrent import recurrent_step as gated_step
from hybridplan.kernels.kimi_delta.chunk import chunk_prefill as kimi_prefill
from hybridplan.kernels.kimi_delta.recurrent import recurrent_step as kimi_step

# fla hands calls over to TileLang, FlashKDA and others where they are installed
os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")

Result = tuple[torch.Tensor, torch.Tensor | None]
Adapter = Callable[[Inputs, dict[str, Any]], Result]
"""An adapter keeps converted inputs in the dict: its first call fills it, outside the timed region,
and the calls after run the library and nothing else."""

T = TypeVar("T")


@dataclass(frozen=True)
class Peer:
    """A library's call: the gates and state dtypes it serves, and the modules it imports."""

    name: str
    call: Adapter
    gates: tuple[str, ...]
    needs: tuple[str, ...] = ()
    states: tuple[torch.dtype, ...] = (torch.float32,)

    @functools.cache  # noqa: B019 - peers live as long as the module
    def absent(self) -> str:
        """Why it cannot run here; "" where it can be imported."""
        for module in self.needs:
            try:
                vllm_ops("fused_recurrent") if module == "vllm" else importlib.import_module(module)
            except Exception as problem:  # a broken installation is as absent as none
                return f"{module}: {type(problem).__name__}: {problem}"[:200]
        return ""


def _once(kept: dict[str, Any], name: str, make: Callable[[], T]) -> T:
    """What ``make`` returned the first time."""
    if name not in kept:
        kept[name] = make()
    made: T = kept[name]
    return made


def _out(x: Inputs, kept: dict[str, Any]) -> torch.Tensor:
    return _once(kept, "out", lambda: torch.empty_like(x.v))


def _gate(x: Inputs) -> dict[str, Any]:
    if x.gate == "bounded":
        return {"gate": Gate.BOUNDED, "lower_bound": LOWER_BOUND}
    return {}


def ours_prefill(
    x: Inputs,
    kept: dict[str, Any],
    exports: Sequence[Export] = (),
    segment_chunks: int | None = None,
) -> Result:
    """This project; writes the states of the pool it read."""
    call = gated_prefill if x.gate == "scalar" else kimi_prefill
    out = _out(x, kept)
    call(
        x.q, x.k, x.v, x.beta_logit, x.pool, x.slots, x.starts, gate_input=x.gate_input,
        a_log=x.a_log, dt_bias=x.dt_bias, beta_is_logit=True, out=out, trust_ids=True,
        exports=exports, segment_chunks=segment_chunks, **_gate(x),
    )  # fmt: skip
    return out, None


def ours_decode(x: Inputs, kept: dict[str, Any]) -> Result:
    """This project, one token a request, in place."""
    call = gated_step if x.gate == "scalar" else kimi_step
    out = _out(x, kept)
    call(
        x.q, x.k, x.v, x.beta_logit, x.pool, x.slots, gate_input=x.gate_input, a_log=x.a_log,
        dt_bias=x.dt_bias, beta_is_logit=True, out=out, trust_ids=True, **_gate(x),
    )  # fmt: skip
    return out, None


def _states(x: Inputs) -> torch.Tensor:
    """The sequences' states in fp32, apart from the pool: [N, HV, V, K]."""
    return x.pool[x.slots.long()].float()


def _rows(x: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x.q[None], x.k[None], x.v[None]


def _requests(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[B, ...] as a batch of sequences of one token."""
    return tuple(t[:, None] for t in tensors)


def _gates(x: Inputs, kept: dict[str, Any]) -> tuple[torch.Tensor | None, torch.Tensor]:
    """fp32 log decay, unless a kernel takes its logits, and beta."""
    decay = x.log_decay if x.gate == "scalar" else None
    return _once(kept, "gates", lambda: (decay()[None] if decay else None, x.beta()[None]))


def _fla_inputs(x: Inputs, kept: dict[str, Any]) -> dict[str, Any]:
    return {
        "cu_seqlens": x.cu_seqlens if len(x.lengths) > 1 else None,
        "initial_state": _once(kept, "states", lambda: _states(x).transpose(-1, -2).contiguous()),
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
    }


def fla_prefill(x: Inputs, kept: dict[str, Any]) -> Result:
    """flash-linear-attention, gates computed outside the timed region."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    more = _fla_inputs(x, kept)
    with torch.inference_mode():
        o, s = chunk_gated_delta_rule(*_rows(x), *_gates(x, kept), **more)
    return o[0], s.transpose(-1, -2)


def fla_kimi_prefill(x: Inputs, kept: dict[str, Any]) -> Result:
    """flash-linear-attention, gate in the kernel."""
    from fla.ops.kda import chunk_kda

    more = _fla_inputs(x, kept)
    if x.gate == "bounded":
        more |= {"safe_gate": True, "lower_bound": LOWER_BOUND}
    with torch.inference_mode():
        o, s = chunk_kda(
            *_rows(x), x.gate_input[None], _gates(x, kept)[1], use_gate_in_kernel=True,
            A_log=x.a_log, dt_bias=x.dt_bias.view(-1), **more,
        )  # fmt: skip
    return o[0], s.transpose(-1, -2)


def flashqla_prefill(x: Inputs, kept: dict[str, Any]) -> Result:
    """FlashQLA with its own l2-norm."""
    from flash_qla import chunk_gated_delta_rule

    more = _fla_inputs(x, kept) | {"cu_seqlens": x.cu_seqlens_int32}
    g, beta = _gates(x, kept)
    q, k, v = _rows(x)
    with torch.inference_mode():
        o, s = chunk_gated_delta_rule(
            q=q, k=k, v=v, g=g, beta=beta, enable_fwd_cp_cache=False, **more
        )
    return o[0], s.transpose(-1, -2)


def flashinfer_prefill(x: Inputs, kept: dict[str, Any]) -> Result:
    """FlashInfer with its own l2-norm; before 0.7 it has none on Hopper, so behind fla's."""
    import flashinfer
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    own_norm = tuple(map(int, flashinfer.__version__.split(".")[:2])) >= (0, 7)
    g, beta = _once(kept, "gates", lambda: (x.log_decay().exp(), x.beta()))
    state = _once(kept, "states", lambda: _states(x))
    q, k = x.q, x.k
    with torch.inference_mode():
        if not own_norm:
            from fla.modules.norm.l2norm import l2norm_fwd

            q, k = l2norm_fwd(q)[0], l2norm_fwd(k)[0]
        o, s = chunk_gated_delta_rule(
            q, k, x.v, g=g, beta=beta, scale=D**-0.5, initial_state=state,
            output_final_state=True, cu_seqlens=x.cu_seqlens, use_qk_l2norm_in_kernel=own_norm,
            output=_out(x, kept),
            output_state=_once(kept, "final", lambda: torch.empty_like(state)),
        )  # fmt: skip
    return o, s


def flashkda_prefill(x: Inputs, kept: dict[str, Any]) -> Result:
    """FlashKDA, everything inside; it has the bounded gate only."""
    from flash_kda import fwd

    state = _once(kept, "states", lambda: _states(x))
    final = _once(kept, "final", lambda: torch.empty_like(state))
    out = _out(x, kept)
    fwd(
        *_rows(x), x.gate_input[None], x.beta_logit[None], D**-0.5, out[None], x.a_log,
        x.dt_bias, LOWER_BOUND, initial_state=state, final_state=final,
        cu_seqlens=x.cu_seqlens if len(x.lengths) > 1 else None,
    )  # fmt: skip
    return out, final


def vllm_prefill(x: Inputs, kept: dict[str, Any]) -> Result:
    """vLLM's chunked rule; gates computed outside for the scalar decay, inside for Kimi's.

    Kimi's writes its output over v, so it gets a v of its own.
    """
    more = {
        "initial_state": _once(kept, "states", lambda: _states(x)),
        "output_final_state": True,
        "cu_seqlens": x.cu_seqlens if len(x.lengths) > 1 else None,
        "use_qk_l2norm_in_kernel": True,
    }
    q, k, v = _rows(x)
    g, beta = _gates(x, kept)
    with torch.inference_mode():
        if x.gate == "scalar":
            o, s = vllm_ops("chunk").chunk_gated_delta_rule(q, k, v, g, beta, **more)
        else:
            o, s = vllm_ops("kda").chunk_kda_with_fused_gate(
                q, k, _once(kept, "v", x.v.clone)[None], x.gate_input[None], beta, x.a_log,
                x.dt_bias.view(-1), lower_bound=LOWER_BOUND if x.gate == "bounded" else None,
                **more,
            )  # fmt: skip
    return o[0], s


def fla_decode(x: Inputs, kept: dict[str, Any]) -> Result:
    """flash-linear-attention's recurrent rule, gates inside, states out of place as it has them."""
    if x.gate == "scalar":
        from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as call
    else:
        from fla.ops.kda import fused_recurrent_kda as call

    state = _fla_inputs(x, kept)["initial_state"]
    q, k, v, g, beta = _requests(x.q, x.k, x.v, x.gate_input, x.beta_logit)
    with torch.inference_mode():
        o, s = call(
            q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True,
            use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=x.a_log,
            dt_bias=x.dt_bias.view(-1), use_beta_sigmoid_in_kernel=True,
        )  # fmt: skip
    return o[:, 0], s.transpose(-1, -2)


def fla_kimi_pool(x: Inputs, kept: dict[str, Any]) -> Result:
    """flash-linear-attention's KDA step in a pool of slots, in place."""
    from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

    out = _out(x, kept)
    with torch.inference_mode():
        fused_recurrent_kda_fwd(
            *_rows(x), x.gate_input[None], x.beta_logit[None], A_log=x.a_log,
            dt_bias=x.dt_bias.view(-1), initial_state=x.pool, scale=D**-0.5,
            inplace_final_state=True, state_v_first=True, cu_seqlens=x.cu_seqlens,
            ssm_state_indices=x.slots, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, out=out[None],
        )  # fmt: skip
    return out, None


def flashinfer_decode(x: Inputs, kept: dict[str, Any]) -> Result:
    """FlashInfer's step over a pool with V rows and K columns, gates inside, in place."""
    from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose

    out = _out(x, kept)
    q, k, v, a, b, o = _requests(x.q, x.k, x.v, x.gate_input, x.beta_logit, out)
    gated_delta_rule_decode_pretranspose(
        q, k, v, None, x.a_log, a, x.dt_bias, b, D**-0.5, o, True, x.pool, x.slots
    )
    return out, None


def vllm_packed(x: Inputs, kept: dict[str, Any]) -> Result:
    """vLLM's decode from the packed row of the convolution, in place."""
    m = vllm_ops("fused_recurrent")
    out = _out(x, kept)[:, None]
    m.fused_recurrent_gated_delta_rule_packed_decode(
        x.packed, x.gate_input, x.beta_logit, x.a_log, x.dt_bias, D**-0.5, x.pool, out, x.slots,
        True,
    )  # fmt: skip
    return out[:, 0], None


def vllm_sigmoid(x: Inputs, kept: dict[str, Any]) -> Result:
    """vLLM's decode with gates in the kernel, in place; both operators."""
    m = vllm_ops("fused_sigmoid_gating")
    o, _ = m.fused_sigmoid_gating_delta_rule_update(
        x.a_log, x.gate_input, x.beta_logit, x.dt_bias, *_rows(x), initial_state=x.pool,
        inplace_final_state=True, cu_seqlens=x.cu_seqlens_int32, ssm_state_indices=x.slots,
        use_qk_l2norm_in_kernel=True, is_kda=x.gate != "scalar",
    )  # fmt: skip
    return o[0], None


def vllm_recurrent(x: Inputs, kept: dict[str, Any]) -> Result:
    """vLLM's recurrent rule with gates computed outside the timed region, in place."""
    g, beta = _once(kept, "gates", lambda: (x.log_decay()[None], x.beta()[None]))
    starts = x.cu_seqlens_int32
    if x.gate == "scalar":
        o, _ = vllm_ops("fused_recurrent").fused_recurrent_gated_delta_rule_fwd(
            *_rows(x), g, beta, D**-0.5, x.pool, True, starts, x.slots, None, True
        )
    else:
        o, _ = vllm_ops("kda").fused_recurrent_kda(
            *_rows(x), g, beta, initial_state=x.pool, cu_seqlens=starts, ssm_state_indices=x.slots
        )
    return o[0], None


@triton.jit
def _read_modify_write(pool, slots, width, BLOCK: tl.constexpr, KEEP: tl.constexpr):
    slot = tl.load(slots + tl.program_id(1)).to(tl.int64)
    at = pool + slot * width + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(at, eviction_policy=KEEP).to(tl.float32) * 1.0009765625
    tl.store(at, x.to(pool.dtype.element_ty), eviction_policy=KEEP)


CEILING_TILES = tuple(
    (*tile, keep)
    for tile in ((4096, 8), (2048, 4), (1024, 4), (1024, 1))
    for keep in ("", "evict_first")
)
"""(elements, warps, eviction policy) of a program; the fastest is the ceiling."""


def ceiling(x: Inputs, block: int, warps: int, keep: str) -> None:
    """Read and write the same states in place and do nothing else: the ceiling of decode."""
    width = x.pool[0].numel()
    grid = (width // block, len(x.slots))
    _read_modify_write[grid](x.pool, x.slots, width, block, keep, num_warps=warps)


SCALAR, KIMI, BOUNDED = ("scalar",), ("channel", "bounded"), ("bounded",)
BOTH_STATES = (torch.float32, torch.bfloat16)

PREFILL = (
    Peer("ours", ours_prefill, SCALAR + KIMI),
    Peer("fla", fla_prefill, SCALAR, ("fla",)),
    Peer("fla", fla_kimi_prefill, KIMI, ("fla",)),
    Peer("vllm", vllm_prefill, SCALAR + KIMI, ("vllm",)),
    Peer("flashinfer", flashinfer_prefill, SCALAR, ("flashinfer.gdn_prefill",)),
    Peer("flashqla", flashqla_prefill, SCALAR, ("flash_qla",)),
    Peer("flashkda", flashkda_prefill, BOUNDED, ("flash_kda",)),
)
DECODE = (
    Peer("ours", ours_decode, SCALAR + KIMI, (), BOTH_STATES),
    Peer("fla", fla_decode, (*SCALAR, "channel"), ("fla",)),
    Peer("fla pool", fla_kimi_pool, ("channel",), ("fla",)),
    Peer("vllm packed", vllm_packed, SCALAR, ("vllm",)),
    Peer("vllm sigmoid", vllm_sigmoid, (*SCALAR, "channel"), ("vllm",)),
    Peer("vllm recurrent", vllm_recurrent, (*SCALAR, "channel"), ("vllm",)),
    Peer(
        "flashinfer", flashinfer_decode, SCALAR, ("flashinfer.gdn_decode", "cutlass"), BOTH_STATES
    ),
)
