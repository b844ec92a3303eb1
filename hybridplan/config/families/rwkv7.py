"""RWKV-7 in flash-linear-attention's form: heads = hidden / head_dim, no num_attention_heads."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Fields
from hybridplan.config.spec import RWKV7, DenseMLP, ModelSpec

LORAS = ("decay_low_rank_dim", "gate_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim")


def read(f: Fields, root: Fields) -> ModelSpec:
    """The same mixer in every layer; a file that adds attention layers is refused."""
    count = f.layer_count()
    if f.has("attn"):
        raise f.fail(f"{f.at('attn')} adds attention layers to RWKV-7, which is not read")
    f.record("model.pattern", "model_type rwkv7: the same mixer in every layer")
    hidden = common.hidden_size(f)
    width = f.whole("rwkv7.head_dim", "head_dim", most=1 << 16)
    if hidden % width:
        raise f.fail(f"hidden_size {hidden} is not a multiple of head_dim {width}")
    f.record("rwkv7.heads", "hidden_size / head_dim")
    decay, gate, a, v = (f.maybe_whole(f"rwkv7.{key}", key) or 0 for key in LORAS)
    if not (decay and gate and a and v):
        f.notes.append(
            "the ranks of RWKV-7's small projections are not in the file; their weights are not "
            "counted"
        )
    mixer = RWKV7(hidden // width, width, decay, gate, a, v)
    mlp = DenseMLP(f.whole("mlp.intermediate", "intermediate_size"), matrices=2)
    return common.model(
        f,
        root,
        layers=common.stack(
            ["rwkv"] * count,
            {"rwkv": (mixer,)},
            [mlp] * count,
            norms=4,
            extra={"rwkv": {"mlp_shift": hidden}},
        ),
        final_norm_params=4 * hidden,
    )
