"""Decode of both delta-rule operators: drafts, snapshots, padding, state dtypes."""

from __future__ import annotations

import math

import pytest
import torch

from hybridplan.kernels.common import delta_decode
from hybridplan.kernels.common.checks import KernelInputError
from hybridplan.kernels.common.delta_decode import tiles
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.common.launch import l2_bytes
from hybridplan.kernels.gated_delta import recurrent as gated_recurrent
from hybridplan.kernels.gated_delta import reference as gated_reference
from hybridplan.kernels.kimi_delta import recurrent as kimi_recurrent
from hybridplan.kernels.kimi_delta import reference as kimi_reference

EXACT = 2e-6 if torch.cuda.is_available() else 1e-6
"""fp32 arithmetic; the GPU's exponential and square root are approximations to 2^-22."""

OPERATORS = {
    "gated": (gated_recurrent.recurrent_step, gated_reference),
    "kimi": (kimi_recurrent.recurrent_step, kimi_reference),
}


@pytest.fixture(params=OPERATORS)
def operator(request):
    return request.param


def step(operator, c, pool, slots, **more):
    return OPERATORS[operator][0](c.q, c.k, c.v, c.b, pool, slots, **(c.gates() | more))


def expected(operator, c, decay=None):
    decay = c.log_decay() if decay is None else decay
    return OPERATORS[operator][1].recurrent_reference(
        c.q, c.k, c.v, decay, c.b.double().sigmoid(), c.lengths, c.state
    )


@pytest.mark.parametrize(
    "H, HV, K, V", [(1, 1, 128, 128), (2, 4, 32, 16), (1, 3, 64, 64), (1, 1, 96, 192)], ids=str
)
def test_one_token(operator, delta_case, slot_ids, relative_error, H, HV, K, V):
    c = delta_case([1, 1], H, HV, K, V, per_channel=operator == "kimi")
    pool = c.pool(3, [2, 0], torch.float32)
    o = step(operator, c, pool, slot_ids([2, 0]))
    want_o, want_s = expected(operator, c)
    assert relative_error(o, want_o) < EXACT
    assert relative_error(pool[[2, 0]], want_s) < EXACT
    assert pool[1].isnan().all()


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_state_dtypes_with_bf16_inputs(operator, delta_case, slot_ids, relative_error, state):
    c = delta_case([1], K=64, V=64, per_channel=operator == "kimi", dtype=torch.bfloat16)
    pool = c.pool(1, [0], state)
    c.state = pool.float().clone()
    o = step(operator, c, pool, slot_ids([0]))
    want_o, want_s = expected(operator, c)
    assert o.dtype == torch.bfloat16
    # Output and half states carry one rounding; the interpreter's is towards zero.
    assert relative_error(o, want_o) < (2e-3 if torch.cuda.is_available() else 5e-3)
    assert relative_error(pool, want_s) < {torch.float32: EXACT}.get(state, 5e-3)


@pytest.mark.parametrize("gate", [Gate.NONE, Gate.LOG, Gate.BOUNDED])
def test_other_gates(operator, delta_case, slot_ids, relative_error, gate):
    c = delta_case([2], per_channel=operator == "kimi")
    pool = c.pool(1, [0], torch.float32)
    slots = torch.cat([slot_ids([0]), slot_ids([-1])])[None].contiguous()
    if gate is Gate.BOUNDED and operator == "gated":
        with pytest.raises(KernelInputError, match="no bounded gate"):
            step(operator, c, pool, slots, gate=gate)
        return
    if gate is Gate.NONE:
        arguments, decay = {"gate": gate}, c.x.double() * 0
    elif gate is Gate.LOG:
        c.x = -c.x.abs()
        arguments, decay = {"gate": gate, "gate_input": c.x}, c.x.double()
    else:
        arguments = {**c.gates(), "gate": gate, "lower_bound": -3.0}
        decay = kimi_reference.bounded_gate(c.x, c.a_log, c.dt_bias, -3.0)
    arguments["beta_is_logit"] = True
    # Token 0 goes to slot 0, the snapshot of token 1 is dropped.
    o = OPERATORS[operator][0](c.q, c.k, c.v, c.b, pool, slots, **arguments)
    want_o, _ = expected(operator, c, decay)
    assert relative_error(o, want_o) < EXACT
    c2 = c.part(0, 0, 1)
    assert relative_error(pool, expected(operator, c2, decay[:1])[1]) < EXACT


def test_slices_of_one_packed_row(operator, delta_case, slot_ids):
    c = delta_case([1, 1], H=2, HV=4, K=32, V=16, per_channel=operator == "kimi")
    row = torch.cat([t.flatten(1) for t in (c.q, c.k, c.v)], 1)
    want_pool, pool = c.pool(2, [0, 1], torch.float32), c.pool(2, [0, 1], torch.float32)
    want = step(operator, c, want_pool, slot_ids([0, 1]))
    c.q = row[:, :64].view(2, 2, 32)
    c.k = row[:, 64:128].view(2, 2, 32)
    c.v = row[:, 128:].view(2, 4, 16)
    assert torch.equal(step(operator, c, pool, slot_ids([0, 1])), want)
    assert torch.equal(pool, want_pool)


def test_drafts_write_snapshots_and_the_accepted_one_is_read(
    operator, delta_case, slot_ids, relative_error
):
    c = delta_case([3, 3], per_channel=operator == "kimi")
    slots = slot_ids([[4, 0, 6], [1, 5, 2]])
    accepted = slot_ids([2, 1])
    pool = c.pool(8, [0, 1], torch.float32)  # request 0 starts from its second snapshot
    o = step(operator, c, pool, slots, accepted=accepted)
    want_o, _ = expected(operator, c)
    assert relative_error(o, want_o) < EXACT
    for n in range(2):
        for d in range(3):
            want = expected(operator, c.part(n, 0, d + 1))[1][0]
            assert relative_error(pool[slots[n, d]], want) < EXACT
    assert pool[[3, 7]].isnan().all()


def test_padding_stays_untouched(operator, delta_case, slot_ids):
    c = delta_case([1, 1, 1], per_channel=operator == "kimi")
    pool = c.pool(3, [2, -1, 0], torch.float32)
    out = torch.full_like(c.v, math.nan)
    step(operator, c, pool, slot_ids([2, -1, 0]), out=out)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()
    assert pool[1].isnan().all()


def test_bad_ids_in_a_trusted_call_write_nothing(operator, delta_case, slot_ids):
    c = delta_case([1, 1], per_channel=operator == "kimi")
    pool = c.pool(1, [0, -1], torch.float32)
    out = torch.full_like(c.v, math.nan)
    step(operator, c, pool, slot_ids([0, 7]), out=out, trust_ids=True)
    assert out[1].isnan().all()
    assert out[0].isfinite().all()


def test_permuting_requests_permutes_results(operator, delta_case, slot_ids):
    c = delta_case([1, 1, 1], per_channel=operator == "kimi")
    pool, other = c.pool(3, [0, 1, 2], torch.float32), c.pool(3, [0, 1, 2], torch.float32)
    o = step(operator, c, pool, slot_ids([0, 1, 2]))
    for name in ("q", "k", "v", "b", "x"):
        setattr(c, name, getattr(c, name)[[2, 0, 1]].contiguous())
    assert torch.equal(step(operator, c, other, slot_ids([2, 0, 1])), o[[2, 0, 1]])
    assert torch.equal(other, pool)


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
def test_reading_ahead_changes_nothing(operator, delta_case, slot_ids, relative_error, state):
    """A batch that reads ahead, with padding in it and at its end, equals its requests alone."""
    H, HV, B = (8, 64, 32) if torch.cuda.is_available() else (1, 2, 12)
    c = delta_case([1] * B, H, HV, 128, 64, per_channel=operator == "kimi", dtype=torch.bfloat16)
    ids = [(7 * i) % B for i in range(B)]
    ids[2] = ids[-1] = -1
    kept = [n for n in range(B) if ids[n] >= 0]
    pool = c.pool(B, list(range(B)), state)
    start = pool.clone()
    cut = tiles(B, HV, 64, 128, pool.element_size(), True, l2_bytes(pool.device))
    assert 0 < cut.ahead_programs < B * HV * 64 // cut.rows // 2
    o = step(operator, c, pool, slot_ids(ids), out=torch.full_like(c.v, math.nan))
    for n in kept:
        alone = start.clone()
        want = step(operator, c.part(n, 0, 1), alone, slot_ids([ids[n]]))
        assert relative_error(o[n], want[0].double()) < (EXACT if o.dtype.itemsize > 2 else 4e-3)
        bound = EXACT if state is torch.float32 else 1e-5
        assert relative_error(pool[ids[n]], alone[ids[n]].double()) < bound
    untouched = sorted(set(range(B)) - set(ids))
    assert torch.equal(pool[untouched], start[untouched])
    assert o[[2, B - 1]].isnan().all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter shows addresses")
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_read_ahead_are_the_rows_of_later_programs(
    operator, delta_case, slot_ids, monkeypatch, state
):
    """All lines of the program AHEAD further on, for every program that has a state itself."""
    asked = []
    monkeypatch.setattr(delta_decode, "prefetch", lambda p: asked.append(p.handle.data.tolist()))
    B, HV, K, V = 12, 2, 128, 64
    c = delta_case([1] * B, 1, HV, K, V, per_channel=operator == "kimi")
    ids = [(7 * i) % B for i in range(B)]
    ids[2] = ids[5] = ids[-1] = -1
    pool = c.pool(B, list(range(B)), state)
    size = pool.element_size()
    cut = tiles(B, HV, V, K, size, True, l2_bytes(pool.device))
    tile_bytes, each = cut.rows * K * size, HV * V // cut.rows
    step(operator, c, pool, slot_ids(ids))
    wanted = []
    for program in range(B * each - cut.ahead_programs):
        later = program + cut.ahead_programs
        if ids[program // each] >= 0 and ids[later // each] >= 0:
            start = pool[ids[later // each]].data_ptr() + later % each * tile_bytes
            wanted.append(list(range(start, start + tile_bytes, 128)))
    assert 0 < len(wanted) < B * each
    assert asked == wanted


@pytest.mark.parametrize("log_decay", [0.0, -90.0, -math.inf], ids=str)
def test_extreme_gates(operator, delta_case, slot_ids, relative_error, log_decay):
    c = delta_case([1], per_channel=operator == "kimi")
    pool = c.pool(1, [0], torch.float32)
    gate = torch.full_like(c.x, log_decay)
    o = step(operator, c, pool, slot_ids([0]), gate=Gate.LOG, gate_input=gate)
    want_o, want_s = expected(operator, c, gate.double())
    assert relative_error(o, want_o) < EXACT
    assert relative_error(pool, want_s) < EXACT


REFUSED = {
    "slot beyond the pool": lambda a: a.update(slots=a["slots"] + 9),
    "slot written twice": lambda a: a.update(slots=a["slots"] * 0),
    "slots that do not divide the tokens": lambda a: a.update(slots=a["slots"][:1]),
    "state width of another model": lambda a: a.update(pool=a["pool"][..., :16].contiguous()),
    "q of float64": lambda a: a.update(q=a["q"].double()),
    "gate of another shape": lambda a: a.update(gate_input=a["gate_input"][:1]),
    "a_log in bf16": lambda a: a.update(a_log=a["a_log"].bfloat16()),
    "accepted of int64": lambda a: a.update(accepted=a["slots"].long()),
    "out not contiguous": lambda a: a.update(out=torch.empty(2, 32, 2).mT),
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED.keys())
def test_refuses_before_launch(operator, delta_case, slot_ids, change):
    c = delta_case([1, 1], per_channel=operator == "kimi")
    arguments = {
        "q": c.q,
        "k": c.k,
        "v": c.v,
        "b": c.b,
        "pool": c.pool(2, [0, 1], torch.float32),
        "slots": slot_ids([0, 1]),
        **c.gates(),
    }
    change(arguments)
    first = [arguments.pop(n) for n in ("q", "k", "v", "b", "pool", "slots")]
    with pytest.raises(KernelInputError):
        OPERATORS[operator][0](*first, **arguments)


@pytest.mark.gpu
def test_graph_replay_equals_eager(operator, delta_case, slot_ids):
    c = delta_case([2, 2], K=128, V=128, per_channel=operator == "kimi", dtype=torch.bfloat16)
    slots = slot_ids([[0, 3], [1, 2]])
    eager, pool = (c.pool(4, [0, 1], torch.float32) for _ in "ab")
    want = step(operator, c, eager, slots)
    start, out = pool.clone(), torch.empty_like(want)
    step(operator, c, pool, slots, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(operator, c, pool, slots, out=out)
    pool.copy_(start)
    out.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)
    assert torch.equal(pool, eager)
