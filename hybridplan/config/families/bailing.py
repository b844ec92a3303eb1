"""Ring and Ling (inclusionAI): lightning beside GQA (2.0) or MLA (2.5, 2.6), KDA beside MLA (3.0).

``bailing_hybrid`` names two designs: a short convolution or kda_* keys mean KDA.
"""

from __future__ import annotations

from hybridplan.config.families import common, moe_layers
from hybridplan.config.fields import Fields
from hybridplan.config.spec import (
    Attention,
    KimiDelta,
    LatentAttention,
    Lightning,
    Mixer,
    ModelSpec,
    MoE,
    QKNorm,
)

KINDS = {"full_attention": "full", "attention": "full", "linear_attention": "linear"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """KDA where the file has a short convolution or kda_* keys, else lightning."""
    count = f.layer_count()
    kinds = _layer_kinds(f, count)
    hidden = common.hidden_size(f)
    is_kda = f.has("short_conv_kernel_size") or any(key.startswith("kda_") for key in f.data)
    full = _full(f)
    extra = {}
    if is_kda and full.kind == "mla":
        extra = {"full": {"mixer_head_gate": hidden * full.heads}}
    mlps = moe_layers.deepseek_mlps(f, count, _experts(f))
    draft = common.draft_count(f, "num_nextn_predict_layers", "num_mtp_layers")
    head_gate = extra.get("full", {})
    return common.model(
        f,
        root,
        layers=common.stack(
            kinds,
            {"full": (full,), "linear": (_kda(f) if is_kda else _lightning(f),)},
            mlps,
            extra=extra,
        ),
        draft_layers=common.drafts(
            draft, (full,), mlps[-1], count, moe_layers.mtp_extra(f) | head_gate
        ),
    )


def _layer_kinds(f: Fields, count: int) -> list[str]:
    """Full where (i + 1) % layer_group_size == 0, and in the tail no whole group fills."""
    by_group = None
    if f.has("layer_group_size"):
        group = f.whole("model.pattern", "layer_group_size", most=1 << 16)
        tail = count // group * group
        by_group = ["full" if (i + 1) % group == 0 or i >= tail else "linear" for i in range(count)]
    if not f.has("layer_types"):
        if by_group is None:
            raise f.missing("layer_group_size", "layer_types")
        return by_group
    kinds = common.listed(f, "layer_types", KINDS, count)
    if by_group is not None:
        f.agree("the layers", "layer_types", kinds, "layer_group_size", by_group)
    return kinds


def _full(f: Fields) -> Attention | LatentAttention:
    if f.has("kv_lora_rank"):
        return common.latent(f)
    if f.data.get("model_type") != "bailing_moe_linear":
        raise f.missing("kv_lora_rank")
    bias = f.flag("attention.qkv_bias", "use_qkv_bias", False)
    norm: QKNorm = "head" if f.flag("attention.qk_norm", "use_qk_norm", False) else "none"
    return common.attention(
        f,
        qkv_bias=bias,
        output_bias=f.flag("attention.output_bias", "use_bias", False),
        qk_norm=norm,
    )


def _lightning(f: Fields) -> Mixer:
    """Query heads count, even where KV heads are fewer."""
    heads = f.whole("lightning.heads", "num_attention_heads", most=1 << 16)
    return Lightning(
        heads=heads,
        head_dim=common.head_width(f, "lightning.head_dim", heads, "head_dim"),
        qk_norm=f.flag("lightning.qk_norm", "use_qk_norm", True),
    )


def _kda(f: Fields) -> Mixer:
    heads = f.whole("kda.heads", "linear_num_heads", "num_attention_heads", most=1 << 16)
    return KimiDelta(
        heads=heads,
        head_dim=f.whole("kda.head_dim", "linear_head_dim", "head_dim", most=1 << 16),
        conv_kernel=f.whole(
            "kda.conv_kernel", "short_conv_kernel_size", "linear_conv_kernel_dim", most=1024
        ),
        bounded_gate=f.has("kda_lower_bound"),
        full_rank_gate=True,
        full_rank_decay=True,
    )


def _experts(f: Fields) -> MoE:
    width = f.whole("moe.intermediate", "moe_intermediate_size")
    each = f.maybe_whole("moe.shared_intermediate", "moe_shared_expert_intermediate_size") or width
    return common.moe(
        f,
        experts=("num_experts",),
        shared_intermediate=common.shared_width(
            f, "num_shared_experts", "n_shared_experts", each=each
        ),
        router_bias=f.flag("moe.router_bias", "moe_router_enable_expert_bias", True),
    )
