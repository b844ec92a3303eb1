"""Prefill where K Q^T is worked out once a group, against fp64 and against once a head."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from hybridplan.kernels.common.spans import spans_of
from hybridplan.kernels.common.varlen import chunk_index
from hybridplan.kernels.scalar_decay import chunk
from hybridplan.kernels.scalar_decay.decay import mamba_decay
from hybridplan.kernels.scalar_decay.gates import MambaStep, TokenDecay
from hybridplan.kernels.scalar_decay.reference import recurrent_reference

G, HV, K, V = 2, 8, 16, 64
CUDA = torch.cuda.is_available()
DTYPE = torch.bfloat16 if CUDA else torch.float32
OUTPUT, STATE = (5e-3, 4e-3) if CUDA else (3e-6, 3e-6)
PATHS = {"segments": {"segment_chunks": 3}, "in parts": {"segment_chunks": 2}, "whole": {}}


def error(x: torch.Tensor, reference: torch.Tensor) -> float:
    return float((x.double().cpu() - reference.cpu()).norm() / reference.norm())


def make(device, lengths, gate="mamba", slow=1.0, amplitude=1.0, scale=0.25):
    """Inputs of a batch whose states decay slowly enough to matter a segment later."""
    gen = torch.Generator().manual_seed(sum(lengths))
    T, N = sum(lengths), len(lengths)
    q, k, v = (torch.randn(s, generator=gen).to(DTYPE) for s in ((T, G, K), (T, G, K), (T, HV, V)))
    q, k = amplitude * q, amplitude * k
    weight = skip = None
    if gate == "mamba":
        dt, a_log, bias, skip = (torch.randn(s, generator=gen) for s in ((T, HV), HV, HV, HV))
        dt -= 3
        step = MambaStep(dt, a_log - 1, bias)
        decay, weight = mamba_decay(
            step.dt.double(), step.a_log.double(), bias.double(), softplus=True
        )
        on_device = MambaStep(dt.to(device), step.a_log.to(device), bias.to(device))
    else:
        decay = -slow * 0.01 * torch.rand((T, HV), generator=gen)
        on_device = TokenDecay(decay.to(device))
    pool = torch.randn((2 * N + 4, HV, V, K), generator=gen)
    starts = [0, *itertools.accumulate(lengths)]
    expected, states, _ = recurrent_reference(
        q, k, v, decay, pool[N : 2 * N], starts, weight=weight, skip=skip, scale=scale
    )
    slots = torch.arange(N, dtype=torch.int32, device=device)
    tensors = [x.to(device) for x in (q, k, v)]
    options = {
        "read_slots": slots + N,
        "skip": None if skip is None else skip.to(device),
        "scale": scale,
        "tma": True,
    }
    return SimpleNamespace(
        inputs=(*tensors, on_device), slots=slots, starts=starts, pool=pool.to(device),
        options=options, expected=expected, states=states, count=N,
    )  # fmt: skip


def run(case, **changed):
    pool = case.pool.clone()
    options = {**case.options, **changed}
    starts = options.pop("starts", case.starts)
    return chunk.chunk_prefill(*case.inputs, pool, case.slots, starts, **options), pool


@pytest.mark.skipif(CUDA, reason="a launcher that is wrapped cannot be repeated by its recipe")
def test_products_are_kept_where_heads_share_them(device, monkeypatch):
    launched = []
    for name in ("_sum_gates", "_prepare_groups"):
        launcher = getattr(chunk, name)

        def call(*args, launcher=launcher, name=name, **options):
            launched.append(name)
            return launcher(*args, **options)

        monkeypatch.setattr(chunk, name, call)
    case = make(device, [130])
    run(case)
    run(case, scale=-0.25)
    run(case, tma=False)
    assert launched == ["_prepare_groups", "_sum_gates", "_sum_gates"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("gate", ["mamba", "token"])
@pytest.mark.parametrize(
    "lengths", [[128, 64, 0, 256], [70, 0, 64, 5, 330]], ids=["whole chunks", "rests"]
)
def test_groups_match_fp64(device, lengths, gate, path):
    case = make(device, lengths, gate)
    out, pool = run(case, **PATHS[path])
    assert error(out, case.expected) < OUTPUT
    assert error(pool[: case.count], case.states) < STATE


@pytest.mark.parametrize("segment_chunks", [0, 3])
def test_groups_agree_with_single_heads(device, segment_chunks):
    case = make(device, [330, 64])
    out, pool = run(case, segment_chunks=segment_chunks)
    alone, alone_pool = run(case, segment_chunks=segment_chunks, tma=False)
    assert error(out, alone.double()) < OUTPUT
    if CUDA:
        assert torch.equal(pool, alone_pool)
    assert error(pool, alone_pool.double()) < 1e-6


@pytest.mark.parametrize(
    "positions, segment_chunks",
    [([64, 128, 320], 0), ([64, 192, 320], 3), ([64, 70, 134, 400], 0)],
    ids=["on chunks", "segments", "off chunks"],
)
def test_exports_are_states_of_shorter_prefills(device, positions, segment_chunks):
    lengths = [400, 66]
    case = make(device, lengths)
    exports = [(0, p, 4 + i) for i, p in enumerate(positions)]
    _, kept = run(case, exports=exports, segment_chunks=segment_chunks)
    q, k, v, gate = case.inputs
    for _, p, slot in exports:
        before = [e for e in exports if e[1] < p]
        pool = case.pool.clone()
        step = MambaStep(gate.dt[:p].contiguous(), gate.a_log, gate.dt_bias)
        options = {**case.options, "read_slots": case.options["read_slots"][:1].clone()}
        chunk.chunk_prefill(
            q[:p], k[:p], v[:p], step, pool, case.slots[:1].clone(), None,
            exports=before, segment_chunks=segment_chunks, **options,
        )  # fmt: skip
        assert torch.equal(kept[slot], pool[0])


@pytest.mark.parametrize("value", [-5.0, -0.0, -80.0], ids=["minus5", "none", "minus80"])
def test_extreme_decays_do_not_overflow(device, value):
    case = make(device, [200], "token", slow=0.0)
    decay = case.inputs[3].log_decay.fill_(value)
    out, pool = run(case)
    q, k, v = (x.cpu() for x in case.inputs[:3])
    expected, states, _ = recurrent_reference(
        q, k, v, decay.cpu(), case.pool[1:2].cpu(), case.starts, scale=0.25
    )
    assert error(out, expected) < OUTPUT
    assert error(pool[:1], states) < STATE


@pytest.mark.parametrize("gate", ["mamba", "token"])
def test_large_queries_and_keys_do_not_overflow(device, gate):
    case = make(device, [200], gate, amplitude=1000.0, scale=1e-6)
    out, pool = run(case)
    assert error(out, case.expected) < OUTPUT
    assert error(pool[:1], case.states) < STATE


def test_padding_stays_as_it_is(device):
    case = make(device, [70, 20, 200])
    nan = float("nan")
    case.slots[1] = -1
    q, k, v, _ = case.inputs
    q[70:90] = k[70:90] = v[70:90] = nan
    case.pool[[0, 1, 2, 6, 7, 8, 9]] = nan
    out, pool = run(case, out=torch.full_like(v, nan))
    assert bool(out[70:90].isnan().all())
    assert error(out[90:], case.expected[90:]) < OUTPUT
    assert bool(pool[[0, 2]].isfinite().all())
    assert bool(pool[[1, 6, 7, 8, 9]].isnan().all())


def test_only_parts_before_the_last_segment_are_worked_out(device):
    index = chunk_index((960, 64, 200), 64, device)
    parts = spans_of(index, (), 64, 64, group_tokens=192)
    assert parts.inner[: parts.inner_count].tolist() == [*range(12), 16, 17, 18]
    assert spans_of(index, (), 64, 64).inner_count == 14 + 3
