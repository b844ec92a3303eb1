"""Zamba2: Mamba-2 in every layer, and one of a few shared attention blocks beside some of them."""

from __future__ import annotations

from collections.abc import Sequence

from hybridplan.config.families import common
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import Attention, DenseMLP, Layer, Mamba2, ModelSpec

KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "hybrid": "hybrid",
    "full_attention": "hybrid",
}


def read(f: Fields, root: Fields) -> ModelSpec:
    """``layers_block_type`` (or layer_types) and ``hybrid_layer_ids`` must agree."""
    count = f.layer_count()
    kinds = _layer_kinds(f, count)
    attention = _attention(f)
    if f.flag("zamba2.attention_adapter", "use_shared_attention_adapter", False):
        f.notes.append("use_shared_attention_adapter adds adapters that are not counted")
    blocks = f.whole("zamba2.blocks", "num_mem_blocks", most=1 << 16)
    rank = f.whole("zamba2.adapter_rank", "adapter_rank", "lora_rank", least=0)
    mlp = DenseMLP(f.whole("mlp.intermediate", "intermediate_size", "ffn_hidden_size"))
    layers = build(common.hidden_size(f), kinds, attention, _mamba(f), mlp, blocks, rank)
    return common.model(f, root, layers=layers, tied_absent=True)


def build(
    hidden: int,
    kinds: Sequence[str],
    attention: Attention,
    mamba: Mamba2,
    mlp: DenseMLP,
    blocks: int,
    rank: int,
) -> list[Layer]:
    """The stack. The n-th hybrid layer uses block n % blocks, with an adapter of its own."""
    layers = []
    met = 0
    for index, kind in enumerate(kinds):
        if kind == "mamba":
            layers.append(Layer(index, (mamba,), None, norms=1))
            continue
        extra = {
            "shared_norms": 3 * hidden,
            "mixer_join": hidden * hidden,
            "mlp_adapter": rank * (hidden + 2 * mlp.intermediate),
        }
        block = met % blocks
        layers.append(
            Layer(index, (attention, mamba), mlp, norms=1, shared_block=block, extra_params=extra)
        )
        met += 1
    return layers


def _layer_kinds(f: Fields, count: int) -> list[str]:
    by_index = None
    if f.has("hybrid_layer_ids"):
        hybrid = set(f.wholes("hybrid_layer_ids", most=count - 1))
        by_index = ["hybrid" if i in hybrid else "mamba" for i in range(count)]
        f.record("model.pattern", f.at("hybrid_layer_ids"), "exact")
    key = "layers_block_type" if f.has("layers_block_type") else "layer_types"
    if not f.has(key):
        if by_index is None:
            raise f.missing("layers_block_type", "hybrid_layer_ids")
        return by_index
    kinds = common.listed(f, key, KINDS, count)
    if by_index is not None:
        f.agree("the layers", key, kinds, "hybrid_layer_ids", by_index)
    return kinds


def _attention(f: Fields) -> Attention:
    """Attention over 2 x hidden; ``kv_channels``, half the head width, is no source."""
    hidden = common.hidden_size(f)
    heads = f.whole("attention.heads", "num_attention_heads", most=1 << 16)
    twice = Absent(2 * hidden, "2 x hidden_size: attention reads the embedding beside", "derived")
    width = f.whole("attention.input_dim", "attention_hidden_size", absent=twice)
    kv_absent = Absent(heads, "num_key_value_heads absent: as many as heads", "derived")
    head_dim = common.head_width(f, "attention.key_dim", heads, "attention_head_dim", width=width)
    f.sources["attention.value_dim"] = f.sources["attention.key_dim"]
    return Attention(
        heads=heads,
        kv_heads=f.whole("attention.kv_heads", "num_key_value_heads", absent=kv_absent),
        key_dim=head_dim,
        value_dim=head_dim,
        input_dim=width,
    )


def _mamba(f: Fields) -> Mamba2:
    heads = f.whole("mamba2.heads", "n_mamba_heads", most=1 << 20)
    inner = f.whole(
        "mamba2.expand", "mamba_expand", "expansion_factor", most=1024
    ) * common.hidden_size(f)
    width = f.whole("mamba2.head_dim", "mamba_headdim", most=1 << 20)
    if heads * width != inner:
        raise f.fail(
            f"{f.at('n_mamba_heads')} x {f.at('mamba_headdim')} is {heads * width} but "
            f"{f.at('mamba_expand')} x hidden_size is {inner}"
        )
    return Mamba2(
        heads=heads,
        head_dim=width,
        state_dim=f.whole("mamba2.state_dim", "mamba_d_state", "state_size", most=1 << 20),
        groups=f.whole("mamba2.groups", "mamba_ngroups", "mamba_num_groups", most=1 << 16),
        conv_kernel=f.whole("mamba2.conv_kernel", "mamba_d_conv", "conv_dimension", most=1024),
        conv_bias=f.flag("mamba2.conv_bias", "use_conv_bias", True),
        proj_bias=f.flag("mamba2.proj_bias", "add_bias_linear", False),
    )
