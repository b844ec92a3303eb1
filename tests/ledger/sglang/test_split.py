"""The worked example of SGLang's split: Qwen3-Next-80B shapes, 40 GiB, ratio 0.9."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.sglang.split import SplitInput, split
from hybridplan.ledger.sglang.strategy import resolve_strategy, slots_per_request

GIB = 1024**3
SLOT = 77_266_944
KV = 24_576
RING = 16 * 36 * (32 * 128 * 2 * 2 + 16 * 128 * 2 * 2 + 32 * 4)


@pytest.mark.parametrize(
    "case,slots,by_slots,intermediates_gib,kv_gib,kv_tokens",
    [
        pytest.param({}, 262, 52, 0.0, 21.074, 920_754, id="no-speculation-extra-buffer"),
        pytest.param(
            {"slots_per_request": 4}, 262, 65, 0.0, 21.074, 920_754, id="no-speculation-lazy"
        ),
        pytest.param(
            {"slots_per_request": 3}, 262, 87, 0.0, 21.074, 920_754, id="no-speculation-no-buffer"
        ),
        pytest.param(
            {"verify_tokens": 4, "max_running_requests": 48},
            143,
            28,
            8.347,
            21.290,
            930_186,
            id="D4-running-48",
        ),
        pytest.param(
            {"verify_tokens": 4, "max_running_requests": 8},
            143,
            28,
            2.591,
            27.047,
            1_181_706,
            id="D4-running-8",
        ),
    ],
)
def test_worked_example(
    case: dict[str, int],
    slots: int,
    by_slots: int,
    intermediates_gib: float,
    kv_gib: float,
    kv_tokens: int,
) -> None:
    got = split(SplitInput(40 * GIB, SLOT, KV, **case))  # type: ignore[arg-type]
    assert got.slots == slots
    assert got.requests_by_slots == by_slots
    assert round(got.intermediate_bytes / GIB, 3) == intermediates_gib
    assert round(got.kv_bytes / GIB, 3) == kv_gib
    assert got.kv_tokens == kv_tokens


def test_worked_example_replayssm_verify() -> None:
    got = split(
        SplitInput(
            40 * GIB,
            SLOT,
            KV,
            verify_tokens=4,
            snapshots=False,
            ring_bytes=RING,
            max_running_requests=48,
        )
    )
    assert (got.slots, got.requests_by_slots, got.max_running_requests) == (253, 50, 48)
    assert round(got.ring_bytes / GIB, 3) == 0.649
    assert round(got.kv_bytes / GIB, 3) == 21.073


@given(
    rest=st.integers(2 * GIB, 200 * GIB),
    slot=st.integers(1 << 18, 1 << 28),
    kv=st.integers(256, 1 << 18),
    ratio=st.fractions(Fraction(1, 20), Fraction(5)),
    per_request=st.sampled_from([3, 4, 5]),
    verify=st.integers(1, 8),
    running=st.none() | st.integers(1, 512),
)
def test_parts_never_exceed_the_memory(
    rest: int,
    slot: int,
    kv: int,
    ratio: Fraction,
    per_request: int,
    verify: int,
    running: int | None,
) -> None:
    case = SplitInput(
        rest,
        slot,
        kv,
        ratio=ratio,
        slots_per_request=per_request,
        verify_tokens=verify,
        max_running_requests=running,
    )
    try:
        got = split(case)
    except RefusalError:
        return
    assert got.slots_bytes + got.intermediate_bytes + got.kv_bytes == rest
    assert got.kv_tokens * kv <= got.kv_bytes < (got.kv_tokens + 1) * kv
    assert 1 <= got.max_running_requests <= got.requests_by_slots


@pytest.mark.parametrize(
    "asked,architecture,overlap,page,expected",
    [
        ("auto", "Qwen3NextForCausalLM", True, 1, "extra_buffer"),
        ("auto", "Qwen3NextForCausalLM", False, 1, "no_buffer"),
        ("auto", "Qwen3NextForCausalLM", False, 64, "extra_buffer"),
        ("auto", "Lfm2ForCausalLM", True, 1, "no_buffer"),
        ("extra_buffer_lazy", "Qwen3NextForCausalLM", True, 1, "extra_buffer_lazy"),
    ],
)
def test_strategy(asked: str, architecture: str, overlap: bool, page: int, expected: str) -> None:
    got = resolve_strategy(asked, architecture, overlap=overlap, page_tokens=page)
    assert got == expected


def test_strategy_refusals() -> None:
    with pytest.raises(InputError, match="'lazy' is not known"):
        resolve_strategy("lazy", "Qwen3NextForCausalLM", overlap=True, page_tokens=1)
    with pytest.raises(InputError, match="page size is 64"):
        resolve_strategy("no_buffer", "Qwen3NextForCausalLM", overlap=True, page_tokens=64)


def test_slots_per_request_of_each_strategy() -> None:
    count = {
        name: slots_per_request(name, overlap=True, radix_cache=True)
        for name in ("no_buffer", "extra_buffer", "extra_buffer_lazy")
    }
    assert count == {"no_buffer": 3, "extra_buffer": 5, "extra_buffer_lazy": 4}
    assert slots_per_request("extra_buffer", overlap=False, radix_cache=True) == 4
    assert slots_per_request("extra_buffer", overlap=True, radix_cache=False) == 1
    lazy = slots_per_request(
        "extra_buffer_lazy", overlap=True, radix_cache=True, skip_decode_lock=True
    )
    assert lazy == 3


def test_refusals_name_the_numbers() -> None:
    with pytest.raises(RefusalError, match=r"hold 0 state slots of 77,266,944 bytes"):
        split(SplitInput(100_000_000, SLOT, KV))
    with pytest.raises(RefusalError, match="leaves 0 KV tokens"):
        split(SplitInput(GIB, SLOT, KV, slots=13))
    with pytest.raises(InputError, match="--max-running-requests"):
        split(SplitInput(40 * GIB, SLOT, KV, verify_tokens=4, snapshots=False, ring_bytes=RING))
