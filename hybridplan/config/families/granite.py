"""Granite-4: Mamba-2 or attention per layer, with routed experts, a shared MLP, or both."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.families.mamba2_shape import read_mamba2
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import MLP, DenseMLP, Mixer, ModelSpec

KINDS = {"mamba": "mamba", "attention": "full", "full_attention": "full"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """Layers by ``layer_types``, or by ``layers_block_type`` in earlier files."""
    count = f.layer_count()
    key = "layer_types" if f.has("layer_types") else "layers_block_type"
    kinds = common.listed(f, key, KINDS, count)
    bias = f.flag("attention.qkv_bias", "attention_bias", False)
    attention = common.attention(f, kv_absent_is_heads=True, qkv_bias=bias, output_bias=bias)
    mixers: dict[str, tuple[Mixer, ...]] = {"full": (attention,)}
    if "mamba" in kinds:
        mixers["mamba"] = (read_mamba2(f),)
    return common.model(
        f, root, layers=common.stack(kinds, mixers, [_mlp(f)] * count), tied_absent=True
    )


def _mlp(f: Fields) -> MLP:
    shared = f.whole("moe.shared_intermediate", "shared_intermediate_size", least=0)
    none = Absent(0, "num_local_experts absent: dense")
    if f.whole("moe.experts", "num_local_experts", least=0, absent=none) == 0:
        if shared == 0:
            raise f.fail("num_local_experts and shared_intermediate_size are both 0: no MLP at all")
        return DenseMLP(shared)
    return common.moe(
        f,
        experts=("num_local_experts",),
        width=("intermediate_size",),
        shared_intermediate=shared,
    )
