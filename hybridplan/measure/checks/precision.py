"""Check 8: how far states kept in 16 bits drift, and why rounding once is harmless."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hybridplan.measure.context import Context, kernel_missing
from hybridplan.measure.linear import STATE_TOLERANCE, Inputs, LinearLayer, relative_error
from hybridplan.measure.result import Check, compared, skipped

FAMILY = "state precision"
CHECKPOINT_TOKENS = 2048
ROUNDING = {"float16": 0.21 * 2**-10, "bfloat16": 0.21 * 2**-7}
"""Root mean square of a relative rounding error, mantissas spread evenly in the logarithm."""


def run(context: Context) -> list[Check]:
    """One sequence, token by token, through the decode kernel with pools of three dtypes."""
    layer = context.linear
    if layer is None:
        return [skipped(FAMILY, "state precision", "drift", kernel_missing(context.spec))]
    context.gates.linear(layer)
    tokens = context.pick(65_536, 8192, 24)
    piece = context.pick(512, 512, 24)
    every = min(CHECKPOINT_TOKENS, tokens // 2)
    runs = {
        "fp32 pool": ("float32", 0),
        "fp16 pool": ("float16", 0),
        "bf16 pool": ("bfloat16", 0),
        "bf16 checkpoints": ("float32", every),
    }
    if not context.gpu:
        del runs["bf16 pool"]
    walk = _Walk(context, layer, piece)
    got = {name: walk.run(tokens, dtype, rounded) for name, (dtype, rounded) in runs.items()}
    want_out, want, kept = walk.reference(tokens, 1)
    kept_rarely = walk.reference(tokens, every)[2]
    bounds = {
        "fp32 pool": STATE_TOLERANCE,
        "fp16 pool": ROUNDING["float16"] * _growth(want, kept),
        "bf16 pool": ROUNDING["bfloat16"] * _growth(want, kept),
        "bf16 checkpoints": ROUNDING["bfloat16"] * _growth(want, kept_rarely),
    }
    found = []
    errors: dict[str, float] = {}
    for name, (out, state) in got.items():
        errors[name] = relative_error(state, want)
        found.append(
            compared(FAMILY, name, f"error of the state after {tokens:,} tokens", bounds[name],
                     errors[name], "relative error", 0.5, _how(name), sense="at most",
                     notes=(f"error of the last outputs {relative_error(out, want_out):.1e}",))
        )  # fmt: skip
    if not context.gpu:
        why = "Triton's interpreter cuts bf16 off where a GPU rounds, so its drift is another"
        return [*found, skipped(FAMILY, "bf16 pool", "error of the state", why)]
    found.append(
        compared(FAMILY, "bf16 against fp16", "error of the bf16 pool over that of the fp16 pool",
                 8, errors["bf16 pool"] / errors["fp16 pool"], "ratio", 0.35,
                 "three bits of mantissa fewer")
    )  # fmt: skip
    return found


def _how(name: str) -> str:
    if name == "fp32 pool":
        return "the decode kernel's own tolerance"
    return (
        "root mean square rounding error, old ones shrunk by the head's decay; half as much again "
        "for heads whose norm varies"
    )


def _growth(state: Tensor, each: Tensor) -> float:
    """Over a single rounding: heads weighted by the square of their norm, errors as squares."""
    weight = state.double().square().sum((-1, -2))
    return math.sqrt(float((weight * each).sum() / weight.sum()))


class _Walk:
    """Runs one sequence in pieces of equal length; on CUDA each piece is one graph replay."""

    def __init__(self, context: Context, layer: LinearLayer, piece: int) -> None:
        self.context, self.layer, self.piece = context, layer, piece
        self.static = self._inputs(0)

    def _inputs(self, number: int) -> Inputs:
        return self.layer.inputs(self.piece, self.context.device, 1000 + number, torch.float32)

    def _load(self, number: int) -> None:
        fresh = self._inputs(number)
        self.static.row.copy_(fresh.row)
        for name, value in fresh.gates.items():
            self.static.gates[name].copy_(value)

    def run(self, tokens: int, dtype: str, round_every: int) -> tuple[Tensor, Tensor]:
        """Outputs of the last piece and the final state [HV, V, K]."""
        device, layer = self.context.device, self.layer
        pool = torch.zeros((1, *layer.state_shape), dtype=getattr(torch, dtype), device=device)
        slot = torch.zeros(1, dtype=torch.int32, device=device)
        out = torch.zeros(self.static.v.shape, dtype=torch.float32, device=device)
        rows = [self.layer.cut(self.static, t, t + 1) for t in range(self.piece)]

        def walk() -> None:
            for t, row in enumerate(rows):
                layer.step(row, pool, slot, out=out[t : t + 1], trust_ids=True)
                if round_every and round_every <= self.piece and (t + 1) % round_every == 0:
                    pool.copy_(pool.bfloat16())

        replay: Any = walk
        if device.type == "cuda":
            layer.step(rows[0], pool, slot, out=out[:1])
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                walk()
            pool.zero_()
            replay = graph.replay
        for number in range(tokens // self.piece):
            self._load(number)
            replay()
            done = (number + 1) * self.piece
            if round_every > self.piece and done % round_every == 0:
                pool.copy_(pool.bfloat16())
        return out, pool[0].clone()

    def reference(self, tokens: int, round_every: int) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs of the last piece and the final state in fp64, and what is left of roundings.

        That is, per head, the sum of the squares of what decay leaves of each rounding, one every
        ``round_every`` tokens.
        """
        layer = self.layer
        state = torch.zeros(
            (1, *layer.state_shape), dtype=torch.float64, device=self.context.device
        )
        out = None
        left = torch.zeros(layer.HV, dtype=torch.float64, device=self.context.device)
        for number in range(tokens // self.piece):
            x = self._inputs(number)
            out, state = layer.reference(x, (self.piece,), state, by_chunks=True)
            decay = layer.log_decay(x)
            decay = 2 * (decay.mean(-1) if decay.dim() == 3 else decay)
            after = decay.sum(0) - decay.cumsum(0)
            first = number * self.piece
            ends = torch.arange(first + 1, first + self.piece + 1, device=decay.device)
            rounded = (ends % round_every == 0).double()[:, None]
            left = left * decay.sum(0).exp() + (after.exp() * rounded).sum(0)
        assert out is not None
        return out, state[0], left
