"""State copies against torch indexing, bit for bit, with every other slot untouched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.kernels.common.checks import KernelInputError
from hybridplan.kernels.state_copy.recurrent import StateCopier, packed_pools
from hybridplan.kernels.state_copy.reference import copy_slots_reference

SLOTS = 7


def make_pools(device, shapes):
    gen = torch.Generator().manual_seed(0)
    return [
        torch.randn((SLOTS, *shape), generator=gen).to(device, dtype) for shape, dtype in shapes
    ]


def ids(device, slots):
    return torch.tensor(slots, dtype=torch.int32, device=device)


LAYERS = {
    "gdn": [((2, 16, 16), torch.float32), ((3, 40), torch.bfloat16)] * 2,
    "several-pieces": [((40000,), torch.float32), ((50000,), torch.bfloat16)],
    "odd-bf16": [((7,), torch.bfloat16)],
    "odd-bytes": [((5,), torch.float8_e4m3fn), ((4,), torch.float32)],
}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS.keys())
def test_copy_is_torch_indexing(device, layers):
    pools = make_pools(device, layers)
    expected = [p.clone() for p in pools]
    sources, targets = [1, -1, 3, 1], [2, 4, -1, 0]
    StateCopier(pools).copy(ids(device, sources), ids(device, targets))
    copy_slots_reference(expected, expected, sources, targets)
    for pool, wanted in zip(pools, expected, strict=True):
        assert torch.equal(pool.view(torch.uint8), wanted.view(torch.uint8))


@settings(max_examples=20, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.integers(-1, SLOTS - 1), st.integers(-1, SLOTS - 1)), min_size=1, max_size=6
    )
)
def test_any_pairs_between_two_lists_of_pools(device, pairs):
    layers = LAYERS["gdn"]
    sources, targets = make_pools(device, layers), make_pools(device, layers)
    for pool in targets:
        pool.fill_(float("nan"))
    seen: set[int] = set()
    pairs = [(s, t) for s, t in pairs if t == -1 or not (t in seen or seen.add(t))]
    expected = [t.clone() for t in targets]
    copier = StateCopier(sources, targets)
    copier.copy(*(ids(device, list(side)) for side in zip(*pairs, strict=True)))
    copy_slots_reference(sources, expected, *zip(*pairs, strict=True))
    for pool, wanted in zip(targets, expected, strict=True):
        assert torch.equal(pool.view(torch.uint8), wanted.view(torch.uint8))


def test_gather_to_one_row_and_scatter_back(device):
    pools = make_pools(device, LAYERS["gdn"] + LAYERS["odd-bf16"])
    before = [p.clone() for p in pools]
    buffer, views = packed_pools(pools, 2)
    StateCopier(pools, views).copy(ids(device, [5, 3]), ids(device, [0, 1]))
    for pool in pools:
        pool[[5, 3]] = 0
    moved = torch.zeros_like(buffer)
    moved.copy_(buffer)
    buffer.zero_()
    buffer.copy_(moved)
    StateCopier(views, pools).copy(ids(device, [0, 1]), ids(device, [5, 3]))
    assert all(torch.equal(a, b) for a, b in zip(pools, before, strict=True))


def test_strided_slots_of_a_shared_allocation(device):
    whole = torch.randn(SLOTS, 3, 64).to(device)
    before = whole.clone()
    StateCopier([whole[:, 0], whole[:, 2]]).copy(ids(device, [1]), ids(device, [4]))
    before[4, 0], before[4, 2] = before[1, 0], before[1, 2]
    assert torch.equal(whole, before)


@pytest.mark.parametrize(
    "sources, targets, sentence",
    [
        ([1, 2], [2, 3], "both a source and a target"),
        ([1, 1], [2, 2], "twice"),
        ([1], [SLOTS], "the pool has 7"),
        ([1, 2], [3], "shape"),
    ],
    ids=["overlap", "target-twice", "slot-7", "lengths"],
)
def test_wrong_slots_raise_and_change_nothing(device, sources, targets, sentence):
    pools = make_pools(device, LAYERS["gdn"])
    before = [p.clone() for p in pools]
    with pytest.raises(KernelInputError, match=sentence):
        StateCopier(pools).copy(ids(device, sources), ids(device, targets))
    assert all(torch.equal(a, b) for a, b in zip(pools, before, strict=True))


def test_pools_that_differ_are_refused(device):
    pools = make_pools(device, LAYERS["gdn"])
    for other in (pools[:1], [p.half() for p in pools], [p[:, :1] for p in pools]):
        with pytest.raises(KernelInputError):
            StateCopier(pools, other)


def test_bytes_of_a_request(device):
    assert StateCopier(make_pools(device, LAYERS["gdn"])).bytes_per_request == 2 * (2048 + 240)


@pytest.mark.gpu
def test_graph_replay_copies_again(device):
    pools = make_pools(device, [((16, 128, 128), torch.float32), ((3, 6144), torch.bfloat16)] * 3)
    copier = StateCopier(pools)
    sources, targets = ids(device, [1, 3]), ids(device, [0, 5])
    copier.copy(sources, targets)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copier.copy(sources, targets)
    for pool in pools:
        pool[[0, 5]] = 0
    graph.replay()
    assert all(torch.equal(p[[0, 5]], p[[1, 3]]) for p in pools)
