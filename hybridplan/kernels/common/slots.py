"""Checks of slot ids, done once per content: who reads, who writes, and that nobody collides."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from hybridplan.kernels.common.checks import (
    KernelInputError,
    check_tensor,
    host_values,
    is_capturing,
    require,
)

Export = tuple[int, int, int]
"""A state to keep from a prefill: (sequence, tokens from its start, slot)."""


def check_prefill_slots(
    slots: Tensor,
    read_slots: Tensor | None,
    exports: Sequence[Export],
    sequences: int,
    pool_slots: int,
    trust_ids: bool,
) -> tuple[Export, ...]:
    """Check where a prefill reads and writes; returns the exports as a tuple.

    slots and read_slots: one id a sequence, -1 or in the pool, of checked layout. A slot is written
    once, and never while another sequence starts from it. Ids are not read while a CUDA graph is
    captured, nor with ``trust_ids``; kernels then take an id outside the pool for padding.
    Positions of exports are checked where the batch's table is built.
    """
    for name, x in (("slots", slots), ("read_slots", read_slots)):
        if x is not None and x.shape[0] != sequences:
            raise KernelInputError(f"{name} has shape {tuple(x.shape)}, needed ({sequences})")
    stops = tuple((int(n), int(p), int(slot)) for n, p, slot in exports) if exports else ()
    if not trust_ids and not is_capturing(slots.device):
        final = host_values("slots", slots)
        read = final if read_slots is None else host_values("read_slots", read_slots)
        _check_use(final, read, stops, pool_slots)
    return stops


def check_id_layout(
    device: torch.device, slots: Tensor, other: Tensor | None = None, name: str = "read_slots"
) -> None:
    """Check int32, contiguous ids: slots [N] or [B, D], the other one [N] or [B]."""
    require(slots.dim() in (1, 2), f"slots has {slots.dim()} dimensions, needed [B] or [B, D]")
    check_tensor("slots", slots, tuple(slots.shape), (torch.int32,), device)
    if other is not None:
        check_tensor(name, other, (slots.shape[0],), (torch.int32,), device)


def decode_sizes(slots: Tensor) -> tuple[int, int]:
    """(B, D) of slots [B] or [B, D]."""
    shape = slots.shape
    return (shape[0], shape[1]) if len(shape) == 2 else (shape[0], 1)


def check_decode_slots(
    slots: Tensor, accepted: Tensor | None, pool_slots: int, trust_ids: bool
) -> tuple[int, int]:
    """Check ids of a decode step, slots [B] or [B, D] and accepted [B]; returns (B, D)."""
    B, D = decode_sizes(slots)
    if not trust_ids and not is_capturing(slots.device):
        ids = host_values("slots", slots)
        _check_use(ids, ids, (), pool_slots)
        if accepted is not None:
            counts = host_values("accepted", accepted)
            wrong = next((c for c in counts if not 1 <= c <= D), None)
            require(wrong is None, f"accepted holds {wrong}, needed 1 to {D} tokens")
    return B, D


@functools.lru_cache(maxsize=1024)
def _check_use(
    final: tuple[int, ...], read: tuple[int, ...], exports: tuple[Export, ...], pool_slots: int
) -> None:
    writer: dict[int, int] = {}
    for n, slot in [*enumerate(final), *((-1, slot) for _, _, slot in exports)]:
        require(
            -1 <= slot < pool_slots,
            f"slot {slot} is outside the pool of {pool_slots} (0 to {pool_slots - 1}; -1: padding)",
        )
        require(slot not in writer, f"slot {slot} is written twice")
        if slot >= 0:
            writer[slot] = n
    for n, slot in enumerate(read):
        require(
            -1 <= slot < pool_slots,
            f"slot {slot} to read is outside the pool of {pool_slots} (-1 starts from zero)",
        )
        require(
            writer.get(slot, n) == n,
            f"slot {slot} is written while sequence {n} starts from it",
        )
