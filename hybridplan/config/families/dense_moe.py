"""Full attention with routed experts: Mixtral, Qwen2-MoE, Qwen3-MoE, GLM-4.5."""

from __future__ import annotations

from hybridplan.config.families import common, dense, moe_layers
from hybridplan.config.fields import Fields
from hybridplan.config.spec import MLP, ModelSpec, QKNorm


def read(f: Fields, root: Fields) -> ModelSpec:
    """Attention in every layer; which layers hold experts is the model type's own rule."""
    kind = str(f.data.get("model_type") or root.data.get("model_type"))
    qwen = kind.startswith("qwen")
    count = f.layer_count()
    kinds, window = dense.windows(f, count, switch=qwen, always=kind == "mixtral")
    glm = kind == "glm4_moe"
    bias = f.flag("attention.qkv_bias", "attention_bias", kind == "qwen2_moe")
    qk_norm: QKNorm = "head" if kind == "qwen3_moe" else "none"
    if glm and f.flag("attention.qk_norm", "use_qk_norm", False):
        qk_norm = "head"
    full, sliding = (
        common.attention(
            f,
            quotient=kind in ("mixtral", "qwen2_moe"),
            window=each,
            qkv_bias=bias,
            output_bias=bias and kind == "qwen3_moe",
            qk_norm=qk_norm,
        )
        for each in (None, window)
    )
    mlps = _mlps(f, kind, count)
    draft = common.draft_count(f, "num_nextn_predict_layers") if glm else 0
    return common.model(
        f,
        root,
        layers=common.stack(kinds, {"full": (full,), "sliding": (sliding,)}, mlps),
        draft_layers=common.drafts(
            draft, (full,), mlps[-1], count, moe_layers.mtp_extra(f, copies=True)
        ),
    )


def _mlps(f: Fields, kind: str, count: int) -> list[MLP | None]:
    if kind == "mixtral":
        experts = common.moe(f, experts=("num_local_experts",), width=("intermediate_size",))
        return [experts] * count
    if kind == "glm4_moe":
        return moe_layers.deepseek_mlps(f, count)
    shared = 0
    if kind == "qwen2_moe":
        shared = f.whole("moe.shared_intermediate", "shared_expert_intermediate_size", least=0)
    experts = common.moe(
        f, experts=("num_experts",), shared_intermediate=shared, shared_gate=bool(shared)
    )
    return common.sparse_steps(f, count, experts)
