"""Falcon before H1: multi-query or grouped attention under old names."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import Attention, DenseMLP, ModelSpec


def read(f: Fields, root: Fields) -> ModelSpec:
    """KV heads: ``num_kv_heads`` in the new decoder, else 1 with ``multi_query``, else all."""
    count = f.layer_count()
    f.record("model.pattern", "model_type falcon: full attention in every layer")
    hidden = common.hidden_size(f)
    heads = f.whole("attention.heads", "num_attention_heads", "n_head", most=1 << 16)
    new = f.flag("falcon.new_decoder", "new_decoder_architecture", False)
    many = f.maybe_flag("attention.kv_heads", "multi_query")
    if new or f.has("n_kv_heads") or f.has("num_key_value_heads"):
        keys = ("num_kv_heads", "n_head_kv", "n_kv_heads", "num_key_value_heads")
        kv_heads = f.whole("attention.kv_heads", *keys, most=1 << 16)
    elif many is None:
        raise f.missing("multi_query", "num_kv_heads")
    else:
        kv_heads = 1 if many else heads
    width = common.head_width(f, "attention.key_dim", heads, "head_dim")
    f.sources["attention.value_dim"] = f.sources["attention.key_dim"]
    bias = f.flag("attention.qkv_bias", "bias", False)
    attention = Attention(heads, kv_heads, width, width, qkv_bias=bias, output_bias=bias)
    four = Absent(4 * hidden, "ffn_hidden_size absent: 4 x hidden_size", "derived")
    mlp = DenseMLP(
        f.whole("mlp.intermediate", "ffn_hidden_size", absent=four), matrices=2, bias=bias
    )
    norms = 4 if new and f.data.get("num_ln_in_parallel_attn") != 1 else 2
    return common.model(
        f,
        root,
        layers=common.stack(["full"] * count, {"full": (attention,)}, [mlp] * count, norms=norms),
        tied_absent=True,
        context_absent=Absent(2048, "max_position_embeddings absent: 2,048, the training length"),
        final_norm_params=2 * hidden,
    )
