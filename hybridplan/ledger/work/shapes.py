"""Recurrent and attention layers as a kernel sees them: bytes and FLOP of one call.

Counts are those of ``hybridplan.kernels``: chunks of 64 tokens without causal halving in the
recurrent layers, causal pairs in attention, 16 bits an activation.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.config.spec import (
    Attention,
    GatedDeltaNet,
    KimiDelta,
    LatentAttention,
    Lightning,
    Mamba2,
    Mixer,
)

CHUNK_TOKENS = 64


@dataclass(frozen=True)
class RecurrentShape:
    """A recurrent mixer in the kernels' words; state [HV, V, K] per request."""

    kind: str
    H: int
    HV: int
    K: int
    V: int
    bounded: bool = False

    @property
    def channels(self) -> int:
        """Width of the packed q, k, v row."""
        return 2 * self.H * self.K + self.HV * self.V

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Of one request."""
        return (self.HV, self.V, self.K)

    @property
    def state_elements(self) -> int:
        """Of one request."""
        return self.HV * self.V * self.K

    @property
    def delta(self) -> bool:
        """Whether the update corrects what the state already says of the key."""
        return self.kind in ("gdn", "kda")

    @property
    def gate_bytes_per_token(self) -> int:
        """Bytes of gates and of beta that a token brings, bf16."""
        per_head = {"gdn": 2, "kda": 1 + self.K, "mamba2": 1}.get(self.kind, 0)
        return 2 * self.HV * per_head

    def io_bytes(self, tokens: int) -> int:
        """q, k, v, gates read and outputs written, bf16."""
        per_token = 2 * (self.channels + self.HV * self.V) + self.gate_bytes_per_token
        return tokens * per_token

    def prefill_flop(self, tokens: int, chunk_tokens: int = CHUNK_TOKENS) -> int:
        """Operations of the algorithm by whole chunks, without causal halving."""
        C = chunk_tokens
        qk = 2 * C * C * self.K
        v = 4 * C * self.K * self.V + 2 * C * C * self.V
        if self.delta:
            qk += 2 * C * C * self.K
            v += 2 * C * self.K * self.V + 2 * C * C * self.V + C**3 // 3
        return -(-tokens // C) * (self.H * qk + self.HV * v)


@dataclass(frozen=True)
class AttentionShape:
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

    @property
    def row_bytes(self) -> int:
        """q read and output written of one decoded token."""
        return 2 * self.HQ * (self.D + self.rope + self.V)

    @property
    def pair_flop(self) -> int:
        """Score and weighted value of one (query, key) pair."""
        return 2 * self.HQ * (self.D + self.rope + self.V)

    def decode_bytes(self, contexts: int, requests: int) -> int:
        """KV of all contexts together, q read and outputs written."""
        return contexts * self.kv_bytes_per_token + requests * self.row_bytes

    def decode_flop(self, contexts: int) -> int:
        """Scores and weighted values."""
        return contexts * self.pair_flop

    def prefill_flop(self, tokens: int) -> int:
        """Causal pairs of a prompt."""
        return tokens * (tokens + 1) // 2 * self.pair_flop


def recurrent_shape(mixer: Mixer) -> RecurrentShape | None:
    """The mixer as the kernels here see it; None for one without such a form."""
    if isinstance(mixer, GatedDeltaNet):
        return RecurrentShape(
            "gdn", mixer.key_heads, mixer.value_heads, mixer.key_dim, mixer.value_dim
        )
    if isinstance(mixer, KimiDelta):
        n, d = mixer.heads, mixer.head_dim
        return RecurrentShape("kda", n, n, d, d, mixer.bounded_gate)
    if isinstance(mixer, Lightning):
        return RecurrentShape("lightning", mixer.heads, mixer.heads, mixer.head_dim, mixer.head_dim)
    if isinstance(mixer, Mamba2):
        return RecurrentShape("mamba2", mixer.groups, mixer.heads, mixer.state_dim, mixer.head_dim)
    return None


def attention_shape(mixer: Mixer) -> AttentionShape | None:
    """Attention over heads or a latent; None for anything else."""
    if isinstance(mixer, Attention):
        return AttentionShape(mixer.heads, mixer.kv_heads, mixer.key_dim, mixer.value_dim)
    if isinstance(mixer, LatentAttention):
        rank = mixer.kv_lora_rank
        return AttentionShape(mixer.heads, 1, rank, rank, mixer.rope_dim, True, mixer.nope_dim)
    return None
