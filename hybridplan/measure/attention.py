"""One attention layer at its real shape, over pages as the plan lays them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from hybridplan.config.spec import Attention, Mixer, ModelSpec
from hybridplan.ledger.work.shapes import AttentionShape, attention_shape


class AttentionLayer(AttentionShape):
    """Grouped-query attention, or MLA over its latent (``rope`` channels beside ``D``)."""

    def caches(self, blocks: int, page_tokens: int, device: Any, dtype: Any) -> tuple[Tensor, ...]:
        """Pools of its own: keys and values, or the latent."""
        if self.latent:
            shape: tuple[int, ...] = (blocks, page_tokens, self.D + self.rope)
            return (torch.randn(shape, device=device, dtype=dtype),)
        return tuple(
            torch.randn((blocks, page_tokens, self.HKV, width), device=device, dtype=dtype)
            for width in (self.D, self.V)
        )

    def queries(self, rows: int, device: Any, dtype: Any = torch.bfloat16) -> Tensor:
        """Random [rows, HQ, width]."""
        return torch.randn((rows, self.HQ, self.D + self.rope), device=device, dtype=dtype)

    def decode(
        self, q: Tensor, caches: Sequence[Tensor], table: Tensor, contexts: Tensor, **options: Any
    ) -> Tensor:
        """One token per request: [B, HQ, V]."""
        from hybridplan.kernels.paged_attention import recurrent

        if self.latent:
            width = (self.nope or self.D) + self.rope
            return recurrent.decode_mla(
                q, caches[0], table, contexts, latent_width=self.D, scale=width**-0.5, **options
            )
        return recurrent.decode_gqa(q, caches[0], caches[1], table, contexts, **options)

    def reference(
        self, q: Tensor, caches: Sequence[Tensor], table: Tensor, contexts: Tensor
    ) -> Tensor:
        """The same in fp64."""
        from hybridplan.kernels.paged_attention import reference

        if self.latent:
            width = (self.nope or self.D) + self.rope
            return reference.mla_decode_reference(
                q, caches[0], table, contexts, latent_width=self.D, scale=width**-0.5
            )
        scale = self.D**-0.5
        return reference.gqa_decode_reference(q, caches[0], caches[1], table, contexts, scale=scale)


def attention_layer(mixer: Mixer) -> AttentionLayer | None:
    """The layer as our kernels run it; None for a mixer without a kernel here."""
    shape = attention_shape(mixer)
    if shape is None or (shape.latent and shape.D > 512):
        return None
    if isinstance(mixer, Attention) and (
        mixer.kv_source_layer is not None or max(mixer.key_dim, mixer.value_dim) > 256
    ):
        return None
    return AttentionLayer(*astuple(shape))


def first_attention(spec: ModelSpec) -> AttentionLayer | None:
    """The model's first attention that reads its whole context, else its first one."""
    mixers = [m for layer in spec.layers for m in layer.mixers]
    full = [m for m in mixers if not (isinstance(m, Attention) and m.window is not None)]
    found = (attention_layer(m) for m in (*full, *mixers))
    return next((layer for layer in found if layer is not None), None)
