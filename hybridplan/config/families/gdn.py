"""Gated DeltaNet beside full attention: Qwen3-Next, Qwen3.5 to 3.8, OLMo-Hybrid."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.families.vision import qwen_tower_params
from hybridplan.config.fields import Fields
from hybridplan.config.spec import MLP, Attention, GatedDeltaNet, Layer, ModelSpec

KINDS = {"linear_attention": "gdn", "full_attention": "full", "attention": "full"}


def read(f: Fields, root: Fields) -> ModelSpec:
    """``layer_types`` when given, else ``full_attention_interval``; both must agree."""
    count = f.layer_count()
    kinds = layer_kinds(f, count)
    olmo = f.data.get("model_type") == "olmo_hybrid"
    gdn = mixer(f)
    full = common.attention(
        f,
        quotient=olmo,
        kv_absent_is_heads=olmo,
        output_gate=not olmo and f.flag("attention.output_gate", "attn_output_gate", True),
        qkv_bias=f.flag("attention.qkv_bias", "attention_bias", False),
        output_bias=f.flag("attention.output_bias", "attention_bias", False),
        qk_norm="full" if olmo else "head",
    )
    mlps = _mlps(f, count)
    return common.model(
        f,
        root,
        layers=common.stack(kinds, {"gdn": (gdn,), "full": (full,)}, mlps),
        draft_layers=_drafts(f, count, full, mlps[-1]),
        extra_params={"vision_tower": qwen_tower_params(root)},
    )


def layer_kinds(f: Fields, count: int) -> list[str]:
    """ "gdn" or "full" for each layer, from whichever of the two keys stand in the file."""
    by_interval = None
    if f.has("full_attention_interval"):
        interval = f.whole("model.pattern", "full_attention_interval", most=count)
        by_interval = common.every(count, interval, interval - 1, "full", "gdn")
    if not f.has("layer_types"):
        if by_interval is None:
            raise f.missing("layer_types", "full_attention_interval")
        return by_interval
    kinds = common.listed(f, "layer_types", KINDS, count)
    if by_interval is not None:
        f.agree("the layers", "layer_types", kinds, "full_attention_interval", by_interval)
    return kinds


def mixer(f: Fields) -> GatedDeltaNet:
    """The linear layers' shape; value heads count the states."""
    key_heads = f.whole("gdn.key_heads", "linear_num_key_heads", most=1 << 16)
    value_heads = f.whole("gdn.value_heads", "linear_num_value_heads", most=1 << 16)
    if value_heads % key_heads:
        raise f.fail(
            f"{f.at('linear_num_value_heads')} is {value_heads}, not a multiple of "
            f"{f.at('linear_num_key_heads')}, {key_heads}"
        )
    return GatedDeltaNet(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=f.whole("gdn.key_dim", "linear_key_head_dim", most=1 << 16),
        value_dim=f.whole("gdn.value_dim", "linear_value_head_dim", most=1 << 16),
        conv_kernel=f.whole("gdn.conv_kernel", "linear_conv_kernel_dim", most=1024),
    )


def _mlps(f: Fields, count: int) -> list[MLP | None]:
    if f.data.get("num_experts") in (None, 0):
        return [common.dense(f)] * count
    experts = common.moe(
        f,
        experts=("num_experts",),
        shared_intermediate=f.maybe_whole(
            "moe.shared_intermediate", "shared_expert_intermediate_size", least=0
        )
        or 0,
        shared_gate=True,
    )
    return common.sparse_steps(f, count, experts)


def _drafts(f: Fields, count: int, full: Attention, mlp: MLP | None) -> list[Layer]:
    drafts = common.draft_count(f, "mtp_num_hidden_layers", "num_nextn_predict_layers")
    hidden = common.hidden_size(f)
    extra = {"mtp_projection": 2 * hidden * hidden + 3 * hidden}
    return common.drafts(drafts, (full,), mlp, count, extra)
