"""Copy requests' slots of every layer's pool in one launch: checkpoint, restore, copy-on-write.

The host turns the pools into a table of pieces once (addresses, slot strides, lengths); a launch
has one program per request and piece. The time is the bytes read and written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch

PIECE_BYTES = 65536
WARPS = 16
_COLUMNS = tl.constexpr(8)


@triton.jit
def _copy_pieces(
    pieces,
    source_slots,
    target_slots,
    source_pool_slots,
    target_pool_slots,
    piece_count,
    WORD: tl.constexpr,
    ALIGNED_WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # a piece: source and target address, source and target slot stride in words, its words
    pid = tl.program_id(0)
    request = pid // piece_count
    row = pieces + (pid % piece_count) * _COLUMNS
    source_slot = tl.load(source_slots + request).to(tl.int64)
    target_slot = tl.load(target_slots + request).to(tl.int64)
    skip = (source_slot < 0) | (target_slot < 0)
    if skip | (source_slot >= source_pool_slots) | (target_slot >= target_pool_slots):
        return
    source = tl.load(row).to(tl.pointer_type(WORD))
    target = tl.load(row + 1).to(tl.pointer_type(WORD))
    source_word = tl.multiple_of(source_slot * tl.load(row + 2), ALIGNED_WORDS)
    target_word = tl.multiple_of(target_slot * tl.load(row + 3), ALIGNED_WORDS)
    words = tl.multiple_of(tl.load(row + 4), ALIGNED_WORDS)
    source = tl.multiple_of(source, 16) if ALIGNED_WORDS == 4 else source
    target = tl.multiple_of(target, 16) if ALIGNED_WORDS == 4 else target
    at = tl.arange(0, BLOCK)
    x = tl.load(source + source_word + at, mask=at < words)
    tl.store(target + target_word + at, x, mask=at < words)


_launch = launch.Launcher(_copy_pieces)


class StateCopier:
    """Copies slots between two lists of pools, or within one list, all layers in one launch.

    Made once per pair of lists; it keeps the pools alive, and their storage must not move.
    Pools: tensors [slots, ...] of any dtype on one device, each slot contiguous, slots may be
    strided. Pool i of both lists must agree in dtype and in a slot's shape.
    """

    def __init__(
        self, source_pools: Sequence[Tensor], target_pools: Sequence[Tensor] | None = None
    ) -> None:
        """Build the table of pieces; raises KernelInputError on pools that do not match."""
        self.within = target_pools is None
        targets = source_pools if target_pools is None else target_pools
        checks.require(len(source_pools) > 0, "no pools were given, needed at least one")
        checks.require(
            len(source_pools) == len(targets),
            f"{len(source_pools)} source pools and {len(targets)} target pools",
        )
        self.device = source_pools[0].device
        launch.require_device(self.device)
        for i, (source, target) in enumerate(zip(source_pools, targets, strict=True)):
            slot = tuple(source.shape[1:])
            dense = len(slot)
            checks.require(dense > 0, f"source pool {i} has no slot shape")
            checks.check_tensor(
                f"source pool {i}", source, (-1, *slot), (source.dtype,), self.device, dense
            )
            checks.check_tensor(
                f"target pool {i}", target, (-1, *slot), (source.dtype,), self.device, dense
            )
        self._pools = (tuple(source_pools), tuple(targets))
        self.source_slots = min(p.shape[0] for p in source_pools)
        self.target_slots = min(p.shape[0] for p in targets)
        self.bytes_per_request = sum(_slot_bytes(p) for p in source_pools)
        self._word_bytes, rows = _pieces(source_pools, targets)
        self._pieces = torch.tensor(rows, dtype=torch.int64, device=self.device)

    def copy(self, source_slots: Tensor, target_slots: Tensor) -> None:
        """Copy slot source_slots[i] to target_slots[i] for every i, in every pool, in place.

        Both int32 [N] on the pools' device; a pair with a -1 is skipped. Targets are distinct, and
        within one list of pools no slot is both source and target.
        Raises KernelInputError before anything is launched.
        """
        shape = (source_slots.shape[0],) if source_slots.dim() == 1 else (-1,)
        checks.check_slots(
            "source_slots", source_slots, shape, self.source_slots, self.device, unique=False
        )
        checks.check_slots(
            "target_slots", target_slots, shape, self.target_slots, self.device, unique=True
        )
        if self.within and not checks.is_capturing(self.device):
            taken = set(checks.host_values("source_slots", source_slots))
            both = taken & set(checks.host_values("target_slots", target_slots)) - {-1}
            checks.require(
                not both, f"slot {min(both, default=-1)} is both a source and a target of one copy"
            )
        count = self._pieces.shape[0]
        word = {1: tl.int8, 2: tl.int16}.get(self._word_bytes, tl.int32)
        _launch(
            (shape[0] * count, 1, 1),
            (self._pieces, source_slots, target_slots),
            (),
            (self.source_slots, self.target_slots, count),
            (word, max(1, self._word_bytes // 4), PIECE_BYTES // min(self._word_bytes, 4)),
            num_warps=WARPS,
        )  # fmt: skip


def packed_pools(pools: Sequence[Tensor], slots: int) -> tuple[Tensor, list[Tensor]]:
    """A buffer that holds a request's states of all layers together, and its views as pools.

    Returns uint8 [slots, bytes], each layer's part on a multiple of 16 bytes, and one strided pool
    [slots, ...] per layer; a StateCopier to these gathers a request into one row, which a single
    transfer can move.
    """
    offsets = []
    row_bytes = 0
    for pool in pools:
        offsets.append(row_bytes)
        row_bytes += -(-_slot_bytes(pool) // 16) * 16
    buffer = torch.zeros((slots, row_bytes), dtype=torch.uint8, device=pools[0].device)
    views = []
    for pool, offset in zip(pools, offsets, strict=True):
        part = buffer[:, offset : offset + _slot_bytes(pool)].view(pool.dtype)
        views.append(part.unflatten(1, tuple(pool.shape[1:])))
    return buffer, views


def _slot_bytes(pool: Tensor) -> int:
    return math.prod(pool.shape[1:]) * pool.element_size()


def _pieces(
    sources: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[int, list[tuple[int, ...]]]:
    """Bytes that every address, stride and length is a multiple of (at most 16), and the pieces."""
    shared = 16
    for source, target in zip(sources, targets, strict=True):
        size = source.element_size()
        strides = (source.stride(0) * size, target.stride(0) * size)
        shared = math.gcd(
            shared, source.data_ptr(), target.data_ptr(), *strides, _slot_bytes(source)
        )
    word = min(shared, 4)
    rows: list[tuple[int, ...]] = []
    for source, target in zip(sources, targets, strict=True):
        size = source.element_size()
        total = _slot_bytes(source)
        for at in range(0, total, PIECE_BYTES):
            rows.append(
                (
                    source.data_ptr() + at,
                    target.data_ptr() + at,
                    source.stride(0) * size // word,
                    target.stride(0) * size // word,
                    min(PIECE_BYTES, total - at) // word,
                    0,
                    0,
                    0,
                )
            )
    return shared, rows
