"""Decode of the scalar-decay recurrence: one token, drafts with snapshots, padding."""

from __future__ import annotations

import pytest
import torch

from hybridplan.kernels.common.checks import KernelInputError
from hybridplan.kernels.scalar_decay.decay import mamba_decay
from hybridplan.kernels.scalar_decay.gates import HeadDecay, MambaStep, TokenDecay
from hybridplan.kernels.scalar_decay.recurrent import recurrent_step
from hybridplan.kernels.scalar_decay.reference import recurrent_reference

G, HV, K, V = 2, 4, 24, 32


def error(x: torch.Tensor, reference: torch.Tensor) -> float:
    return float((x.double().cpu() - reference.cpu()).norm() / reference.norm())


def inputs(device, B, D, kind="mamba", dtype=torch.float32):
    gen = torch.Generator().manual_seed(7 * B + D)

    def draw(*size):
        return torch.randn(size, generator=gen)

    rows = B * D
    q, k, v = draw(rows, G, K).to(dtype), draw(rows, G, K).to(dtype), draw(rows, HV, V).to(dtype)
    weight = skip = None
    if kind == "mamba":
        dt, a_log, bias, skip = draw(rows, HV), draw(HV), draw(HV), draw(HV)
        decay, weight = mamba_decay(dt.double(), a_log.double(), bias.double(), softplus=True)
        gate = MambaStep(dt.to(device), a_log.to(device), bias.to(device))
        skip = skip.to(device)
    elif kind == "token":
        decay = -torch.rand((rows, HV), generator=gen)
        gate = TokenDecay(decay.to(device))
    else:
        per_head = -torch.rand(HV, generator=gen)
        decay, gate = per_head.expand(rows, HV), HeadDecay(per_head.to(device))
    pool = draw(B * D + 3, HV, V, K).to(device)
    tensors = tuple(x.to(device) for x in (q, k, v))
    return tensors, gate, pool, decay, weight, skip


@pytest.mark.parametrize("kind", ["mamba", "token", "head"])
def test_one_token_matches_fp64(device, kind):
    qkv, gate, pool, decay, weight, skip = inputs(device, 3, 1, kind)
    slots = torch.tensor([4, 0, 2], dtype=torch.int32, device=device)
    before = pool.cpu()[[4, 0, 2]]
    out = recurrent_step(*qkv, gate, pool, slots, skip=skip, scale=0.3)
    expected, states, _ = recurrent_reference(
        *(x.cpu() for x in qkv),
        decay,
        before,
        [0, 1, 2, 3],
        weight=weight,
        skip=None if skip is None else skip.cpu(),
        scale=0.3,
    )
    assert error(out, expected) < 1e-6
    assert error(pool[slots.long()], states) < 1e-6


@pytest.mark.parametrize("state", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_states_are_read_exactly_and_rounded_on_store(device, state):
    qkv, gate, pool, *_, skip = inputs(device, 2, 1, "mamba", torch.bfloat16)
    slots = torch.tensor([1, 0], dtype=torch.int32, device=device)
    half = pool.to(state)
    exact = half.float()
    out = recurrent_step(*qkv, gate, half, slots, skip=skip)
    assert torch.equal(out, recurrent_step(*qkv, gate, exact, slots, skip=skip))
    assert error(half, exact.double()) < 4e-3


def test_drafts_write_a_snapshot_each_and_read_the_accepted_one(device):
    B, D = 3, 3
    (q, k, v), gate, pool, *_, skip = inputs(device, B, D)
    slots = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=torch.int32, device=device)
    accepted = torch.tensor([2, 1, 3], dtype=torch.int32, device=device)
    single = pool[[2, 4, 9]].clone()
    out = recurrent_step(q, k, v, gate, pool, slots, accepted=accepted, skip=skip)
    own = torch.arange(B, dtype=torch.int32, device=device)
    for d in range(D):
        rows = torch.arange(B, device=device) * D + d
        step = MambaStep(gate.dt[rows], gate.a_log, gate.dt_bias)
        y = recurrent_step(q[rows], k[rows], v[rows], step, single, own, skip=skip)
        assert torch.equal(y, out[rows])
        assert torch.equal(pool[slots[:, d].long()], single)


def test_padding_and_unrelated_slots_stay_poisoned(device):
    (q, k, v), gate, pool, *_, skip = inputs(device, 3, 2)
    nan = float("nan")
    pool[[0, 3, 6, 7, 8]] = nan
    q[2:4] = nan
    out = torch.full_like(v, nan)
    slots = torch.tensor([[1, 2], [-1, 3], [4, -1]], dtype=torch.int32, device=device)
    recurrent_step(q, k, v, gate, pool, slots, skip=skip, out=out)
    assert bool(out[2:4].isnan().all())
    assert bool(out[[0, 1, 4, 5]].isfinite().all())
    assert bool(pool[[0, 3, 6, 7, 8]].isnan().all())
    assert bool(pool[[1, 2, 4]].isfinite().all())


def test_rows_may_be_slices_of_a_packed_row(device):
    (q, k, v), gate, pool, *_ = inputs(device, 2, 1, "head")
    packed = torch.cat([x.flatten(1) for x in (q, k, v)], 1)
    parts = packed.split([G * K, G * K, HV * V], 1)
    views = [p.unflatten(1, x.shape[1:]) for p, x in zip(parts, (q, k, v), strict=True)]
    slots = torch.tensor([1, 0], dtype=torch.int32, device=device)
    other = pool.clone()
    assert torch.equal(
        recurrent_step(*views, gate, pool, slots), recurrent_step(q, k, v, gate, other, slots)
    )
    assert torch.equal(pool, other)


@pytest.mark.parametrize(
    "slots, accepted, sentence",
    [
        ([[0, 1], [2, 99]], None, "outside the pool"),
        ([[0, 1], [1, 2]], None, "written twice"),
        ([[0, 1, 2], [3, 4, 5]], None, "shape"),
        ([[0, 1], [2, 3]], [1, 3], "accepted holds 3"),
    ],
    ids=["slot-99", "slot-twice", "three-columns", "accepted-3-of-2"],
)
def test_wrong_slots_raise_and_change_nothing(device, slots, accepted, sentence):
    qkv, gate, pool, *_ = inputs(device, 2, 2)
    before = pool.clone()
    ids = torch.tensor(slots, dtype=torch.int32, device=device)
    if accepted is not None:
        accepted = torch.tensor(accepted, dtype=torch.int32, device=device)
    with pytest.raises(KernelInputError, match=sentence):
        recurrent_step(*qkv, gate, pool, ids, accepted=accepted)
    assert torch.equal(pool, before)


@pytest.mark.gpu
def test_graph_replay_is_eager(device):
    qkv, gate, pool, *_, skip = inputs(device, 64, 2, "mamba", torch.bfloat16)
    slots = torch.randperm(128, device=device, dtype=torch.int32).view(64, 2)
    eager, replayed = pool.clone(), pool.clone()
    out = recurrent_step(*qkv, gate, eager, slots, skip=skip)
    again = torch.empty_like(out)
    recurrent_step(*qkv, gate, replayed.clone(), slots, skip=skip, out=again)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recurrent_step(*qkv, gate, replayed, slots, skip=skip, out=again)
    again.fill_(float("nan"))
    graph.replay()
    assert torch.equal(again, out)
    assert torch.equal(replayed, eager)
