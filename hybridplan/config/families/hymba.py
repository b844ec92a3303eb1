"""Hymba: attention and Mamba-1 in parallel in every layer, KV shared inside groups of layers."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common, jamba
from hybridplan.config.fields import Fields
from hybridplan.config.spec import Attention, Layer, Mamba1, ModelSpec, Source


def read(f: Fields, root: Fields) -> ModelSpec:
    """``global_attn_idx`` are full, the rest windowed; meta tokens precede every prompt."""
    count = f.layer_count()
    if f.has("layer_type"):
        common.listed(f, "layer_type", {"h": "hybrid"}, count)
    full = set(f.wholes("global_attn_idx", most=count - 1))
    f.sources["model.pattern"] = Source(f.at("global_attn_idx"))
    window = common.sliding(f) if len(full) < count else None
    attention = replace(_attention(f), output_projection=False)
    inner = common.expanded(f, "mamba1.inner", "mamba_expand", common.hidden_size(f))
    mamba = Mamba1(
        inner=inner,
        state_dim=f.whole("mamba1.state_dim", "mamba_d_state", most=1 << 20),
        conv_kernel=f.whole("mamba1.conv_kernel", "mamba_d_conv", most=1024),
        dt_rank=jamba.dt_rank(f, common.hidden_size(f)),
        norms=True,
        conv_bias=f.flag("mamba1.conv_bias", "mamba_conv_bias", True),
        proj_bias=f.flag("mamba1.proj_bias", "mamba_proj_bias", False),
    )
    sources = _kv_sources(f, count, full)
    mlp = common.dense(f)
    layers = [
        Layer(
            i,
            (
                replace(
                    attention,
                    window=None if i in full else window,
                    kv_source_layer=sources.get(i),
                ),
                mamba,
            ),
            mlp,
            extra_params={"mixer_norms": 2 * inner},
        )
        for i in range(count)
    ]
    meta = f.whole("model.prefix_tokens", "num_memory_tokens", least=0)
    return common.model(
        f,
        root,
        layers=layers,
        tied_absent=True,
        prefix_tokens=meta,
        extra_params={"meta_tokens": meta * common.hidden_size(f)},
    )


def _attention(f: Fields) -> Attention:
    """K and V heads of widths of their own; -1 or absent means head_dim, hidden / heads."""
    base = common.attention(f)
    widths = []
    for field, key in (("key_dim", "kq_head_dim"), ("value_dim", "v_head_dim")):
        own = f.has(key) and f.data[key] != -1
        widths.append(f.whole(f"attention.{field}", key, most=1 << 16) if own else base.key_dim)
    return replace(base, key_dim=widths[0], value_dim=widths[1])


def _kv_sources(f: Fields, count: int, full: set[int]) -> dict[int, int]:
    """Which layer reads which: the first of every ``kv_reuse_group`` owns the KV."""
    if "kv_reuse_group" not in f.data:
        raise f.missing("kv_reuse_group")
    sources: dict[int, int] = {}
    for group in f.items("kv_reuse_group") if f.has("kv_reuse_group") else []:
        valid = isinstance(group, list) and all(
            isinstance(i, int) and not isinstance(i, bool) and 0 <= i < count for i in group
        )
        if not valid or not group or group != sorted(set(group)):
            raise f.fail(f"{f.at('kv_reuse_group')} must hold rising lists of layer numbers")
        for index in group[1:]:
            if index in sources or index in full or group[0] in full:
                raise f.fail(
                    f"{f.at('kv_reuse_group')} names layer {index} twice, or mixes it with a "
                    "global layer"
                )
            sources[index] = group[0]
    if set(sources) & set(sources.values()):
        raise f.fail(f"{f.at('kv_reuse_group')} groups overlap")
    f.sources["attention.kv_source_layer"] = Source(f.at("kv_reuse_group"))
    return sources
