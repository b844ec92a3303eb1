"""Gated linear attention with a decay per channel: prefill and decode against fp64."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.kernels.common.checks import KernelInputError
from hybridplan.kernels.gated_linear.chunk import chunk_prefill
from hybridplan.kernels.gated_linear.recurrent import recurrent_step
from hybridplan.kernels.gated_linear.reference import chunk_reference, recurrent_reference

FP32 = 3e-5 if torch.cuda.is_available() else 3e-6
"""Bound for fp32 inputs: the card splits a product into three of tf32, the interpreter does not."""


def error(x: torch.Tensor, reference: torch.Tensor) -> float:
    return float((x.double().cpu() - reference.cpu()).norm() / reference.norm())


class Case:
    """Random inputs of a packed batch; ``strength`` scales decays drawn from [-1, 0]."""

    def __init__(self, device, lengths, shape=(2, 16, 16), strength=0.2, dtype=torch.float32):
        H, K, V = shape
        gen = torch.Generator().manual_seed(sum(lengths))
        T, N = sum(lengths), len(lengths)
        self.starts = [0, *itertools.accumulate(lengths)]
        q, k, v, pool = (
            torch.randn(size, generator=gen)
            for size in ((T, H, K), (T, H, K), (T, H, V), (N + 3, H, V, K))
        )
        g = -strength * torch.rand((T, H, K), generator=gen)
        self.tensors = tuple(x.to(device) for x in (q.to(dtype), k.to(dtype), v.to(dtype), g))
        self.pool = pool.to(device)
        self.slots = torch.arange(N - 1, -1, -1, dtype=torch.int32, device=device)

    def run(self, pool, rows=slice(None), slots=None, cu_seqlens=None, **options):
        slots = self.slots if slots is None else slots
        tensors = (x[rows] for x in self.tensors)
        return chunk_prefill(*tensors, pool, slots, cu_seqlens, scale=0.5, **options)

    def expected(self):
        before = self.pool[self.slots.long()]
        return recurrent_reference(*self.tensors, before, self.starts, scale=0.5)


@pytest.mark.parametrize("strength", [0.0, 0.2, 5.0, 60.0], ids="decay{}".format)
@pytest.mark.parametrize(
    "shape", [(1, 16, 16), (2, 24, 48)], ids=lambda s: "H{}-K{}-V{}".format(*s)
)
def test_chunk_matches_fp64(device, shape, strength):
    case = Case(device, [37, 0, 16, 5], shape, strength)
    pool = case.pool.clone()
    out = case.run(pool, cu_seqlens=case.starts)
    expected, states, _ = case.expected()
    assert error(out, expected) < FP32
    assert error(pool[case.slots.long()], states) < FP32


def test_sequences_without_tokens_move_their_states(device):
    case = Case(device, [0, 0])
    pool = case.pool.clone()
    read = torch.tensor([3, -1], dtype=torch.int32, device=device)
    case.run(pool, cu_seqlens=case.starts, read_slots=read)
    assert torch.equal(pool[case.slots[0]], case.pool[3])
    assert not pool[case.slots[1]].any()


def test_a_steady_decay_of_minus_five_does_not_overflow(device):
    case = Case(device, [64])
    case.tensors[3].fill_(-5.0)
    pool = case.pool.clone()
    out = case.run(pool)
    expected, states, _ = case.expected()
    assert error(out, expected) < FP32
    assert error(pool[case.slots.long()], states) < FP32


def test_references_agree():
    case = Case(torch.device("cpu"), [37, 3, 16])
    by_token = case.expected()
    before = case.pool[case.slots.long()]
    by_chunk = chunk_reference(*case.tensors, before, case.starts, scale=0.5)
    assert error(by_chunk[0], by_token[0]) < 1e-13
    assert error(by_chunk[1], by_token[1]) < 1e-13


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_inputs_and_states(device, dtype):
    case = Case(device, [40, 16], dtype=dtype)
    pool = case.pool.to(dtype)
    case.pool = pool.float()
    out = case.run(pool, cu_seqlens=case.starts)
    expected, states, _ = case.expected()
    # the interpreter truncates to bfloat16 where the card rounds
    bound = 8e-3 if device.type == "cpu" else 5e-3
    assert error(out, expected) < bound
    assert error(pool[case.slots.long()], states) < bound


@settings(max_examples=6, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3), cut=st.integers(1, 39))
def test_any_split_gives_one_prefill_and_varlen_is_separate(device, lengths, cut):
    case = Case(device, lengths)
    pool, alone, parts = (case.pool.clone() for _ in range(3))
    packed = case.run(pool, cu_seqlens=case.starts)
    outs = []
    for n, (first, end) in enumerate(itertools.pairwise(case.starts)):
        slots = case.slots[n : n + 1].clone()
        assert torch.equal(case.run(alone, slice(first, end), slots), packed[first:end])
        middle = min(first + cut, end)
        outs += [
            case.run(parts, slice(a, b), slots)
            for a, b in ((first, middle), (middle, end))
            if a < b
        ]
    assert torch.equal(alone, pool)
    assert error(torch.cat(outs), packed.double()) < FP32
    assert error(parts, pool.double()) < FP32


@pytest.mark.parametrize("position", [1, 16, 17, 32, 40])
def test_export_is_the_final_state_of_a_shorter_prefill(device, position):
    case = Case(device, [5, 40])
    pool, shorter = case.pool.clone(), case.pool.clone()
    case.run(pool, cu_seqlens=case.starts, exports=[(1, position, 4)])
    case.run(shorter, slice(5, 5 + position), case.slots[1:].clone())
    assert torch.equal(pool[4], shorter[case.slots[1].item()])


def test_single_steps_give_one_prefill(device):
    case = Case(device, [18, 18])
    pool, stepped = case.pool.clone(), case.pool.clone()
    whole = case.run(pool, cu_seqlens=case.starts)
    outs = []
    for t in range(18):
        rows = torch.tensor([t, 18 + t], device=device)
        tensors = (x[rows] for x in case.tensors)
        outs.append(recurrent_step(*tensors, stepped, case.slots, scale=0.5))
    assert error(torch.stack(outs, 1).flatten(0, 1), whole.double()) < FP32
    assert error(stepped, pool.double()) < FP32


def test_drafts_write_a_snapshot_each_and_read_the_accepted_one(device):
    case = Case(device, [6])
    pool = case.pool[[0, 1, 2, 3, 0, 1, 2, 3]].clone()
    slots = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32, device=device)
    accepted = torch.tensor([2, 1], dtype=torch.int32, device=device)
    single = pool[[2, 4]].clone()
    out = recurrent_step(*case.tensors, pool, slots, accepted=accepted)
    own = torch.arange(2, dtype=torch.int32, device=device)
    for d in range(3):
        rows = torch.tensor([d, 3 + d], device=device)
        y = recurrent_step(*(x[rows] for x in case.tensors), single, own)
        assert torch.equal(y, out[rows])
        assert torch.equal(pool[slots[:, d].long()], single)


def test_padding_and_unrelated_slots_stay_poisoned(device):
    case = Case(device, [20, 5])
    nan = float("nan")
    for x in case.tensors:
        x[20:] = nan
    pool = torch.full_like(case.pool, nan)
    out = torch.full_like(case.tensors[2], nan)
    slots, read = (torch.tensor([s, -1], dtype=torch.int32, device=device) for s in (2, -1))
    case.run(pool, slots=slots, cu_seqlens=case.starts, read_slots=read, out=out)
    assert bool(out[:20].isfinite().all())
    assert bool(out[20:].isnan().all())
    assert bool(pool[2].isfinite().all())
    assert bool(pool[[0, 1, 3, 4]].isnan().all())


def test_wrong_inputs_raise(device):
    case = Case(device, [20])
    q, k, v, g = case.tensors
    for wrong in ((q, k, v, g[:, :1]), (q, k[:10], v, g), (q.half(), k, v, g), (q, k, v.mT, g)):
        with pytest.raises(KernelInputError):
            chunk_prefill(*wrong, case.pool, case.slots)


@pytest.mark.gpu
def test_real_sizes_match_fp64_and_replay(device):
    case = Case(device, [500, 64, 1, 100], (32, 128, 128), 0.05, torch.bfloat16)
    pool, replayed = case.pool.clone(), case.pool.clone()
    out = case.run(pool, cu_seqlens=case.starts)
    expected, states, _ = case.expected()
    assert error(out, expected) < 5.2e-3
    assert error(pool[case.slots.long()], states) < 4.4e-3
    again = torch.full_like(out, float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.run(replayed, cu_seqlens=case.starts, out=again)
    graph.replay()
    assert torch.equal(again, out)
    assert torch.equal(replayed, pool)
