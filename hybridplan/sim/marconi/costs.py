"""What Marconi weighs: bytes of a state and of a token's KV, FLOPs of a prefill.

Any model can be given by its numbers. `ModelCosts.from_paper` uses the formulas of the paper's
appendix, which are not real sizes: the state term is D x N where Mamba2 with expand 2 holds twice
that, one byte width serves all, and the conv counts 4 columns where engines keep 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.errors import InputError

_HALF_BYTES = 2  # FP16
_CONV_KERNEL = 4
_EXPAND = 2


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """Sizes and work of one model, all layers together unless the name says layer.

    FLOPs of an attention layer over L tokens: ``attention_linear_flops`` x L +
    ``attention_square_flops`` x L². The other layers are linear in L.
    """

    state_bytes: int
    kv_bytes_per_token: int
    attention_layers: int
    mlp_layers: int
    attention_linear_flops: int
    attention_square_flops: int
    mlp_layer_flops: int
    state_flops: int

    def __post_init__(self) -> None:
        if min(self.state_bytes, self.kv_bytes_per_token) < 0 or not (
            self.state_bytes or self.kv_bytes_per_token
        ):
            raise InputError(
                f"{self.state_bytes} B a state and {self.kv_bytes_per_token} B a token:"
                " neither may be negative and a cache needs one of them"
            )

    @classmethod
    def from_paper(
        cls,
        width: int = 4096,
        state_width: int = 128,
        attention_layers: int = 4,
        state_layers: int = 24,
        mlp_layers: int = 28,
    ) -> ModelCosts:
        """Marconi's formulas; the defaults are its 7B hybrid of NVIDIA's Mamba study."""
        D, N = width, state_width
        conv_bytes = (_EXPAND * D + 2 * N) * _CONV_KERNEL * _HALF_BYTES
        return cls(
            state_bytes=state_layers * (D * N * _HALF_BYTES + conv_bytes),
            kv_bytes_per_token=attention_layers * 2 * D * _HALF_BYTES,
            attention_layers=attention_layers,
            mlp_layers=mlp_layers,
            attention_linear_flops=8 * D * D,
            attention_square_flops=4 * D,
            mlp_layer_flops=16 * D * D,
            state_flops=state_layers * (12 * D * D + 16 * D * N + 10 * D),
        )

    def attention_layer_flops(self, tokens: int) -> int:
        """One attention layer over ``tokens`` tokens."""
        return (self.attention_linear_flops + self.attention_square_flops * tokens) * tokens

    def prefill_flops(self, tokens: int) -> int:
        """Forward FLOPs of ``tokens`` tokens from nothing, batch 1."""
        return self.attention_layers * self.attention_layer_flops(tokens) + tokens * (
            self.mlp_layers * self.mlp_layer_flops + self.state_flops
        )

    def prefix_bytes(self, tokens: int, states: int = 1) -> int:
        """Bytes of the KV of ``tokens`` tokens and ``states`` states."""
        return tokens * self.kv_bytes_per_token + states * self.state_bytes

    def flops_per_byte(self, tokens: int) -> float:
        """FLOPs saved per byte kept, a prefix of ``tokens`` tokens with one state (Eq. 1)."""
        return self.prefill_flops(tokens) / self.prefix_bytes(tokens)
