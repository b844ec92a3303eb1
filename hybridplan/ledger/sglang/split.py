"""How SGLang divides memory between state slots and KV tokens.

All bytes are per rank. Source: SGLang 0.5.23, mem_cache/kv_cache_configurator.py
(``_solve_mamba_slots``, ``_resolve_max_num_reqs``); specification sections 3.1 to 3.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hybridplan.errors import InputError, RefusalError


@dataclass(frozen=True, slots=True)
class SplitInput:
    """What the split works on.

    ``rest_bytes`` is free memory after weights and the static reserve. ``slot_bytes`` is one
    request's states over all linear layers, ``slot_extra_bytes`` what every slot adds beside it
    (KDA's verify ring), ``ring_bytes`` one request's share of a ring sized by running requests
    (GDN's verify ring). ``verify_tokens`` D counts the root: 1 means no speculation.
    ``snapshots`` False: ReplaySSM verify, or a prefill server, keeps no intermediate states.
    """

    rest_bytes: int
    slot_bytes: int
    kv_bytes_per_token: int
    ratio: Fraction = Fraction(9, 10)
    slots_per_request: int = 5
    verify_tokens: int = 1
    snapshots: bool = True
    slot_extra_bytes: int = 0
    ring_bytes: int = 0
    max_running_requests: int | None = None
    slots: int | None = None
    radix_cache: bool = True
    context_tokens: int = 262144


@dataclass(frozen=True, slots=True)
class Split:
    """``slots`` K (one more, slot 0, is the engine's dummy), what each part takes, and the limits.

    ``requests_by_slots`` is K // slots per request; ``max_running_requests`` is what the engine
    would settle on. ``intermediate_bytes`` is the sum charged, not the (smaller) buffers allocated.
    """

    slots: int
    slots_bytes: int
    intermediate_bytes: int
    ring_bytes: int
    kv_bytes: int
    kv_tokens: int
    requests_by_slots: int
    max_running_requests: int
    binds: str


def _slots(given: SplitInput, fixed_bytes: int) -> int:
    if given.slots is not None:
        return given.slots
    if not given.radix_cache and given.max_running_requests is not None:
        return given.max_running_requests
    budget = Fraction(given.rest_bytes) * given.ratio / (1 + given.ratio)
    slot, extra = given.slot_bytes, given.slot_extra_bytes
    if given.verify_tokens == 1 or not given.snapshots:
        return int((budget - fixed_bytes - slot - extra) // (slot + extra))
    verify = given.verify_tokens
    per_slot = slot * (1 + Fraction(verify, given.slots_per_request)) + extra
    return int((budget - slot * (1 + verify) - extra) // per_slot)


def _running(given: SplitInput, kv_tokens: int, slots: int) -> tuple[int, str]:
    wanted = given.max_running_requests
    if wanted is None:
        wanted = min(max(kv_tokens * 512 // given.context_tokens, 2048), 4096)
    limits = {
        "requested": wanted,
        "KV tokens": kv_tokens // 2,
        "state slots": slots // given.slots_per_request,
    }
    binds = min(limits, key=lambda name: limits[name])
    return limits[binds], binds


def split(given: SplitInput) -> Split:
    """Divide the memory as the engine would.

    Raises RefusalError when not one request would fit, with the numbers that disagree.
    """
    fixed = 0
    if given.ring_bytes:
        if given.max_running_requests is None:
            raise InputError(
                "the ReplaySSM verify ring is sized by running requests and none were given; "
                "set --max-running-requests"
            )
        fixed = given.ring_bytes * (given.max_running_requests + 1)
    slots = _slots(given, fixed)
    if slots < given.slots_per_request:
        need = given.slots_per_request * given.slot_bytes
        raise RefusalError(
            f"{given.rest_bytes:,} bytes at ratio {float(given.ratio):g} hold {max(slots, 0)} "
            f"state slots of {given.slot_bytes:,} bytes and one request needs "
            f"{given.slots_per_request} ({need:,} bytes); raise the memory or "
            "--mamba-full-memory-ratio"
        )
    intermediates = 0
    if given.verify_tokens > 1 and given.snapshots:
        if given.radix_cache:
            by_slots = slots // given.slots_per_request
            wanted = given.max_running_requests
            rows = min(max(1, wanted), by_slots) if wanted is not None else by_slots
        else:
            rows = slots
        intermediates = given.slot_bytes * given.verify_tokens * (rows + 1)
    slots_bytes = (slots + 1) * (given.slot_bytes + given.slot_extra_bytes)
    kv_bytes = given.rest_bytes - intermediates - slots_bytes - fixed
    kv_tokens = kv_bytes // given.kv_bytes_per_token
    if kv_tokens < 2:
        raise RefusalError(
            f"{slots} state slots take {slots_bytes:,} bytes and {intermediates + fixed:,} go to "
            f"speculation, of {given.rest_bytes:,}; that leaves {max(kv_tokens, 0)} KV tokens: "
            "lower --max-mamba-cache-size or --mamba-full-memory-ratio"
        )
    running, binds = _running(given, kv_tokens, slots)
    return Split(
        slots=slots,
        slots_bytes=slots_bytes,
        intermediate_bytes=intermediates,
        ring_bytes=fixed,
        kv_bytes=kv_bytes,
        kv_tokens=kv_tokens,
        requests_by_slots=slots // given.slots_per_request,
        max_running_requests=running,
        binds=binds,
    )
