"""Bamba: Mamba-2 everywhere but at ``attn_layer_indices``."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.families.mamba2_shape import read_mamba2
from hybridplan.config.fields import Fields
from hybridplan.config.spec import ModelSpec, Source


def read(f: Fields, root: Fields) -> ModelSpec:
    """Attention at the listed indices, which must be given; Mamba-2 everywhere else."""
    count = f.layer_count()
    if "attn_layer_indices" not in f.data:
        raise f.missing("attn_layer_indices")
    full = f.wholes("attn_layer_indices", most=count - 1) if f.has("attn_layer_indices") else []
    f.sources["model.pattern"] = Source(f.at("attn_layer_indices"))
    kinds = ["full" if i in set(full) else "mamba" for i in range(count)]
    attention = common.attention(
        f, qkv_bias=f.flag("attention.qkv_bias", "attention_bias", False), output_bias=False
    )
    mlp = common.dense(f, bias=f.flag("mlp.bias", "mlp_bias", False))
    return common.model(
        f,
        root,
        layers=common.stack(
            kinds, {"full": (attention,), "mamba": (read_mamba2(f),)}, [mlp] * count
        ),
    )
