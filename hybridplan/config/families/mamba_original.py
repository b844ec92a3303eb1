"""The mamba_ssm format: d_model, n_layer, ssm_cfg, no model_type. Constants live in its code."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common
from hybridplan.config.families.mamba import NO_CONTEXT
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import Mamba1, Mamba2, Mixer, ModelSpec


def read(f: Fields, root: Fields) -> ModelSpec:
    """Only stacks without attention; the vocabulary is padded up to the stated multiple."""
    count = f.layer_count()
    if f.has("attn_layer_idx") and f.items("attn_layer_idx"):
        raise f.fail(
            f"{f.at('attn_layer_idx')} names attention layers, whose sizes in attn_cfg are not read"
        )
    if f.has("d_intermediate") and f.whole("mlp.intermediate", "d_intermediate", least=0):
        raise f.fail(f"{f.at('d_intermediate')} above 0 (an MLP between the mixers) is not read")
    hidden = f.whole("model.hidden_size", "d_model")
    ssm = f.section("ssm_cfg")
    layer = ssm.text("model.pattern", "layer", absent=_code("Mamba1", "layer"))
    if layer not in ("Mamba1", "Mamba2"):
        raise f.fail(f'{ssm.at("layer")} "{layer[:40]}" is neither Mamba1 nor Mamba2')
    mixer = _mamba2(ssm, hidden) if layer == "Mamba2" else _mamba1(ssm, hidden)
    multiple = f.whole("model.vocab_multiple", "pad_vocab_size_multiple", absent=_code(8, "pad"))
    stated = f.whole("model.vocab_size", "vocab_size")
    padded = multiple * -(-stated // multiple)
    f.notes.append("sizes that ssm_cfg leaves out are constants of the mamba_ssm code")
    spec = common.model(
        f,
        root,
        layers=common.stack(["mamba"] * count, {"mamba": (mixer,)}, [None] * count, norms=1),
        tied_absent=True,
        context_absent=NO_CONTEXT,
    )
    return replace(spec, vocab_size=padded)


def _code(value: object, key: str) -> Absent:
    return Absent(value, f"{key} absent: {value}, the default of the mamba_ssm mixer")


def _mamba1(ssm: Fields, hidden: int) -> Mixer:
    inner = common.expanded(ssm, "mamba1.inner", "expand", hidden, _code(2, "expand"))
    return Mamba1(
        inner=inner,
        state_dim=ssm.whole("mamba1.state_dim", "d_state", absent=_code(16, "d_state")),
        conv_kernel=ssm.whole("mamba1.conv_kernel", "d_conv", absent=_code(4, "d_conv")),
        dt_rank=-(-hidden // 16),
    )


def _mamba2(ssm: Fields, hidden: int) -> Mixer:
    inner = hidden * ssm.whole("mamba2.expand", "expand", absent=_code(2, "expand"))
    width = ssm.whole("mamba2.head_dim", "headdim", absent=_code(64, "headdim"))
    if inner % width:
        raise ssm.fail(f"the inner width {inner} is not a multiple of the head width {width}")
    ssm.record("mamba2.heads", "expand x d_model / headdim")
    return Mamba2(
        heads=inner // width,
        head_dim=width,
        state_dim=ssm.whole("mamba2.state_dim", "d_state", absent=_code(128, "d_state")),
        groups=ssm.whole("mamba2.groups", "ngroups", absent=_code(1, "ngroups")),
        conv_kernel=ssm.whole("mamba2.conv_kernel", "d_conv", absent=_code(4, "d_conv")),
    )
