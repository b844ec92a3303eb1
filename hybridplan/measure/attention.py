"""One attention layer at its real shape, over pages as the plan lays them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridplan.config.spec import Attention, LatentAttention, ModelSpec


@dataclass(frozen=True)
class AttentionLayer:
    """Grouped-query attention, or MLA over its latent (``rope`` channels beside ``D``)."""

    HQ: int
    HKV: int
    D: int
    V: int
    rope: int = 0
    latent: bool = False
    nope: int = 0

    @property
    def kv_bytes_per_token(self) -> int:
        """bf16 keys and values, or one latent."""
        width = self.D + self.rope if self.latent else self.HKV * (self.D + self.V)
        return 2 * width

    def decode_bytes(self, contexts: int, requests: int) -> int:
        """KV of all contexts together, q read and outputs written."""
        return contexts * self.kv_bytes_per_token + 2 * requests * self.HQ * (
            self.D + self.rope + self.V
        )

    def decode_flop(self, contexts: int) -> float:
        """Scores and weighted values."""
        return 2.0 * contexts * self.HQ * (self.D + self.rope + self.V)

    def prefill_flop(self, tokens: int) -> float:
        """Causal: half of the square."""
        return 1.0 * tokens * tokens * self.HQ * (self.D + self.rope + self.V)

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


def attention_layer(mixer: object) -> AttentionLayer | None:
    """The layer as our kernels run it; None for a mixer without a kernel here."""
    if isinstance(mixer, Attention) and mixer.kv_source_layer is None:
        if max(mixer.key_dim, mixer.value_dim) > 256:
            return None
        return AttentionLayer(mixer.heads, mixer.kv_heads, mixer.key_dim, mixer.value_dim)
    if isinstance(mixer, LatentAttention) and mixer.kv_lora_rank <= 512:
        rank = mixer.kv_lora_rank
        return AttentionLayer(mixer.heads, 1, rank, rank, mixer.rope_dim, True, mixer.nope_dim)
    return None


def first_attention(spec: ModelSpec) -> AttentionLayer | None:
    """The model's first attention that reads its whole context, else its first one."""
    mixers = [m for layer in spec.layers for m in layer.mixers]
    full = [m for m in mixers if not (isinstance(m, Attention) and m.window is not None)]
    found = (attention_layer(m) for m in (*full, *mixers))
    return next((layer for layer in found if layer is not None), None)
