"""Prefill of the scalar-decay recurrence against fp64, and the identities it must keep."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.kernels.common.checks import KernelInputError
from hybridplan.kernels.common.spans import _rows
from hybridplan.kernels.scalar_decay import chunk
from hybridplan.kernels.scalar_decay.chunk import chunk_prefill
from hybridplan.kernels.scalar_decay.decay import (
    lightning_log_decay,
    mamba_decay,
    retnet_log_decay,
)
from hybridplan.kernels.scalar_decay.gates import HeadDecay, MambaStep, TokenDecay
from hybridplan.kernels.scalar_decay.recurrent import recurrent_step
from hybridplan.kernels.scalar_decay.reference import chunk_reference, recurrent_reference

SHAPES = [(1, 1, 16, 16), (1, 3, 16, 32), (2, 4, 32, 16), (2, 2, 24, 48)]
GATES = ["lightning", "retnet", "token", "mamba"]

FP32 = 3e-5 if torch.cuda.is_available() else 3e-6
"""Bound for fp32 inputs: the card splits a product into three of tf32, the interpreter does not."""


def error(x: torch.Tensor, reference: torch.Tensor) -> float:
    return float((x.double().cpu() - reference.cpu()).norm() / reference.norm())


class Case:
    """Random inputs of a packed batch: the kernel's arguments, and the reference's."""

    def __init__(self, device, lengths, shape=(1, 2, 16, 16), gate="mamba", dtype=torch.float32):
        G, HV, K, V = shape
        gen = torch.Generator().manual_seed(len(lengths) + sum(lengths))
        T = sum(lengths)

        def draw(*size):
            return torch.randn(size, generator=gen)

        q, k, v = (draw(T, G, K).to(dtype), draw(T, G, K).to(dtype), draw(T, HV, V).to(dtype))
        weight = skip = None
        if gate in ("lightning", "retnet"):
            per_head = (
                lightning_log_decay(HV, 1, 4) if gate == "lightning" else retnet_log_decay(HV)
            )
            log_decay = per_head.expand(T, HV)
            self.gate = HeadDecay(per_head.to(device))
        elif gate == "token":
            log_decay = -torch.rand((T, HV), generator=gen)
            self.gate = TokenDecay(log_decay.to(device))
        else:
            dt, a_log, bias, skip = draw(T, HV), draw(HV), draw(HV), draw(HV)
            log_decay, weight = mamba_decay(
                dt.double(), a_log.double(), bias.double(), softplus=True
            )
            self.gate = MambaStep(dt.to(device), a_log.to(device), bias.to(device))
        N = len(lengths)
        self.device, self.lengths = device, lengths
        self.starts = [0, *itertools.accumulate(lengths)]
        self.pool = draw(2 * N + 4, HV, V, K).to(device)
        self.slots = torch.arange(N - 1, -1, -1, dtype=torch.int32, device=device)
        self.q, self.k, self.v = (x.to(device) for x in (q, k, v))
        self.skip = None if skip is None else skip.to(device)
        self.reference = (q, k, v, log_decay, self.pool.cpu()[self.slots.long().cpu()], self.starts)
        self.options = {"weight": weight, "skip": skip, "scale": 0.5}

    def run(self, pool=None, **changed):
        pool = self.pool.clone() if pool is None else pool
        arguments = {"cu_seqlens": self.starts, "skip": self.skip, "scale": 0.5, **changed}
        rows = arguments.pop("rows", slice(None))
        slots = arguments.pop("slots", self.slots)
        gate = self.gate
        if isinstance(gate, TokenDecay):
            gate = TokenDecay(gate.log_decay[rows].contiguous())
        elif isinstance(gate, MambaStep):
            gate = replace(gate, dt=gate.dt[rows].contiguous())
        out = chunk_prefill(
            self.q[rows], self.k[rows], self.v[rows], gate, pool, slots, **arguments
        )
        return out, pool

    def step(self, pool, t):
        """One decode step of every sequence at its token t."""
        rows = torch.tensor([first + t for first in self.starts[:-1]], device=self.device)
        gate = self.gate
        if isinstance(gate, TokenDecay):
            gate = TokenDecay(gate.log_decay[rows])
        elif isinstance(gate, MambaStep):
            gate = MambaStep(gate.dt[rows], gate.a_log, gate.dt_bias)
        q, k, v = self.q[rows], self.k[rows], self.v[rows]
        return recurrent_step(q, k, v, gate, pool, self.slots, skip=self.skip, scale=0.5)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "G{}-HV{}-K{}-V{}".format(*s))
def test_chunk_matches_fp64(device, shape, gate):
    case = Case(device, [70, 0, 64, 5], shape, gate)
    out, pool = case.run()
    expected, states, _ = recurrent_reference(*case.reference, **case.options)
    assert error(out, expected) < FP32
    assert error(pool[case.slots.long()], states) < FP32


@pytest.mark.parametrize("scale", [0.5, -0.5])
def test_steps_may_be_zero_and_the_scale_negative(device, scale):
    case = Case(device, [70, 130])
    gate = MambaStep(case.gate.dt.clamp_min(0), case.gate.a_log, softplus=False)
    decay, weight = mamba_decay(
        gate.dt.double().cpu(), gate.a_log.double().cpu(), None, softplus=False
    )
    case.gate = gate
    out, pool = case.run(scale=scale)
    q, k, v, _, initial, starts = case.reference
    options = case.options | {"weight": weight, "scale": scale}
    expected, states, _ = recurrent_reference(q, k, v, decay, initial, starts, **options)
    assert error(out, expected) < FP32
    assert error(pool[case.slots.long()], states) < FP32


@pytest.mark.parametrize("step", [5.0, 500.0])
def test_long_steps_keep_their_weights(device, step):
    case = Case(device, [130])
    bias, a_log = torch.full((2,), step), torch.full((2,), 16.0).log()
    case.gate = MambaStep(case.gate.dt, a_log.to(device), bias.to(device))
    decay, weight = mamba_decay(
        case.gate.dt.double().cpu(), a_log.double(), bias.double(), softplus=True
    )
    out, pool = case.run()
    q, k, v, _, initial, starts = case.reference
    options = case.options | {"weight": weight}
    expected, states, _ = recurrent_reference(q, k, v, decay, initial, starts, **options)
    # a weight is the difference of two sums, which reach 2^12 in a chunk
    assert error(out, expected) < 3e-4
    assert error(pool[case.slots.long()], states) < 3e-4


@pytest.mark.parametrize("gate", GATES)
def test_references_agree(gate):
    case = Case(torch.device("cpu"), [70, 3, 16], (2, 4, 16, 16), gate)
    by_token = recurrent_reference(*case.reference, **case.options)
    by_chunk = chunk_reference(*case.reference, **case.options, chunk_tokens=16)
    assert error(by_chunk[0], by_token[0]) < 1e-13
    assert error(by_chunk[1], by_token[1]) < 1e-13


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_inputs_stay_within_their_rounding(device, dtype):
    case = Case(device, [130, 64], (1, 2, 32, 32), "mamba", dtype)
    out, pool = case.run()
    expected, states, _ = recurrent_reference(*case.reference, **case.options)
    assert error(out, expected) < 4.5e-3
    assert error(pool[case.slots.long()], states) < 3.5e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_state_is_rounded_once_to_the_pools_dtype(device, dtype):
    case = Case(device, [100])
    _, exact = case.run(case.pool.to(dtype).float())
    _, pool = case.run(case.pool.to(dtype))
    # the interpreter truncates to bfloat16 where the card rounds
    assert error(pool, exact.double()) < (4e-3 if dtype is torch.bfloat16 else 3e-4)


def test_descriptors_and_pointers_give_the_same_bits(device):
    case = Case(device, [130, 64, 7], (1, 2, 16, 32))
    with_tma, pool_tma = case.run(tma=True)
    plain, pool = case.run(tma=False)
    assert torch.equal(with_tma, plain)
    assert torch.equal(pool_tma, pool)


@pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is launched")
@pytest.mark.parametrize("shift", [0, 1])
def test_an_output_off_16_bytes_has_no_descriptor(device, monkeypatch, shift):
    made = []
    monkeypatch.setattr(chunk, "launch_all", lambda launches, *_: made.extend(launches))
    T, HV, K, V = 1024, 1, 16, 16
    x = torch.zeros((T, HV, K), dtype=torch.bfloat16, device=device)
    out = torch.zeros(T * HV * V + 1, dtype=x.dtype, device=device)[shift : shift + T * HV * V]
    pool = torch.zeros((1, HV, V, K), device=device)
    decay = HeadDecay(torch.zeros(HV, device=device))
    slots = torch.zeros(1, dtype=torch.int32, device=device)
    chunk_prefill(x, x, x, decay, pool, slots, out=out.view(T, HV, V))
    assert [m is None for m in made[-1].maps[:4]] == [shift == 1] * 4


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 90), min_size=1, max_size=3).filter(sum),
    gate=st.sampled_from(GATES),
    cut=st.integers(1, 89),
)
def test_any_split_gives_one_prefill(device, lengths, gate, cut):
    case = Case(device, lengths, (1, 2, 16, 16), gate)
    whole, pool = case.run()
    parts = case.pool.clone()
    outs = []
    for n, (first, end) in enumerate(itertools.pairwise(case.starts)):
        middle = min(first + cut, end)
        for a, b in ((first, middle), (middle, end)):
            if a < b:
                slots = case.slots[n : n + 1].clone()
                outs.append(case.run(parts, rows=slice(a, b), slots=slots, cu_seqlens=None)[0])
    assert error(torch.cat(outs), whole.double()) < FP32
    assert error(parts, pool.double()) < FP32


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("segment_chunks", [1, 2])
def test_segments_side_by_side_give_one_prefill(device, gate, segment_chunks):
    case = Case(device, [200, 64, 0, 10, 129], gate=gate)
    whole, pool = case.run()
    out, split = case.run(segment_chunks=segment_chunks)
    assert error(out, whole.double()) < FP32
    assert error(split, pool.double()) < FP32


@pytest.mark.parametrize("tma", [False, True], ids=["pointers", "descriptors"])
@pytest.mark.parametrize("position", [64, 128, 192, 230])
def test_exports_of_segments_are_final_states_bit_for_bit(device, position, tma):
    case = Case(device, [20, 230])
    spare = case.pool.shape[0] - 1
    options = {"segment_chunks": 1, "tma": tma}
    _, pool = case.run(exports=[(1, position, spare)], **options)
    rows = slice(20, 20 + position)
    _, shorter = case.run(rows=rows, slots=case.slots[1:].clone(), cu_seqlens=None, **options)
    assert torch.equal(pool[spare], shorter[case.slots[1].item()])


def test_given_segments_decide_the_bits_whatever_the_descriptors(device):
    case = Case(device, [330], gate="retnet", dtype=torch.bfloat16)
    out, pool = case.run(segment_chunks=2, tma=True)
    plain, plain_pool = case.run(segment_chunks=2, tma=False)
    assert torch.equal(out, plain)
    assert torch.equal(pool, plain_pool)


def test_segments_refuse_an_export_within_a_chunk(device):
    case = Case(device, [130])
    with pytest.raises(KernelInputError, match="chunk boundaries"):
        case.run(exports=[(0, 65, 4)], segment_chunks=1)


@pytest.mark.parametrize("gate", GATES)
def test_single_steps_give_one_prefill(device, gate):
    case = Case(device, [20, 20], gate=gate)
    whole, pool = case.run()
    stepped = case.pool.clone()
    outs = torch.stack([case.step(stepped, t) for t in range(20)], 1).flatten(0, 1)
    assert error(outs, whole.double()) < FP32
    assert error(stepped, pool.double()) < FP32


@pytest.mark.parametrize("position", [1, 63, 64, 65, 128, 150])
def test_export_is_the_final_state_of_a_shorter_prefill(device, position):
    case = Case(device, [20, 150])
    spare = case.pool.shape[0] - 1
    _, pool = case.run(exports=[(1, position, spare)])
    rows = slice(20, 20 + position)
    _, shorter = case.run(rows=rows, slots=case.slots[1:].clone(), cu_seqlens=None)
    assert torch.equal(pool[spare], shorter[case.slots[1].item()])


@pytest.mark.parametrize("gate", ["lightning", "mamba"])
@pytest.mark.parametrize(
    "lengths, positions, segment_chunks",
    [
        ([450, 130], [(0, 64), (0, 128), (0, 384), (1, 64), (1, 128)], 0),
        ([450, 130], [(0, 64), (0, 192), (0, 320), (0, 450), (1, 64)], 3),
        ([400], [(0, 64), (0, 70), (0, 134), (0, 198), (0, 300)], 0),
    ],
    ids=["on chunks", "segments", "off chunks"],
)
def test_exports_between_full_chunks_are_states_of_shorter_prefills(
    device, lengths, positions, segment_chunks, gate
):
    case = Case(device, lengths, gate=gate)
    exports = [(n, p, len(lengths) + i) for i, (n, p) in enumerate(positions)]
    pool = torch.cat([case.pool, case.pool])
    _, kept = case.run(pool.clone(), exports=exports, segment_chunks=segment_chunks)
    starts = [0, *itertools.accumulate(lengths)]
    for n, p, slot in exports:
        before = [e for e in exports if e[0] == n and e[1] < p]
        _, short = case.run(
            pool.clone(),
            rows=slice(starts[n], starts[n] + p),
            slots=case.slots[n : n + 1].clone(),
            cu_seqlens=None,
            exports=[(0, q, s) for _, q, s in before],
            segment_chunks=segment_chunks,
        )
        assert torch.equal(kept[slot], short[case.slots[n].item()])


def test_only_exports_between_full_chunks_are_stops():
    exports = ((0, 64, 3), (0, 70, 4), (0, 134, 5), (0, 198, 6), (0, 256, 7))
    spans, walks, stops = _rows((300,), exports, 0, 64)
    assert spans == [(0, 64, 3, 0), (64, 70, 4, 0), (70, 198, 6, 0), (198, 256, 7, 0),
                     (256, 300, -1, 0)]  # fmt: skip
    assert stops == [(134, 5), (-1, -1)]
    assert walks == [(0, 5, 0, 0, 1, 0, 0, 1)]


def test_walks_name_the_parts_of_their_sequence():
    _, walks, _ = _rows((300, 64, 0), (), 128, 0, 64)
    assert [walk[3:6] + walk[7:] for walk in walks] == [
        (0, 3, 0, 5), (1, 3, 0, 5), (2, 3, 0, 5), (0, 1, 5, 1), (0, 1, 6, 1)
    ]  # fmt: skip
    assert len(_rows((300, 64, 0), (), 64, 0)[1]) == 7


def test_several_exports_in_one_pass(device):
    case = Case(device, [100, 90], gate="token")
    wanted = [(0, 64, 4), (0, 10, 5), (1, 33, 6), (1, 90, 7)]
    out, pool = case.run(exports=wanted)
    export_at = [(n, p) for n, p, _ in wanted]
    expected, _, states = recurrent_reference(*case.reference, **case.options, export_at=export_at)
    assert error(out, expected) < FP32
    assert error(pool[[s for _, _, s in wanted]], states) < FP32


@pytest.mark.parametrize("gate", GATES)
def test_varlen_is_separate_runs(device, gate):
    case = Case(device, [65, 1, 0, 40], gate=gate)
    packed, pool = case.run()
    alone = case.pool.clone()
    for n, (a, b) in enumerate(itertools.pairwise(case.starts)):
        if a < b:
            slots = case.slots[n : n + 1].clone()
            out, _ = case.run(alone, rows=slice(a, b), slots=slots, cu_seqlens=None)
            assert torch.equal(out, packed[a:b])
    assert torch.equal(alone, pool)


def test_sequences_without_tokens_move_their_states(device):
    case = Case(device, [0, 0])
    pool = case.pool.clone()
    read = torch.tensor([3, -1], dtype=torch.int32, device=device)
    case.run(pool, read_slots=read)
    assert torch.equal(pool[case.slots[0]], case.pool[3])
    assert not pool[case.slots[1]].any()


def test_permuting_sequences_permutes_results(device):
    case = Case(device, [65, 30, 7])
    out, pool = case.run()
    order = [2, 0, 1]
    spans = list(itertools.pairwise(case.starts))
    rows = torch.cat([torch.arange(*spans[n], device=device) for n in order])
    starts = [0, *itertools.accumulate(case.lengths[n] for n in order)]
    moved, moved_pool = case.run(rows=rows, slots=case.slots[order].contiguous(), cu_seqlens=starts)
    assert torch.equal(moved, out[rows])
    assert torch.equal(moved_pool, pool)


def test_padding_and_unrelated_slots_stay_poisoned(device):
    case = Case(device, [70, 20, 30])
    nan = float("nan")
    case.slots[1] = -1
    pool = torch.full_like(case.pool, nan)
    pool[case.slots[2]] = 1.0
    read = torch.tensor([-1, -1, case.slots[2].item()], dtype=torch.int32, device=device)
    out = torch.full_like(case.v, nan)
    case.q[70:90] = case.k[70:90] = case.v[70:90] = nan
    case.run(pool, read_slots=read, exports=[(0, 33, 7)], out=out)
    written = [case.slots[0].item(), case.slots[2].item(), 7]
    others = [i for i in range(pool.shape[0]) if i not in written]
    assert bool(out[70:90].isnan().all())
    assert bool(out[:70].isfinite().all())
    assert bool(out[90:].isfinite().all())
    assert bool(pool[written].isfinite().all())
    assert bool(pool[others].isnan().all())


@pytest.mark.parametrize("value", [-5.0, -0.0, -80.0], ids=["minus5", "none", "minus80"])
def test_extreme_decays_do_not_overflow(device, value):
    case = Case(device, [130], gate="token")
    case.gate.log_decay.fill_(value)
    reference = list(case.reference)
    reference[3] = case.gate.log_decay.cpu()
    out, pool = case.run()
    expected, states, _ = recurrent_reference(*reference, **case.options)
    assert error(out, expected) < FP32
    assert error(pool[case.slots.long()], states) < FP32


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"cu_seqlens": [0, 30]}, "cu_seqlens ends at 30"),
        ({"cu_seqlens": [0, 50, 40]}, "falls"),
        ({"exports": [(0, 41, 5)]}, "export at token 41"),
        ({"exports": [(0, 4, 99)]}, "outside the pool"),
        ({"exports": [(0, 4, 0)]}, "written twice"),
        ({"slots": torch.tensor([9], dtype=torch.int32)}, "outside the pool"),
        ({"slots": torch.tensor([0], dtype=torch.int64)}, "needed int32"),
        ({"slots": torch.tensor([0, 1], dtype=torch.int32)}, "shape"),
        ({"skip": torch.ones(3)}, "skip has shape"),
        ({"out": torch.empty(40, 2, 15)}, "out has shape"),
    ],
    ids=lambda x: x.split()[0] if isinstance(x, str) else next(iter(x)),
)
def test_wrong_inputs_raise_and_change_nothing(device, change, sentence):
    case = Case(device, [40])
    change = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in change.items()}
    pool = case.pool.clone()
    with pytest.raises(KernelInputError, match=sentence):
        case.run(pool, **change)
    assert torch.equal(pool, case.pool)


def test_strided_heads_and_mixed_dtypes_are_refused(device):
    case = Case(device, [40])
    for name, x in (("q", case.q.transpose(0, 2)), ("k", case.k.half()), ("v", case.v[..., ::2])):
        with pytest.raises(KernelInputError, match=r"shape|needed|contiguous"):
            chunk_prefill(
                *({"q": case.q, "k": case.k, "v": case.v} | {name: x}).values(),
                case.gate,
                case.pool,
                case.slots,
            )


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape, gate",
    [
        ((64, 64, 128, 128), "lightning"),
        ((8, 80, 128, 64), "mamba"),
        ((16, 16, 256, 128), "retnet"),
    ],
    ids=["lightning-64x128x128", "mamba2-80h-8g", "retnet-256"],
)
def test_real_sizes_match_fp64_and_replay(device, shape, gate):
    case = Case(device, [1000, 64, 1, 300], shape, gate, torch.bfloat16)
    out, pool = case.run(tma=True)
    reference = [x.to(device) if isinstance(x, torch.Tensor) else x for x in case.reference]
    options = {
        k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in case.options.items()
    }
    expected, states, _ = recurrent_reference(*reference, **options)
    assert error(out, expected) < 5e-3
    assert error(pool[case.slots.long()], states) < 4e-3
    replayed = case.pool.clone()
    graph = torch.cuda.CUDAGraph()
    again = torch.empty_like(out)
    case.run(replayed.clone(), out=again, tma=True)
    with torch.cuda.graph(graph):
        case.run(replayed, out=again, tma=True)
    again.fill_(float("nan"))
    graph.replay()
    assert torch.equal(again, out)
    assert torch.equal(replayed, pool)
