"""RecurrentGemma (Griffin): RG-LRU blocks with windowed attention, in a repeating cycle."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import RGLRU, DenseMLP, ModelSpec

KINDS = {"recurrent": "recurrent", "attention": "attention"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """``block_types`` is shorter than the stack and repeats."""
    count = f.layer_count()
    keys = ("block_types", "_block_types", "layers_block_type")
    key = next((k for k in keys if f.has(k)), keys[0])
    cycle = common.listed(f, key, KINDS, None)
    if not cycle:
        raise f.fail(f"{f.at(key)} is empty")
    kinds = [cycle[i % len(cycle)] for i in range(count)]
    width = f.whole("rglru.lru_width", "lru_width")
    recurrent = RGLRU(
        lru_width=width,
        heads=f.whole("rglru.heads", "num_attention_heads", most=1 << 16),
        conv_kernel=f.whole("rglru.conv_kernel", "conv1d_width", most=1024),
    )
    bias = f.flag("attention.qkv_bias", "attention_bias", False)
    window = common.sliding(f, "attention_window_size", "sliding_window")
    attention = common.attention(
        f, kv_absent_is_heads=True, window=window, qkv_bias=bias, output_bias=True
    )
    mlp = DenseMLP(f.whole("mlp.intermediate", "intermediate_size") // 2, bias=True)
    context = Absent(8192, "max_position_embeddings absent: 8,192, the training length")
    return common.model(
        f,
        root,
        layers=common.stack(
            kinds, {"recurrent": (recurrent,), "attention": (attention,)}, [mlp] * count
        ),
        tied_absent=True,
        context_absent=context,
    )
