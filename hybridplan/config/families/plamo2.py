"""PLaMo-2: Mamba-2 unless i % mamba_step == mamba_step // 2; attention is windowed."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common
from hybridplan.config.fields import Fields
from hybridplan.config.spec import Mamba2, Mixer, ModelSpec, Window


def read(f: Fields, root: Fields) -> ModelSpec:
    """Mamba-2 and windowed attention; ``full_attention_idx`` lifts the window."""
    count = f.layer_count()
    full = set(f.wholes("full_attention_idx")) if f.has("full_attention_idx") else set()
    kinds = [
        "mamba" if is_mamba else "full" if i in full else "windowed"
        for i, is_mamba in enumerate(_mamba_layers(f, count))
    ]
    mixers: dict[str, tuple[Mixer, ...]] = {}
    if "mamba" in kinds:
        mixers["mamba"] = (_mamba(f),)
    window = None
    if "windowed" in kinds:
        window = Window("sliding", f.whole("attention.window", "attention_window_size"))
    full_attention = common.attention(
        f, head_dim=("hidden_size_per_head",), quotient=False, qk_norm="full"
    )
    mixers["full"] = (full_attention,)
    mixers["windowed"] = (replace(full_attention, window=window),)
    return common.model(
        f,
        root,
        layers=common.stack(kinds, mixers, [common.dense(f)] * count, norms=4),
        tied_absent=True,
    )


def _mamba_layers(f: Fields, count: int) -> list[bool]:
    """A stack no longer than half a step has attention in its last layer only."""
    enabled = f.maybe_flag("model.mamba_enabled", "mamba_enabled")
    if enabled is None:
        raise f.missing("mamba_enabled")
    if not enabled:
        return [False] * count
    step = f.whole("model.pattern", "mamba_step", least=2, most=1 << 16)
    if count <= step // 2:
        return [i != count - 1 for i in range(count)]
    return [i % step != step // 2 for i in range(count)]


def _mamba(f: Fields) -> Mamba2:
    hidden = common.hidden_size(f)
    f.record("mamba2.groups", "one B and C for all heads, outside the convolution")
    return Mamba2(
        heads=f.whole("mamba2.heads", "mamba_num_heads", most=1 << 20),
        head_dim=f.whole("mamba2.head_dim", "hidden_size_per_head", most=1 << 20),
        state_dim=f.whole("mamba2.state_dim", "mamba_d_state", most=1 << 20),
        groups=1,
        conv_kernel=f.whole("mamba2.conv_kernel", "mamba_d_conv", most=1024),
        conv_over_groups=False,
        conv_bias=False,
        gated_norm=False,
        dt_rank=max(64, hidden // 16),
    )
