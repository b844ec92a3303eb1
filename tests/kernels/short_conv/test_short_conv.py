"""Short causal convolution: prefill and update against fp64, windows in the slot pool."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.kernels.common.checks import KernelInputError
from hybridplan.kernels.short_conv.chunk import chunk_prefill
from hybridplan.kernels.short_conv.recurrent import recurrent_step
from hybridplan.kernels.short_conv.reference import conv_reference


def error(x: torch.Tensor, reference: torch.Tensor) -> float:
    return float((x.double().cpu() - reference.cpu()).norm() / reference.norm())


class Case:
    """Random inputs of a packed batch of C channels with W taps."""

    def __init__(self, device, lengths, C=40, W=4, dtype=torch.float32, bias=True):
        gen = torch.Generator().manual_seed(sum(lengths) + W)
        N = len(lengths)
        self.starts = [0, *itertools.accumulate(lengths)]
        self.x, self.weight, bias_values, self.pool = (
            torch.randn(size, generator=gen).to(device, dtype)
            for size in ((sum(lengths), C), (C, W), (C,), (N + 4, W - 1, C))
        )
        self.bias = bias_values if bias else None
        self.slots = torch.arange(N - 1, -1, -1, dtype=torch.int32, device=device)

    def run(self, pool, rows=slice(None), slots=None, cu_seqlens=None, **options):
        slots = self.slots if slots is None else slots
        return chunk_prefill(
            self.x[rows], self.weight, self.bias, pool, slots, cu_seqlens, **options
        )

    def expected(self, **options):
        bias = None if self.bias is None else self.bias.cpu()
        before = self.pool.cpu()[self.slots.long().cpu()]
        return conv_reference(self.x.cpu(), self.weight.cpu(), bias, before, self.starts, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("W", [2, 3, 4])
def test_prefill_matches_fp64(device, W, dtype):
    case = Case(device, [1, 70, 0, 2, 32], 40, W, dtype)
    pool = case.pool.clone()
    y = case.run(pool, cu_seqlens=case.starts)
    expected, windows, _ = case.expected()
    assert error(y, expected) < (1e-6 if dtype is torch.float32 else 5e-3)
    assert torch.equal(pool[case.slots.long()].double().cpu(), windows)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("activation", [True, False], ids=["silu", "linear"])
def test_bias_and_activation(device, bias, activation):
    case = Case(device, [40], bias=bias)
    y = case.run(case.pool.clone(), activation=activation)
    assert error(y, case.expected(activation=activation)[0]) < 1e-6


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=3).filter(sum),
    cut=st.integers(1, 69),
)
def test_any_split_gives_one_prefill_bit_for_bit(device, lengths, cut):
    case = Case(device, lengths, 24)
    pool, parts = case.pool.clone(), case.pool.clone()
    packed = case.run(pool, cu_seqlens=case.starts)
    outs = []
    for n, (first, end) in enumerate(itertools.pairwise(case.starts)):
        middle = min(first + cut, end)
        slots = case.slots[n : n + 1].clone()
        outs += [
            case.run(parts, slice(a, b), slots)
            for a, b in ((first, middle), (middle, end))
            if a < b
        ]
    assert torch.equal(torch.cat(outs), packed)
    assert torch.equal(parts, pool)


def test_exports_are_windows_of_shorter_prefills(device):
    case = Case(device, [2, 70])
    pool = case.pool.clone()
    wanted = [(0, 1, 2), (1, 2, 3), (1, 33, 4), (1, 70, 5)]
    case.run(pool, cu_seqlens=case.starts, exports=wanted)
    _, _, windows = case.expected(export_at=[(n, p) for n, p, _ in wanted])
    assert torch.equal(pool[[s for _, _, s in wanted]].double().cpu(), windows)


def test_single_steps_give_one_prefill(device):
    case = Case(device, [9, 9])
    pool, stepped = case.pool.clone(), case.pool.clone()
    whole = case.run(pool, cu_seqlens=case.starts)
    outs = [
        recurrent_step(case.x[[t, 9 + t]], case.weight, case.bias, stepped, case.slots)
        for t in range(9)
    ]
    assert error(torch.stack(outs, 1).flatten(0, 1), whole.double()) < 1e-6
    assert torch.equal(stepped, pool)


@pytest.mark.parametrize("D", [2, 3, 5])
def test_drafts_write_a_snapshot_each_and_read_the_accepted_one(device, D):
    case = Case(device, [2 * D] + [0] * (2 * D))
    slots = torch.arange(1, 2 * D + 1, dtype=torch.int32, device=device).view(2, D)
    accepted = torch.tensor([D, 1], dtype=torch.int32, device=device)
    pool = case.pool.clone()
    single = pool[[D, D + 1]].clone()
    weights = (case.weight, case.bias)
    out = recurrent_step(case.x, *weights, pool, slots, accepted=accepted)
    own = torch.arange(2, dtype=torch.int32, device=device)
    for d in range(D):
        y = recurrent_step(case.x[[d, D + d]], *weights, single, own)
        assert error(y, out[[d, D + d]].double()) < 1e-6
        assert torch.equal(pool[slots[:, d].long()], single)


def test_padding_and_unrelated_slots_stay_poisoned(device):
    case = Case(device, [40, 5])
    nan = float("nan")
    case.x[40:] = nan
    pool = torch.full_like(case.pool, nan)
    out = torch.full_like(case.x, nan)
    slots, read = (torch.tensor([s, -1], dtype=torch.int32, device=device) for s in (2, -1))
    case.run(pool, slots=slots, cu_seqlens=case.starts, read_slots=read, out=out)
    assert bool(out[:40].isfinite().all())
    assert bool(out[40:].isnan().all())
    assert bool(pool[2].isfinite().all())
    assert bool(pool[[0, 1, 3, 4, 5]].isnan().all())
    y = torch.full_like(case.x[:2], nan)
    recurrent_step(case.x[:2], case.weight, case.bias, pool, slots, out=y)
    assert bool(y[0].isfinite().all())
    assert bool(y[1].isnan().all())
    assert bool(pool[[0, 1, 3, 4, 5]].isnan().all())


def test_sequences_without_tokens_move_their_windows(device):
    case = Case(device, [0, 0])
    pool = case.pool.clone()
    read = torch.tensor([3, -1], dtype=torch.int32, device=device)
    case.run(pool, cu_seqlens=case.starts, read_slots=read)
    assert torch.equal(pool[case.slots[0]], case.pool[3])
    assert not pool[case.slots[1]].any()


def test_permuting_requests_permutes_results(device):
    case = Case(device, [4])
    slots = torch.tensor([3, 0, 2, 1], dtype=torch.int32, device=device)
    order = [2, 0, 3, 1]
    pool, moved = case.pool.clone(), case.pool.clone()
    y = recurrent_step(case.x, case.weight, case.bias, pool, slots)
    z = recurrent_step(case.x[order], case.weight, case.bias, moved, slots[order].contiguous())
    assert torch.equal(z, y[order])
    assert torch.equal(moved, pool)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"weight": torch.ones(40, 5)}, "5 taps"),
        ({"weight": torch.ones(39, 4)}, "weight has shape"),
        ({"bias": torch.ones(40, dtype=torch.float16)}, "bias is float16"),
        ({"pool": torch.ones(5, 4, 40)}, "pool has shape"),
        ({"slots": torch.tensor([7], dtype=torch.int32)}, "outside the pool"),
    ],
    ids=["taps", "channels", "bias-dtype", "pool", "slot-7"],
)
def test_wrong_inputs_raise(device, change, sentence):
    case = Case(device, [20])
    given_ = {"weight": case.weight, "bias": case.bias, "pool": case.pool, "slots": case.slots}
    with pytest.raises(KernelInputError, match=sentence):
        chunk_prefill(case.x, *(given_ | {k: x.to(device) for k, x in change.items()}).values())


@pytest.mark.gpu
def test_real_sizes_match_fp64_and_replay(device):
    case = Case(device, [4000, 1, 64, 900], 6144, 4, torch.bfloat16)
    pool, replayed = case.pool.clone(), case.pool.clone()
    out = case.run(pool, cu_seqlens=case.starts)
    expected, windows, _ = case.expected()
    assert error(out, expected) < 4e-3
    assert torch.equal(pool[case.slots.long()].double().cpu(), windows)
    again = torch.full_like(out, float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.run(replayed, cu_seqlens=case.starts, out=again)
    graph.replay()
    assert torch.equal(again, out)
    assert torch.equal(replayed, pool)
