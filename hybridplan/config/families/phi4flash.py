"""Phi-4-mini-flash (SambaY): Mamba-1 and windowed attention, one full KV, then its readers."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import GatedMemoryUnit, Mamba1, Mixer, ModelSpec

CODE = "absent: a constant of the checkpoint's modelling code"


def read(f: Fields, root: Fields) -> ModelSpec:
    """Layer L/2 is the last Mamba, L/2 + 1 the only full KV; the second half stores nothing.

    Behind them GMUs gate the last Mamba's output and cross-attention reads the full layer's KV.
    """
    count = f.layer_count()
    per = f.whole("model.pattern", "mb_per_layer", most=1 << 16)
    if per != 2 or count % 4:
        raise f.fail(
            f"{f.at('mb_per_layer')} {per} with {count} layers; only mb_per_layer 2 and a layer "
            "count divisible by 4 are known"
        )
    half = count // 2
    kinds = [_kind(i, half) for i in range(count)]
    hidden = common.hidden_size(f)
    mamba = Mamba1(
        inner=common.expanded(f, "mamba1.inner", "mamba_expand", hidden, Absent(2, CODE)),
        state_dim=f.whole("mamba1.state_dim", "mamba_d_state", absent=Absent(16, CODE)),
        conv_kernel=f.whole("mamba1.conv_kernel", "mamba_d_conv", absent=Absent(4, CODE)),
        dt_rank=-(-hidden // 16),
    )
    full = common.attention(f, qkv_bias=True, output_bias=True)
    window = common.sliding(f)
    mixers: dict[str, tuple[Mixer, ...]] = {
        "mamba": (mamba,),
        "sliding": (replace(full, window=window),),
        "full": (full,),
        "gmu": (GatedMemoryUnit(mamba.inner),),
        "cross": (replace(full, kv_source_layer=half + 1),),
    }
    differential = {"mixer_differential": 6 * full.key_dim}
    f.notes.append("Mamba-1 sizes (d_state 16, d_conv 4, expand 2) come from the modelling code")
    return common.model(
        f,
        root,
        layers=common.stack(
            kinds,
            mixers,
            [common.dense(f)] * count,
            norms=4,
            extra=dict.fromkeys(("sliding", "full", "cross"), differential),
        ),
        tied_absent=True,
        final_norm_params=2 * hidden,
    )


def _kind(index: int, half: int) -> str:
    if index % 2 == 0:
        return "mamba" if index <= half else "gmu"
    if index < half:
        return "sliding"
    return "full" if index == half + 1 else "cross"
