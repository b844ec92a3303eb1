"""One recurrent layer at its real shape: inputs, both kernels, fp64 reference, bytes and FLOP."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hybridplan.config.spec import Mixer
from hybridplan.ledger.work.shapes import RecurrentShape, recurrent_shape

PREFILL_TOLERANCE = 1e-2
"""Relative error of outputs and states of a prefill, whose products take bf16 operands."""

STEP_TOLERANCE = 5e-3
"""The same of a decode step with bf16 outputs; with fp32 ones STATE_TOLERANCE."""

STATE_TOLERANCE = 1e-5
"""Relative error of a state that fp32 steps leave."""


@dataclass(frozen=True)
class Inputs:
    """Packed rows of one call: q, k [T, H, K], v [T, HV, V] are slices of ``row`` [T, channels]."""

    row: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    gates: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """Rows."""
        return int(self.row.shape[0])


class LinearLayer(RecurrentShape):
    """A recurrent mixer with its inputs and kernels; state [HV, V, K] per request."""

    @property
    def operator(self) -> str:
        """The kernels' folder."""
        return {"gdn": "gated_delta", "kda": "kimi_delta"}.get(self.kind, "scalar_decay")

    def pool(self, slots: int, device: Any, dtype: Any = torch.float32) -> Tensor:
        """A pool of its own, filled with states of unit size over sqrt(K)."""
        made = torch.randn((slots, *self.state_shape), device=device) * self.K**-0.5
        return made.to(dtype)

    def inputs(self, tokens: int, device: Any, seed: int, dtype: Any = torch.bfloat16) -> Inputs:
        """Random rows with gates as trained models have them (decay mostly 0.4 to 0.999)."""
        generator = torch.Generator(device=device).manual_seed(seed)
        draw: Callable[..., Tensor] = partial(
            torch.randn, generator=generator, device=device, dtype=torch.float32
        )
        row = draw((tokens, self.channels)).to(dtype)
        return self.of_row(row, self._gates(tokens, draw, device, dtype))

    def of_row(self, row: Tensor, gates: Mapping[str, Any]) -> Inputs:
        """Inputs whose q, k and v lie side by side in ``row``."""
        T = row.shape[0]
        wide = self.H * self.K
        q = row[:, :wide].view(T, self.H, self.K)
        k = row[:, wide : 2 * wide].view(T, self.H, self.K)
        v = row[:, 2 * wide :].view(T, self.HV, self.V)
        return Inputs(row, q, k, v, gates)

    def cut(self, x: Inputs, first: int, end: int) -> Inputs:
        """Rows [first, end) as inputs of their own."""
        gates = {
            name: value[first:end] if name in ("gate_input", "beta", "dt") else value
            for name, value in x.gates.items()
        }
        return self.of_row(x.row[first:end], gates)

    def _gates(
        self, tokens: int, draw: Callable[..., Tensor], device: Any, dtype: Any
    ) -> dict[str, Any]:
        heads = torch.arange(1, self.HV + 1, device=device, dtype=torch.float32)
        if self.kind == "lightning":
            return {"log_decay": -torch.exp2(-8 * heads / self.HV)}
        a_log = torch.log(1 + 15 * (heads - 0.5) / self.HV)
        steps = torch.exp(torch.linspace(-6.9, -2.3, self.HV, device=device))
        bias = torch.log(torch.expm1(steps))
        if self.kind == "mamba2":
            return {"dt": draw((tokens, self.HV)).to(dtype), "a_log": a_log, "dt_bias": bias}
        wide = (tokens, self.HV, self.K) if self.kind == "kda" else (tokens, self.HV)
        if self.kind == "kda":
            bias = bias[:, None].expand(self.HV, self.K).contiguous()
        return {
            "gate_input": draw(wide).to(dtype),
            "a_log": a_log,
            "dt_bias": bias,
            "beta": draw((tokens, self.HV)).to(dtype),
        }

    def prefill(
        self, x: Inputs, pool: Tensor, slots: Tensor, cu_seqlens: Sequence[int] | None = None,
        **options: Any,
    ) -> Tensor:  # fmt: skip
        """The chunk kernel; ``options`` as its keywords (read_slots, exports, segment_chunks)."""
        if self.delta:
            kernel = _delta(self.kind, "chunk").chunk_prefill
            return kernel(
                x.q, x.k, x.v, x.gates["beta"], pool, slots, cu_seqlens,
                **self._delta_gates(x), **options,
            )  # fmt: skip
        from hybridplan.kernels.scalar_decay.chunk import chunk_prefill

        return chunk_prefill(
            x.q, x.k, x.v, _scalar_gate(x.gates), pool, slots, cu_seqlens,
            scale=self.K**-0.5, **options,
        )  # fmt: skip

    def step(self, x: Inputs, pool: Tensor, slots: Tensor, **options: Any) -> Tensor:
        """The decode kernel; ``slots`` [B] or [B, D]."""
        if self.delta:
            kernel = _delta(self.kind, "recurrent").recurrent_step
            return kernel(
                x.q, x.k, x.v, x.gates["beta"], pool, slots, **self._delta_gates(x), **options
            )
        from hybridplan.kernels.scalar_decay.recurrent import recurrent_step

        return recurrent_step(
            x.q, x.k, x.v, _scalar_gate(x.gates), pool, slots, scale=self.K**-0.5, **options
        )

    def _delta_gates(self, x: Inputs) -> dict[str, Any]:
        from hybridplan.kernels.common.gates import Gate

        names = ("gate_input", "a_log", "dt_bias")
        given = {name: x.gates[name] for name in names}
        gate = Gate.BOUNDED if self.bounded else Gate.SOFTPLUS
        return {**given, "gate": gate, "beta_is_logit": True}

    def log_decay(self, x: Inputs) -> Tensor:
        """Natural-log decay in fp64: [T, HV], with one value a channel for KDA [T, HV, K]."""
        if self.kind == "lightning":
            return x.gates["log_decay"].double().expand(x.tokens, self.HV)
        raw = x.gates["dt" if self.kind == "mamba2" else "gate_input"].double()
        bias, rate = x.gates["dt_bias"].double(), x.gates["a_log"].double().exp()
        if self.kind == "kda":
            rate = rate[:, None]
        if self.bounded:
            return -5.0 * torch.sigmoid(rate * (raw + bias))
        return -rate * torch.nn.functional.softplus(raw + bias)

    def reference(
        self, x: Inputs, lengths: Sequence[int], initial: Tensor, *, by_chunks: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Outputs [T, HV, V] and final states [N, HV, V, K] in fp64."""
        g = self.log_decay(x)
        if self.delta:
            beta = x.gates["beta"].double().sigmoid()
            module = _delta(self.kind, "reference")
            run = module.chunk_reference if by_chunks else module.recurrent_reference
            outputs, states = run(x.q, x.k, x.v, g, beta, lengths, initial)
            return outputs, states
        from hybridplan.kernels.scalar_decay import reference

        starts = (0, *itertools.accumulate(lengths))
        weight = None
        if self.kind == "mamba2":
            raw = x.gates["dt"].double() + x.gates["dt_bias"].double()
            weight = torch.nn.functional.softplus(raw)
        run = reference.chunk_reference if by_chunks else reference.recurrent_reference
        done = run(x.q, x.k, x.v, g, initial, starts, weight=weight, scale=self.K**-0.5)
        return done[0], done[1]


def _delta(kind: str, module: str) -> Any:
    from importlib import import_module

    folder = {"gdn": "gated_delta", "kda": "kimi_delta"}[kind]
    return import_module(f"hybridplan.kernels.{folder}.{module}")


def _scalar_gate(gates: Mapping[str, Any]) -> Any:
    from hybridplan.kernels.scalar_decay.gates import HeadDecay, MambaStep

    if "log_decay" in gates:
        return HeadDecay(gates["log_decay"])
    return MambaStep(gates["dt"], gates["a_log"], gates["dt_bias"])


def linear_layer(mixer: Mixer) -> LinearLayer | None:
    """The layer as our kernels run it; None for a mixer without a kernel here."""
    shape = recurrent_shape(mixer)
    return None if shape is None else LinearLayer(*astuple(shape))


def relative_error(x: Tensor, reference: Tensor) -> float:
    """Norm of the difference over the norm of the reference; inf where x is not finite."""
    if not bool(x.isfinite().all()):
        return float("inf")
    reference = reference.double()
    return float((x.double() - reference).norm() / reference.norm().clamp_min(1e-300))
