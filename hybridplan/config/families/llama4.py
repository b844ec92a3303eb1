"""Llama-4: chunked attention but for the layers without rotary embedding, which see everything."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Fields
from hybridplan.config.spec import MLP, ModelSpec, Source, Window

KINDS = {"full_attention": "full", "chunked_attention": "chunked"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """``no_rope_layers`` (1 = rotary, hence chunked), or the interval, or ``layer_types``."""
    count = f.layer_count()
    kinds = _layer_kinds(f, count)
    window = None
    if "chunked" in kinds:
        window = Window("chunked", f.whole("attention.window", "attention_chunk_size"))
    full, chunked = (common.attention(f, quotient=False, window=each) for each in (None, window))
    return common.model(
        f,
        root,
        layers=common.stack(kinds, {"full": (full,), "chunked": (chunked,)}, _mlps(f, count)),
    )


def _layer_kinds(f: Fields, count: int) -> list[str]:
    named: list[tuple[str, list[str]]] = []
    if f.has("layer_types"):
        named.append(("layer_types", common.listed(f, "layer_types", KINDS, count)))
    chunked = (
        "chunked" if "attention_chunk_size" in f.data and f.has("attention_chunk_size") else ""
    )
    if f.has("no_rope_layers") and f.items("no_rope_layers"):
        flags = f.wholes("no_rope_layers", most=1)
        f.per_layer("no_rope_layers", count, flags)
        rope = [flag == 1 for flag in flags]
        key = "no_rope_layers"
    elif f.has("no_rope_layer_interval"):
        interval = f.whole("model.pattern", "no_rope_layer_interval", most=1 << 16)
        rope = [(i + 1) % interval != 0 for i in range(count)]
        key = "no_rope_layer_interval"
    else:
        key = ""
    if key:
        if "attention_chunk_size" not in f.data:
            raise f.missing("attention_chunk_size")
        named.append((key, [chunked or "full" if yes else "full" for yes in rope]))
    if not named:
        raise f.missing("no_rope_layers", "no_rope_layer_interval", "layer_types")
    for other, kinds in named[1:]:
        f.agree("the chunked layers", named[0][0], named[0][1], other, kinds)
    f.sources["model.pattern"] = Source(f.at(named[0][0]))
    return named[0][1]


def _mlps(f: Fields, count: int) -> list[MLP | None]:
    """Experts every ``interleave_moe_layer_step`` layers, or where ``moe_layers`` says."""
    width = f.whole("moe.intermediate", "intermediate_size")
    experts = common.moe(
        f,
        experts=("num_local_experts",),
        width=("intermediate_size",),
        shared_intermediate=width,
    )
    if f.has("moe_layers") and f.items("moe_layers"):
        sparse = set(f.wholes("moe_layers", most=count - 1))
    else:
        step = f.whole("mlp.pattern", "interleave_moe_layer_step", most=1 << 16)
        sparse = set(range(step - 1, count, step))
    if len(sparse) == count:
        return [experts] * count
    plain = common.dense(f, "intermediate_size_mlp")
    return [experts if i in sparse else plain for i in range(count)]
