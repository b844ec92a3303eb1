"""Kimi Delta Attention beside MLA: Kimi-Linear and the text part of Kimi-K3."""

from __future__ import annotations

from hybridplan.config.families import common, moe_layers
from hybridplan.config.fields import Fields
from hybridplan.config.spec import KimiDelta, Layer, ModelSpec, Source

KINDS = {"linear_attention": "kda", "kda": "kda", "full_attention": "mla", "attention": "mla"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """KDA and MLA by the two lists of ``linear_attn_config``."""
    count = f.layer_count()
    linear = f.section("linear_attn_config")
    kinds = layer_kinds(f, linear, count, KINDS)
    kda = mixer(linear)
    mla = common.latent(f, output_gate=f.flag("mla.output_gate", "mla_use_output_gate", False))
    latent_dim = f.maybe_whole("moe.latent_dim", "routed_expert_hidden_size")
    experts = moe_layers.deepseek_experts(f, latent_dim=latent_dim)
    mlps = moe_layers.deepseek_mlps(f, count, experts)
    with_norm = f.flag("moe.latent_norm", "latent_moe_use_norm", False)
    normed = latent_dim if with_norm and latent_dim is not None else 0
    layers = [
        Layer(
            i,
            (kda if kind == "kda" else mla,),
            mlp,
            extra_params={"mlp_latent_norm": normed} if normed and mlp is experts else {},
        )
        for i, (kind, mlp) in enumerate(zip(kinds, mlps, strict=True))
    ]
    if f.has("attn_res_block_size"):
        f.notes.append(
            "attn_res_block_size names attention-residual weights whose shapes the file does not "
            "give; they are not counted"
        )
    draft = common.draft_count(f, "num_nextn_predict_layers")
    return common.model(
        f,
        root,
        layers=layers,
        draft_layers=common.drafts(draft, (mla,), mlps[-1], count, moe_layers.mtp_extra(f)),
    )


def mixer(linear: Fields) -> KimiDelta:
    """The linear layers' shape from ``linear_attn_config``."""
    return KimiDelta(
        heads=linear.whole("kda.heads", "num_heads", most=1 << 16),
        head_dim=linear.whole("kda.head_dim", "head_dim", most=1 << 16),
        conv_kernel=linear.whole("kda.conv_kernel", "short_conv_kernel_size", most=1024),
        bounded_gate=linear.has("gate_lower_bound"),
        full_rank_gate=linear.flag("kda.full_rank_gate", "use_full_rank_gate", False),
    )


def layer_kinds(f: Fields, linear: Fields, count: int, known: dict[str, str]) -> list[str]:
    """ "kda" or "mla" per layer from two lists that together cover the stack once.

    Kimi counts layers from 1, GLM-5.3-Flash from 0: the lists' own least and greatest member say
    which. ``layer_types``, where given, must agree.
    """
    kda = linear.wholes("kda_layers")
    full = linear.wholes("full_attn_layers")
    both = sorted(kda + full)
    first = both[0] if both else 0
    if first not in (0, 1) or both != list(range(first, first + count)):
        raise f.fail(
            f"{linear.at('kda_layers')} ({len(kda)}) and {linear.at('full_attn_layers')} "
            f"({len(full)}) do not cover the {count} layers of {f.at('num_hidden_layers')} once "
            "each, counted from 0 or from 1"
        )
    chosen = set(kda)
    kinds = ["kda" if i + first in chosen else "mla" for i in range(count)]
    if f.has("layer_types"):
        listed = common.listed(f, "layer_types", known, count)
        f.agree("the layers", "layer_types", listed, "linear_attn_config.kda_layers", kinds)
    else:
        f.sources["model.pattern"] = Source(
            f"{linear.at('kda_layers')}, {linear.at('full_attn_layers')} (counted from {first})",
            "derived",
        )
    return kinds
