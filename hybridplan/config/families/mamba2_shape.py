"""The Mamba-2 mixer from the names Bamba introduced (Bamba, Granite-4, Falcon-H1)."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Fields
from hybridplan.config.spec import Mamba2


def read_mamba2(f: Fields, *, inner_key: str | None = None, gated_norm: bool = True) -> Mamba2:
    """heads x head width is the inner width; ``inner_key``, or expand x hidden, must agree."""
    heads = f.whole("mamba2.heads", "mamba_n_heads", most=1 << 20)
    if inner_key is not None and f.has(inner_key):
        name = inner_key
        inner = f.whole("mamba2.inner", inner_key)
    else:
        name = "mamba_expand"
        inner = f.whole("mamba2.expand", "mamba_expand", most=1024) * common.hidden_size(f)
    if f.data.get("mamba_d_head") in (None, "auto"):
        width = inner // heads
        f.record("mamba2.head_dim", f"mamba_d_head auto: {f.at(name)} / mamba_n_heads")
    else:
        width = f.whole("mamba2.head_dim", "mamba_d_head", most=1 << 20)
    if heads * width != inner:
        raise f.fail(
            f"{f.at('mamba_n_heads')} x the head width is {heads * width} but "
            f"{f.at(name)} makes the inner width {inner}"
        )
    groups = f.whole("mamba2.groups", "mamba_n_groups", most=1 << 16)
    if heads % groups:
        raise f.fail(f"{f.at('mamba_n_heads')} is {heads}, not a multiple of {groups} groups")
    return Mamba2(
        heads=heads,
        head_dim=width,
        state_dim=f.whole("mamba2.state_dim", "mamba_d_state", most=1 << 20),
        groups=groups,
        conv_kernel=f.whole("mamba2.conv_kernel", "mamba_d_conv", most=1024),
        conv_bias=f.flag("mamba2.conv_bias", "mamba_conv_bias", True),
        proj_bias=f.flag("mamba2.proj_bias", "mamba_proj_bias", False),
        gated_norm=gated_norm,
    )
