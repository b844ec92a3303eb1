"""Slot copies by plain indexing, one layer and one request at a time."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def copy_slots_reference(
    source_pools: Sequence[Tensor],
    target_pools: Sequence[Tensor],
    source_slots: Sequence[int],
    target_slots: Sequence[int],
) -> None:
    """Copy each request's slot of every pool in place; a negative slot on either side skips it."""
    for source, target in zip(source_pools, target_pools, strict=True):
        taken = source.clone()
        for s, t in zip(source_slots, target_slots, strict=True):
            if s >= 0 and t >= 0:
                target[t] = taken[s]
