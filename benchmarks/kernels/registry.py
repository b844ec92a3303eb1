"""Inputs of the delta-rule comparison, declared once: every library gets the same tensors.

q, k, v, gate inputs and beta logits are bf16 normals. Log decay is -exp(A_log) softplus(a +
dt_bias) with A ~ U(1, 16) and softplus(dt_bias) log-uniform in [1e-3, 0.1], the initialisation of
the released models; with the bounded gate it is -5 sigmoid(exp(A_log) (a + dt_bias)). The first
state is 0.1 times a normal, fp32, [V, K] with K contiguous.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import torch

D = 128
LOWER_BOUND = -5.0
HEADS = {
    "0.8B": (16, 16),
    "next": (16, 32),
    "27B": (16, 48),
    "kimi": (32, 32),
    "kimi bounded": (32, 32),
}
"""Query/key heads and value heads of Qwen3.5-0.8B, Qwen3-Next, Qwen3.5-27B and Kimi-Linear."""

GATES = {"kimi": "channel", "kimi bounded": "bounded"}
"""A decay per channel, plain or bounded from below; the others have one decay a head: "scalar"."""
SEQUENCES: dict[str, tuple[int, ...]] = {
    "1x1k": (1024,),
    "1x4k": (4096,),
    "1x16k": (16384,),
    "8x4k": (4096,) * 8,
    "1x64k": (65536,),
    "32x1k": (1024,) * 32,
    "mixed": (8192, 4096, 4096, 2048, 2048, 1024, 1024, 1024, 777, 511, 300, 129, 64, 33, 7, 1),
}
DECODE_BATCHES = (1, 8, 32, 64, 128, 256, 512)


@functools.cache
def _boundaries(starts: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Made once, as an engine makes it once a step for all layers: libraries keep what they derive
    from it by its identity, and a graph cannot hold its copy to the device."""
    return torch.tensor(starts, dtype=dtype, device=device)


@dataclass
class Inputs:
    """One layer's inputs: tokens packed in T rows, states in slots of ``pool``."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    packed: torch.Tensor
    beta_logit: torch.Tensor
    gate_input: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    pool: torch.Tensor
    slots: torch.Tensor
    lengths: tuple[int, ...]
    gate: str = "scalar"

    @property
    def starts(self) -> tuple[int, ...]:
        """0 and the end of each sequence."""
        return (0, *itertools.accumulate(self.lengths))

    @property
    def cu_seqlens(self) -> torch.Tensor:
        """The same as an int64 tensor on the device, one for all inputs of these lengths."""
        return _boundaries(self.starts, torch.int64, self.q.device)

    @property
    def cu_seqlens_int32(self) -> torch.Tensor:
        """The same as an int32 tensor."""
        return _boundaries(self.starts, torch.int32, self.q.device)

    def log_decay(self) -> torch.Tensor:
        """fp32 log decay [T, HV] or [T, HV, K]."""
        return self._log_decay(torch.float32)

    def beta(self) -> torch.Tensor:
        """fp32 beta [T, HV]."""
        return self.beta_logit.float().sigmoid()

    def exact(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log decay [T, HV, K] or [T, HV, 1], and beta [T, HV], in fp64."""
        g = self._log_decay(torch.float64)
        return g if g.dim() == 3 else g[..., None], self.beta_logit.double().sigmoid()

    def _log_decay(self, dtype: torch.dtype) -> torch.Tensor:
        y = self.gate_input.to(dtype) + self.dt_bias.to(dtype)
        rate = self.a_log.to(dtype).exp()
        rate = rate[:, None] if y.dim() == 3 else rate
        if self.gate == "bounded":
            return LOWER_BOUND * torch.sigmoid(rate * y)
        return -rate * torch.nn.functional.softplus(y)


def make(
    heads: str,
    lengths: tuple[int, ...],
    device: torch.device,
    seed: int,
    pool: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    state: torch.dtype = torch.float32,
) -> Inputs:
    """Inputs for packed sequences; a decode batch is many sequences of one token.

    Slot 0 stays free: vLLM's kernels take it for padding.
    """
    H, HV = HEADS[heads]
    kind = GATES.get(heads, "scalar")
    gen = torch.Generator(device).manual_seed(seed)
    T, N = sum(lengths), len(lengths)
    gate = (HV,) if kind == "scalar" else (HV, D)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, generator=gen, device=device, dtype=dtype)

    packed = normal(T, (2 * H + HV) * D)
    q, k, v = (t.contiguous() for t in packed.split([H * D, H * D, HV * D], 1))
    step = torch.rand(gate, generator=gen, device=device)
    step = torch.exp(step * math.log(100) + math.log(1e-3))
    if pool is None:
        pool = (normal(N + 1, HV, D, D, dtype=torch.float32) * 0.1).to(state)
        slots = torch.arange(1, N + 1, dtype=torch.int32, device=device)
    assert slots is not None
    return Inputs(
        q.view(T, H, D),
        k.view(T, H, D),
        v.view(T, HV, D),
        packed,
        normal(T, HV),
        normal(T, *gate),
        torch.log(1 + 15 * torch.rand(HV, generator=gen, device=device)),
        step + torch.log(-torch.expm1(-step)),
        pool,
        slots,
        tuple(lengths),
        kind,
    )


def prefill_floor(heads: str, lengths: tuple[int, ...]) -> tuple[int, int]:
    """Fewest bytes and operations of one prefill call with chunks of 64 tokens."""
    H, HV = HEADS[heads]
    T, N, C = sum(lengths), len(lengths), 64
    chunks = sum(math.ceil(n / C) for n in lengths)
    scalar = heads not in GATES
    gate_bytes = 8 if scalar else 2 * D + 4
    least_bytes = 4 * T * (H + HV) * D + T * HV * gate_bytes + 8 * N * HV * D * D
    per_value_head = 6 * C * D * D + 4 * C * C * D + C**3 // 3
    pairs = H if scalar else HV
    return least_bytes, chunks * (HV * per_value_head + pairs * 4 * C * C * D)


def decode_bytes(heads: str, batch: int, state_bytes: int) -> tuple[int, int]:
    """Bytes of the states alone, and of one decode call: states twice and the small tensors."""
    H, HV = HEADS[heads]
    states = batch * HV * D * D * state_bytes
    small = batch * (4 * H * D + 4 * HV * D + HV * (2 * D if heads in GATES else 2) + 2 * HV)
    return states, 2 * states + small
