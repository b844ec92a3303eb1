"""Checks of exported states, the same for every prefill that can write them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hybridplan.kernels.common.checks import host_values, is_capturing, require


def checked_exports(
    exports: Sequence[tuple[int, int, int]],
    pool_slots: int,
    slot_ids: Tensor,
    initial_slot_ids: Tensor,
) -> tuple[tuple[int, int, int], ...]:
    """Exports (sequence, tokens, slot) as a tuple, each slot in the pool and used by nobody else.

    Positions are checked where the chunk table is built. During graph capture the request's own
    slots cannot be read, so only the export slots themselves are compared.
    """
    if not exports:
        return ()
    stops = tuple((int(n), int(position), int(slot)) for n, position, slot in exports)
    own: set[int] = set()
    if not is_capturing(slot_ids.device):
        own.update(host_values("slot_ids", slot_ids))
        own.update(host_values("initial_slot_ids", initial_slot_ids))
    for n, position, slot in stops:
        require(
            0 <= slot < pool_slots,
            f"the export after {position} tokens of sequence {n} names slot {slot}, "
            f"the pool has {pool_slots}",
        )
        require(
            slot not in own,
            f"the export after {position} tokens of sequence {n} names slot {slot}, "
            "which another export or a request of this batch uses",
        )
        own.add(slot)
    return stops
