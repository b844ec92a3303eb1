"""Falcon-H1: attention and Mamba-2 in parallel in every layer."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.families.mamba2_shape import read_mamba2
from hybridplan.config.fields import Fields
from hybridplan.config.spec import ModelSpec


def read(f: Fields, root: Fields) -> ModelSpec:
    """``mamba_d_ssm`` is the inner width; mamba_expand is not (3B: 4,096, not 5,120)."""
    count = f.layer_count()
    f.record("model.pattern", "model_type falcon_h1: both mixers in every layer")
    gated = f.flag("mamba2.gated_norm", "mamba_rms_norm", False)
    bias = f.flag("attention.qkv_bias", "attention_bias", False)
    mixers = (
        common.attention(f, qkv_bias=bias, output_bias=bias),
        read_mamba2(f, inner_key="mamba_d_ssm", gated_norm=gated),
    )
    mlp = common.dense(f, bias=f.flag("mlp.bias", "mlp_bias", False))
    return common.model(
        f, root, layers=common.stack(["both"] * count, {"both": mixers}, [mlp] * count)
    )
