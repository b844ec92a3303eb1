"""Correctness before time: each kernel against fp64 at the model's own head shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from hybridplan.measure.attention import AttentionLayer
from hybridplan.measure.linear import (
    PREFILL_TOLERANCE,
    STATE_TOLERANCE,
    STEP_TOLERANCE,
    LinearLayer,
    relative_error,
)
from hybridplan.measure.result import Check, compared

HOW = "relative error against the fp64 reference on random inputs, outputs poisoned before"


class GateError(Exception):
    """A kernel's result is wrong, so what it would take has no meaning."""


@dataclass
class Gates:
    """Runs each gate once. ``rows`` become checks of the family "kernels"."""

    device: Any
    rows: dict[str, Check] = field(default_factory=dict)

    def require(self, name: str, errors: Callable[[], dict[str, tuple[float, float]]]) -> None:
        """Run the gate of that name unless it has run. Raises GateError where it does not pass."""
        if name not in self.rows:
            found = errors()
            worst = max(found, key=lambda part: found[part][0] / found[part][1])
            error, bound = found[worst]
            parts = ", ".join(f"{part} {value:.1e}" for part, (value, _) in found.items())
            self.rows[name] = compared(
                "kernels", name, f"{name} agrees with fp64", bound, error, "relative error", 0.0,
                HOW, sense="at most", notes=(parts,),
            )  # fmt: skip
        row = self.rows[name]
        if row.verdict != "within":
            raise GateError(
                f"the correctness gate of {name} failed with error {row.measured}, bound "
                f"{row.predicted}; its time means nothing and is not given"
            )

    def linear(self, layer: LinearLayer) -> None:
        """Prefill and decode of a recurrent layer."""
        self.require(f"{layer.operator} prefill", lambda: self._prefill(layer))
        self.require(f"{layer.operator} decode", lambda: self._step(layer))

    def _prefill(self, layer: LinearLayer) -> dict[str, tuple[float, float]]:
        lengths = (97, 35)
        x = layer.inputs(sum(lengths), self.device, 11)
        pool = layer.pool(4, self.device)
        initial = pool[:2].clone()
        pool[2:] = float("nan")
        slots = torch.tensor([2, 3], dtype=torch.int32, device=self.device)
        reads = torch.tensor([0, 1], dtype=torch.int32, device=self.device)
        out = torch.full_like(x.v.contiguous(), float("nan"))
        layer.prefill(x, pool, slots, (0, lengths[0], sum(lengths)), read_slots=reads, out=out)
        want, states = layer.reference(x, lengths, initial)
        return {
            "output": (relative_error(out, want), PREFILL_TOLERANCE),
            "state": (relative_error(pool[2:], states), PREFILL_TOLERANCE),
        }

    def _step(self, layer: LinearLayer) -> dict[str, tuple[float, float]]:
        requests = 3
        x = layer.inputs(requests, self.device, 12)
        pool = layer.pool(requests + 1, self.device)
        initial = pool[:requests].clone()
        slots = torch.arange(requests, dtype=torch.int32, device=self.device)
        out = torch.full_like(x.v.contiguous(), float("nan"))
        layer.step(x, pool, slots, out=out)
        want, states = layer.reference(x, (1,) * requests, initial)
        return {
            "output": (relative_error(out, want), STEP_TOLERANCE),
            "state": (relative_error(pool[:requests], states), STATE_TOLERANCE),
        }

    def conv(self, channels: int, taps: int) -> None:
        """Prefill and decode of the short convolution."""
        self.require("short_conv", lambda: self._conv(channels, taps))

    def _conv(self, channels: int, taps: int) -> dict[str, tuple[float, float]]:
        from hybridplan.kernels.short_conv.chunk import chunk_prefill
        from hybridplan.kernels.short_conv.recurrent import recurrent_step
        from hybridplan.kernels.short_conv.reference import conv_reference

        lengths, device = (70, 5), self.device
        x = torch.randn((sum(lengths), channels), device=device, dtype=torch.bfloat16)
        weight = torch.randn((channels, taps), device=device, dtype=torch.bfloat16)
        pool = torch.randn((2, taps - 1, channels), device=device, dtype=torch.bfloat16)
        slots = torch.arange(2, dtype=torch.int32, device=device)
        starts = (0, lengths[0], sum(lengths))
        want, windows, _ = conv_reference(x, weight, None, pool.clone(), starts)
        out = torch.full_like(x, float("nan"))
        chunk_prefill(x, weight, None, pool, slots, starts, out=out)
        first = relative_error(out, want), relative_error(pool, windows)
        step = torch.randn((2, channels), device=device, dtype=torch.bfloat16)
        want, windows, _ = conv_reference(step, weight, None, pool.clone(), (0, 1, 2))
        out = torch.full_like(step, float("nan"))
        recurrent_step(step, weight, None, pool, slots, out=out)
        second = relative_error(out, want), relative_error(pool, windows)
        return {
            "prefill": (first[0], STEP_TOLERANCE),
            "decode": (second[0], STEP_TOLERANCE),
            "windows": (max(first[1], second[1]), STATE_TOLERANCE),
        }

    def attention(self, layer: AttentionLayer) -> None:
        """Decode over pages in random order."""
        self.require("paged_attention decode", lambda: self._decode(layer))

    def _decode(self, layer: AttentionLayer) -> dict[str, tuple[float, float]]:
        device, page = self.device, 48
        caches = layer.caches(16, page, device, torch.bfloat16)
        order = torch.randperm(16, device=device, dtype=torch.int32)
        table = order.reshape(2, 8).contiguous()
        contexts = torch.tensor([301, 65], dtype=torch.int32, device=device)
        q = layer.queries(2, device)
        out = torch.full((2, layer.HQ, layer.V), float("nan"), device=device, dtype=q.dtype)
        layer.decode(q, caches, table, contexts, out=out)
        want = layer.reference(q, caches, table, contexts)
        return {"output": (relative_error(out, want), STEP_TOLERANCE)}

    def attention_prefill(self, layer: AttentionLayer) -> None:
        """Causal attention behind nothing, keys and values in pages."""
        self.require("paged_attention prefill", lambda: self._prefill_attention(layer))

    def _prefill_attention(self, layer: AttentionLayer) -> dict[str, tuple[float, float]]:
        from hybridplan.kernels.paged_attention.chunk import prefill_gqa

        device, page, tokens = self.device, 16, 70
        pages = -(-tokens // page)
        keys, values = layer.caches(pages, page, device, torch.bfloat16)
        order = torch.randperm(pages, device=device, dtype=torch.int32)
        q = layer.queries(tokens, device)
        out = prefill_gqa(q, keys, values, order[None], [tokens], [0, tokens])
        ratio = layer.HQ // layer.HKV
        k, v = (
            x[order.long()].flatten(0, 1)[:tokens].double().repeat_interleave(ratio, 1)
            for x in (keys, values)
        )
        score = torch.einsum("ihd,jhd->hij", q.double(), k) * layer.D**-0.5
        later = torch.ones((tokens, tokens), device=device, dtype=torch.bool).triu(1)
        weight = score.masked_fill(later, float("-inf")).softmax(-1)
        want = torch.einsum("hij,jhv->ihv", weight, v)
        return {"output": (relative_error(out, want), PREFILL_TOLERANCE)}
