"""The clever parts beside naive twins, on random input."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import RefusalError
from hybridplan.ledger.vllm import pool
from hybridplan.ledger.vllm.alignment import align
from hybridplan.ledger.vllm.backends import BACKENDS
from hybridplan.ledger.vllm.groups import CacheGroup, group_layers, group_width
from hybridplan.ledger.vllm.layout import ANY_LAYOUT, candidates, strides, whole_pages
from hybridplan.ledger.vllm.packed import least_padding
from hybridplan.ledger.vllm.page import AttentionCache, MultipleOf, RequestLimits, StateCache
from hybridplan.ledger.vllm.rules import RULES

FULL = AttentionCache("full", 64, 2, 128, "bfloat16", value_dim=128)
SLIDING = replace(FULL, kind="sliding", window_tokens=1024)
LATENT = AttentionCache("mla", 64, 1, 576, "bfloat16")
INDEX = AttentionCache("mla", 64, 1, 132, "uint8", role="indexer")
RING = AttentionCache("ring", 4, 2, 128, "bfloat16", dcp_sharded=False)
STATE = StateCache(64, ((3, 512), (4, 64, 64)), ("bfloat16", "float32"), mode="align")
LIMITS = RequestLimits(4096, 2048, state_mode="align")
KINDS = (FULL, SLIDING, LATENT, INDEX, RING, STATE)


def layers_of(kinds: list[int]) -> dict[str, AttentionCache | StateCache]:
    return {f"layers.{i}": KINDS[kind] for i, kind in enumerate(kinds)}


some_layers = st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=40).map(layers_of)


@given(some_layers, st.sampled_from(["LBNHC", "BLHNC"]))
def test_groups_hold_every_layer_once(
    layers: dict[str, AttentionCache | StateCache], layout: str
) -> None:
    try:
        grouping = group_layers(layers, layout)
    except RefusalError:
        return
    held = [name for group in grouping.groups for name in group.layers]
    assert sorted(held) == sorted(layers)
    for group in grouping.groups:
        assert len({cache.block_tokens for cache in group.caches}) == 1
        order = [list(layers).index(name) for name in group.layers]
        assert group.mixed or order == sorted(order)


@given(some_layers)
def test_packed_groups_never_exceed_the_block(
    layers: dict[str, AttentionCache | StateCache],
) -> None:
    """States are cut to fit beside what cannot be cut; one state may still be wider."""
    grouping = group_layers(layers, "BLHNC")
    block = pool.bytes_per_block(grouping.groups, "BLHNC")
    assert all(group.page_bytes <= block for group in grouping.groups)
    assert block % pool.stride_alignment(grouping.groups) == 0


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 8))
def test_least_padding_is_the_best_of_all(counts: list[int], floor: int) -> None:
    floor = min(floor, max(counts))

    def padding(size: int) -> int:
        total = 0
        for count in counts:
            while count % size:
                count, total = count + 1, total + 1
        return total

    chosen = least_padding(counts, floor)
    for size in range(floor, max(counts) + 1):
        assert padding(chosen) < padding(size) or (
            padding(chosen) == padding(size) and chosen >= size
        )


WIDTHS = {
    "equal": ([16, 16], 16),
    "just under one and a half": ([10, 14], 14),
    "exactly one and a half": ([10, 15], 10),
    "three to one": ([16, 48], 16),
    "a drafter's layer": ([12, 13], 13),
    "a five-layer drafter": ([16, 48, 5], 5),
    "one layer alone": ([12, 36, 1], 1),
}


@pytest.mark.parametrize("buckets, width", WIDTHS.values(), ids=WIDTHS.keys())
def test_group_width(buckets: list[int], width: int) -> None:
    assert group_width(buckets) == width


@given(
    st.integers(1, 200_000),
    st.integers(1, 9),
    st.sampled_from([16, 64, 128]),
    st.sampled_from(["align", "none"]),
)
def test_an_aligned_block_is_the_smallest_that_holds_a_state(
    state_bytes: int, heads: int, start: int, mode: str
) -> None:
    token_bytes = heads * 256
    found = align(
        [BACKENDS["FLASH_ATTN"]],
        token_bytes=token_bytes,
        state_bytes=state_bytes,
        mla=False,
        mode=mode,
        rules=RULES["0.33"],
        start_tokens=start,
        max_model_len=8192,
    )
    block = start
    while block * token_bytes < state_bytes:
        block += start
    assert found.block_tokens == block
    padded = found.state_page_bytes or state_bytes
    assert padded == block * token_bytes


@given(st.integers(1, 3000), st.integers(1, 5000), st.integers(1, 40))
def test_the_longest_request_is_found_by_trying_all(
    limit_tokens: int, in_flight: int, num_blocks: int
) -> None:
    groups = [
        CacheGroup(("a",), (FULL,)),
        CacheGroup(("b",), (SLIDING,)),
        CacheGroup(("c",), (STATE,)),
    ]
    limits = RequestLimits(limit_tokens, in_flight, state_mode="align")
    fitting = [
        tokens
        for tokens in range(1, limit_tokens + 1)
        if pool.request_blocks(groups, replace(limits, max_model_len=tokens)) <= num_blocks
    ]
    found = pool.longest_that_fits(groups, limits, num_blocks, limit_tokens)
    assert found == max(fitting, default=0)


@given(
    st.sampled_from(ANY_LAYOUT),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([16, 32]),
)
def test_strides_place_every_byte_once(
    layout: str, num_blocks: int, num_layers: int, heads: int, block_tokens: int
) -> None:
    """Walk all five dimensions by the strides a layout implies; no two cells may meet."""
    cache = replace(FULL, block_tokens=block_tokens, heads=heads, key_dim=1, value_dim=1)
    size = {"L": num_layers, "B": num_blocks, "H": heads, "N": block_tokens, "C": 4}
    step, steps = 1, {}
    for dim in reversed(layout):
        steps[dim] = step
        step *= size[dim]
    assert strides(cache, num_blocks, num_layers, layout) == (steps["L"], steps["B"])
    assert step == num_blocks * num_layers * cache.page_bytes


@given(st.integers(1, 64), st.integers(1, 512))
def test_a_stride_keeps_whole_kernel_blocks(units: int, rule: int) -> None:
    cache = replace(INDEX, block_tokens=units * 4, stride_alignment=MultipleOf(rule))
    kernel = gcd(rule, cache.block_tokens)
    alignment = cache.stride_alignment_bytes
    assert alignment == (1 if kernel == cache.block_tokens else kernel * 132)
    assert cache.page_bytes % alignment == 0


def test_only_layouts_of_whole_pages_are_left_for_mixed_pages() -> None:
    assert [layout for layout in ANY_LAYOUT if whole_pages(layout)] == list(ANY_LAYOUT[:4])


def test_the_layout_most_backends_put_first_wins() -> None:
    hopper, blackwell = ("LBNHC", "LBHNC", "BLHNC"), ("LBHNC", "BLHNC")
    assert candidates([None, None])[0] == "LBNHC"
    assert candidates([blackwell, None, hopper])[0] == "LBHNC"
    with pytest.raises(RefusalError, match="share no KV cache layout"):
        candidates([("LBNHC",), ("BLHNC",)])


def test_a_ring_takes_one_block_whatever_the_length() -> None:
    assert {RING.blocks_per_request(replace(LIMITS, max_model_len=n)) for n in (1, 100, 10**6)} == {
        1
    }


def test_pages_that_no_mla_layer_can_take_are_refused_with_their_sizes() -> None:
    with pytest.raises(RefusalError, match=r"73728 bytes.*90000 bytes"):
        group_layers({"a": LATENT, "b": replace(STATE, padded_page_bytes=90000)}, "LBNHC")
