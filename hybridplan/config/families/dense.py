"""Attention and one MLP in every layer: Llama, Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common
from hybridplan.config.fields import Fields
from hybridplan.config.spec import ModelSpec, Window

KINDS = {"full_attention": "full", "sliding_attention": "sliding"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """Attention in every layer, windowed where the model type and its switches say so."""
    kind = str(f.data.get("model_type") or root.data.get("model_type"))
    qwen = kind.startswith("qwen")
    count = f.layer_count()
    mistral = not qwen and kind != "llama"
    kinds, window = windows(f, count, switch=qwen, always=mistral)
    full = common.attention(
        f,
        quotient=kind != "qwen3",
        kv_absent_is_heads=kind == "llama",
        qkv_bias=f.flag("attention.qkv_bias", "attention_bias", kind == "qwen2"),
        output_bias=kind != "qwen2" and f.flag("attention.output_bias", "attention_bias", False),
        qk_norm="head" if kind == "qwen3" else "none",
    )
    sliding = replace(full, window=window)
    mlp = common.dense(f, bias=f.flag("mlp.bias", "mlp_bias", False))
    return common.model(
        f,
        root,
        layers=common.stack(kinds, {"full": (full,), "sliding": (sliding,)}, [mlp] * count),
    )


def windows(
    f: Fields, count: int, *, switch: bool, always: bool
) -> tuple[list[str], Window | None]:
    """Which layers slide. ``switch``: the number alone means nothing without use_sliding_window.

    ``always``: a stated window applies to every layer (Mistral, Mixtral).
    """
    on = f.has("sliding_window")
    if switch:
        on = on and f.flag("attention.window_switch", "use_sliding_window", False)
    window = common.sliding(f) if on else None
    kinds = ["full"] * count
    source = "num_hidden_layers alone: full attention in every layer"
    if window is not None and switch:
        first = f.whole("model.pattern", "max_window_layers", least=0)
        kinds = ["sliding" if i >= first else "full" for i in range(count)]
        source = "max_window_layers"
    elif window is not None and always:
        kinds = ["sliding"] * count
        source = "sliding_window alone: in every layer"
    if f.has("layer_types"):
        listed = common.listed(f, "layer_types", KINDS, count)
        if "sliding" in listed and window is None:
            window = common.sliding(f)
        elif switch and window is not None:
            f.agree("the windowed layers", "layer_types", listed, "max_window_layers", kinds)
        kinds = listed
    else:
        f.record("model.pattern", source)
    return kinds, window
