"""Our kernels in place of transformers' gated delta rule and short convolution.

Classes of the Qwen3-Next family call four functions of their module by name; each is swapped for
one with the same arguments and results. The state keeps transformers' layout [B, HV, K, V] outside.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hybridplan.errors import InputError
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.gated_delta import chunk, recurrent
from hybridplan.kernels.short_conv import chunk as conv_chunk
from hybridplan.kernels.short_conv import recurrent as conv_recurrent
from hybridplan.measure.hf import replaced

_NAMES = (
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "causal_conv1d_fn",
    "causal_conv1d_update",
)


@dataclass(frozen=True)
class Call:
    """One prefill of one layer as the kernel saw it: packed rows, states [B, HV, V, K]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    lengths: tuple[int, ...]
    initial: Tensor
    out: Tensor
    final: Tensor


@dataclass
class Swap:
    """``by_token`` runs prefills with the decode kernel, whose arithmetic is fp32 throughout.

    ``calls`` keeps the first ``most`` prefills for a comparison.
    """

    by_token: bool = False
    most: int = 3
    calls: list[Call] = field(default_factory=list)

    def delta(
        self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor,
        chunk_size: int = 64, initial_state: Tensor | None = None,
        output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, **_: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Both rules: several tokens through the chunk kernel, one through the decode kernel."""
        B, T = query.shape[:2]
        q, k, v = (x.flatten(0, 1).contiguous() for x in (query, key, value))
        gates = (g.flatten(0, 1).float().contiguous(), beta.flatten(0, 1).contiguous())
        HV, V = v.shape[1:]
        shape = (B, HV, V, k.shape[2])
        pool = torch.zeros(shape, dtype=torch.float32, device=v.device)
        if initial_state is not None:
            pool.copy_(initial_state.transpose(2, 3))
        initial = pool.clone()
        slots = torch.arange(B, dtype=torch.int32, device=v.device)
        options: dict[str, Any] = {"gate": Gate.LOG, "l2norm": use_qk_l2norm_in_kernel}
        if T == 1 or self.by_token:
            rows = [torch.arange(B, device=v.device) * T + t for t in range(T)]
            out = torch.empty_like(v)
            for at in rows:
                out[at] = recurrent.recurrent_step(
                    q[at], k[at], v[at], gates[1][at], pool, slots, gate_input=gates[0][at],
                    **options,
                )  # fmt: skip
        else:
            starts = tuple(T * n for n in range(B + 1))
            out = chunk.chunk_prefill(
                q, k, v, gates[1], pool, slots, starts, gate_input=gates[0], **options
            )
        if T > 1 and len(self.calls) < self.most:
            call = Call(q, k, v, gates[0], gates[1], (T,) * B, initial, out, pool.clone())
            self.calls.append(call)
        final = pool.transpose(2, 3).contiguous() if output_final_state else None
        return out.view(B, T, HV, V), final

    def conv(
        self, hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None,
        activation: str | None = None, **_: Any,
    ) -> Tensor:  # fmt: skip
        """The convolution of whole sequences [B, C, T] behind windows of zeros."""
        B, C, T = hidden_states.shape
        x = hidden_states.transpose(1, 2).reshape(B * T, C).contiguous()
        pool = torch.zeros((B, weight.shape[1] - 1, C), dtype=x.dtype, device=x.device)
        slots = torch.arange(B, dtype=torch.int32, device=x.device)
        starts = tuple(itertools.accumulate([T] * B, initial=0))
        y = conv_chunk.chunk_prefill(
            x, weight.contiguous(), bias, pool, slots, starts, activation=_silu(activation)
        )
        return y.view(B, T, C).transpose(1, 2)

    def conv_update(
        self, hidden_states: Tensor, conv_state: Tensor, weight: Tensor,
        bias: Tensor | None = None, activation: str | None = None,
    ) -> Tensor:  # fmt: skip
        """One token [B, C, 1]; ``conv_state`` [B, C, columns] moves on in place."""
        B, C, _ = hidden_states.shape
        window = weight.shape[1] - 1
        pool = conv_state[:, :, -window:].transpose(1, 2).contiguous()
        slots = torch.arange(B, dtype=torch.int32, device=pool.device)
        y = conv_recurrent.recurrent_step(
            hidden_states[:, :, 0].contiguous(), weight.contiguous(), bias, pool, slots,
            activation=_silu(activation),
        )  # fmt: skip
        kept = conv_state[:, :, 1 : conv_state.shape[2] - window + 1]
        conv_state.copy_(torch.cat([kept, pool.transpose(1, 2)], dim=2))
        return y.view(B, C, 1)


def _silu(activation: str | None) -> bool:
    if activation not in (None, "silu", "swish"):
        raise InputError(f"the convolution's activation {activation!r} is not silu")
    return activation is not None


@contextmanager
def swapped(module: Any, swap: Swap) -> Iterator[Swap]:
    """Run ``module`` with our kernels inside the block.

    Raises InputError where its classes do not call the four functions.
    """
    home = sys.modules[type(module).__module__]
    missing = [name for name in _NAMES if not hasattr(home, name)]
    if missing:
        raise InputError(
            f"{home.__name__.split('.')[-1]} has no {missing[0]}, so our kernels cannot take its "
            "place"
        )
    ours: tuple[Callable[..., Any], ...] = (swap.delta, swap.delta, swap.conv, swap.conv_update)
    with replaced(home, dict(zip(_NAMES, ours, strict=True))):
        yield swap
