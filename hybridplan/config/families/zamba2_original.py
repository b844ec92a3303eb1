"""Zamba2 before its Hugging Face form: num_layers, layer_mapping of m and g, kv_channels."""

from __future__ import annotations

from hybridplan.config.families import common, zamba2
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import Attention, DenseMLP, Mamba2, ModelSpec

KINDS = {"m": "mamba", "g": "hybrid"}
CODE = "absent from this format: a constant of Zyphra's Zamba2 code, as its later config states"


def read(f: Fields, root: Fields) -> ModelSpec:
    """The format leaves the Mamba-2 head width, group count and MLP ratio to the code."""
    count = f.layer_count()
    kinds = common.listed(f, "layer_mapping", KINDS, count)
    hidden = common.hidden_size(f)
    inner = hidden * f.whole("mamba2.expand", "expansion_factor", most=1024)
    width = f.whole("mamba2.head_dim", "mamba_headdim", absent=Absent(64, CODE))
    if inner % width:
        raise f.fail(f"the inner width {inner} is not a multiple of the head width {width}")
    f.record("mamba2.heads", "expansion_factor x hidden_size / head width")
    mamba = Mamba2(
        heads=inner // width,
        head_dim=width,
        state_dim=f.whole("mamba2.state_dim", "state_size", most=1 << 20),
        groups=f.whole("mamba2.groups", "mamba_ngroups", absent=Absent(1, CODE)),
        conv_kernel=f.whole("mamba2.conv_kernel", "conv_dimension", most=1024),
    )
    heads = f.whole("attention.heads", "num_mem_heads", "num_attention_heads", most=1 << 16)
    channels = f.whole("attention.key_dim", "kv_channels", most=1 << 20)
    f.sources["attention.value_dim"] = f.sources["attention.key_dim"]
    f.record("attention.kv_heads", "this format has one K and V head per query head")
    attention = Attention(heads, heads, 2 * channels, 2 * channels, input_dim=2 * hidden)
    f.record("mlp.intermediate", "4 x hidden_size", "assumed")
    f.notes.append(
        "original Zamba2 format: head width, groups and MLP width are constants of its code"
    )
    blocks = f.whole("zamba2.blocks", "num_mem_blocks", most=1 << 16)
    rank = f.whole("zamba2.adapter_rank", "lora_rank", least=0)
    layers = zamba2.build(hidden, kinds, attention, mamba, DenseMLP(4 * hidden), blocks, rank)
    context = Absent(4096, "max_position_embeddings absent: 4,096, as the later config states")
    return common.model(f, root, layers=layers, tied_absent=True, context_absent=context)
