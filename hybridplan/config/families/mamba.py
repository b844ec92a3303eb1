"""Pure Mamba: Mamba-1, Falcon-Mamba and Mamba-2 in their Hugging Face form."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import Mamba1, Mamba2, Mixer, ModelSpec

NO_CONTEXT = Absent(0, "no context length: the state does not grow", "derived")


def read(f: Fields, root: Fields) -> ModelSpec:
    """One Mamba mixer in every layer and no MLP; nothing grows with the context."""
    kind = str(f.data.get("model_type") or root.data.get("model_type"))
    count = f.layer_count()
    f.record("model.pattern", f"model_type {kind}: a Mamba mixer in every layer")
    mixer: Mixer = _mamba2(f) if kind == "mamba2" else _mamba1(f, kind)
    return common.model(
        f,
        root,
        layers=common.stack(["mamba"] * count, {"mamba": (mixer,)}, [None] * count, norms=1),
        tied_absent=kind == "mamba",
        context_absent=NO_CONTEXT,
        chunk_keys=("chunk_size",),
    )


def _mamba1(f: Fields, kind: str) -> Mamba1:
    """``intermediate_size`` is the inner width; Falcon-Mamba's ``expand`` 16 is not (issue: 2)."""
    hidden = common.hidden_size(f)
    if kind == "falcon_mamba" or f.has("intermediate_size"):
        inner = f.whole("mamba1.inner", "intermediate_size", "d_inner")
    else:
        inner = common.expanded(f, "mamba1.inner", "expand", hidden)
    if kind == "mamba" and f.has("expand"):
        expand = f.whole("mamba1.expand", "expand", most=1024)
        f.agree("the inner width", "intermediate_size", inner, "expand", expand * hidden)
    rank = f.data.get("time_step_rank")
    return Mamba1(
        inner=inner,
        state_dim=f.whole("mamba1.state_dim", "state_size", most=1 << 20),
        conv_kernel=f.whole("mamba1.conv_kernel", "conv_kernel", most=1024),
        dt_rank=-(-hidden // 16)
        if rank in (None, "auto")
        else f.whole("mamba1.dt_rank", "time_step_rank"),
        conv_bias=f.flag("mamba1.conv_bias", "use_conv_bias", True),
        proj_bias=f.flag("mamba1.proj_bias", "use_bias", False),
    )


def _mamba2(f: Fields) -> Mamba2:
    heads = f.whole("mamba2.heads", "num_heads", most=1 << 20)
    width = f.whole("mamba2.head_dim", "head_dim", most=1 << 20)
    inner = f.whole("mamba2.expand", "expand", most=1024) * common.hidden_size(f)
    if heads * width != inner:
        raise f.fail(
            f"{f.at('num_heads')} x {f.at('head_dim')} is {heads * width} but {f.at('expand')} x "
            f"hidden_size is {inner}"
        )
    return Mamba2(
        heads=heads,
        head_dim=width,
        state_dim=f.whole("mamba2.state_dim", "state_size", most=1 << 20),
        groups=f.whole("mamba2.groups", "n_groups", most=1 << 16),
        conv_kernel=f.whole("mamba2.conv_kernel", "conv_kernel", most=1024),
        conv_bias=f.flag("mamba2.conv_bias", "use_conv_bias", True),
        proj_bias=f.flag("mamba2.proj_bias", "use_bias", False),
    )
