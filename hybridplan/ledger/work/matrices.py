"""The matrices of a layer: shapes of projections and MLPs, by mixer."""

from __future__ import annotations

from collections.abc import Iterator

from hybridplan.config.spec import (
    Attention,
    DenseMLP,
    GatedDeltaNet,
    KimiDelta,
    LatentAttention,
    Layer,
    Lightning,
    Mamba2,
    Mixer,
    ShortConv,
)

Shape = tuple[int, int]
"""(inputs, outputs) of a matrix product."""


def mixer_matrices(mixer: Mixer, hidden: int) -> tuple[Shape, ...]:
    """The products before the mixer's kernels, and after them as the last one; () if unknown."""
    if isinstance(mixer, GatedDeltaNet):
        values = mixer.value_heads * mixer.value_dim
        wide = 2 * mixer.key_heads * mixer.key_dim + 2 * values
        return (hidden, wide), (hidden, 2 * mixer.value_heads), (values, hidden)
    if isinstance(mixer, KimiDelta):
        wide = mixer.heads * mixer.head_dim
        gates = ((hidden, mixer.head_dim), (mixer.head_dim, wide))
        decay = ((hidden, wide),) if mixer.full_rank_decay else gates
        output = ((hidden, wide),) if mixer.full_rank_gate else gates
        return ((hidden, 3 * wide), *decay, *output, (hidden, mixer.heads), (wide, hidden))
    if isinstance(mixer, Lightning):
        wide = mixer.heads * mixer.head_dim
        return (hidden, 3 * wide), (hidden, wide), (wide, hidden)
    if isinstance(mixer, Mamba2):
        inner = mixer.heads * mixer.head_dim
        wide = 2 * inner + 2 * mixer.groups * mixer.state_dim + mixer.heads
        return (hidden, wide), (inner, hidden)
    if isinstance(mixer, ShortConv):
        return (hidden, 3 * mixer.channels), (mixer.channels, hidden)
    if isinstance(mixer, Attention):
        queries = mixer.heads * mixer.key_dim * (2 if mixer.output_gate else 1)
        keys = mixer.kv_heads * (mixer.key_dim + mixer.value_dim)
        return (hidden, queries), (hidden, keys), (mixer.heads * mixer.value_dim, hidden)
    if isinstance(mixer, LatentAttention):
        wide = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
        rank = mixer.q_lora_rank
        queries_in = ((hidden, wide),) if rank is None else ((hidden, rank), (rank, wide))
        latent = (hidden, mixer.kv_lora_rank + mixer.rope_dim)
        return (*queries_in, latent, (mixer.heads * mixer.value_dim, hidden))
    return ()


def mlp_matrices(layer: Layer, hidden: int) -> tuple[Shape, ...]:
    """The products of a dense MLP; () without one."""
    if not isinstance(layer.mlp, DenseMLP):
        return ()
    width = layer.mlp.intermediate
    return (hidden, (layer.mlp.matrices - 1) * width), (width, hidden)


def layer_bytes(layer: Layer, hidden: int) -> int:
    """Bytes of the matrices above in bf16."""
    return sum(2 * a * b for a, b in _all(layer, hidden))


def _all(layer: Layer, hidden: int) -> Iterator[Shape]:
    for mixer in layer.mixers:
        yield from mixer_matrices(mixer, hidden)
    yield from mlp_matrices(layer, hidden)
