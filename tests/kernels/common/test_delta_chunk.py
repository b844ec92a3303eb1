"""Prefill of both delta-rule operators: equal to the recurrence, however the tokens are cut."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridplan.kernels.common import delta_launch
from hybridplan.kernels.common.checks import KernelInputError
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.gated_delta import chunk as gated_chunk
from hybridplan.kernels.gated_delta import recurrent as gated_recurrent
from hybridplan.kernels.gated_delta import reference as gated_reference
from hybridplan.kernels.kimi_delta import chunk as kimi_chunk
from hybridplan.kernels.kimi_delta import recurrent as kimi_recurrent
from hybridplan.kernels.kimi_delta import reference as kimi_reference

# Entries above the diagonal, and chunks done again, may overflow (kimi_delta.prepare).
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)

ON_GPU = torch.cuda.is_available()
TIGHT = 8e-3 if ON_GPU else 2e-5
"""Products are bf16 on the GPU and fp32 under the interpreter, which then tests the algebra."""

OPERATORS = {
    "gated": (gated_chunk.chunk_prefill, gated_recurrent.recurrent_step, gated_reference),
    "kimi": (kimi_chunk.chunk_prefill, kimi_recurrent.recurrent_step, kimi_reference),
}


@pytest.fixture(params=OPERATORS)
def operator(request):
    return request.param


def expected(operator, c):
    reference = OPERATORS[operator][2]
    return reference.recurrent_reference(
        c.q, c.k, c.v, c.log_decay(), c.b.double().sigmoid(), c.lengths, c.state
    )


def run(operator, c, pool, slots, **more):
    out = torch.full((sum(c.lengths), *c.v.shape[1:]), math.nan, device=c.q.device, dtype=c.v.dtype)
    prefill = OPERATORS[operator][0]
    return prefill(c.q, c.k, c.v, c.b, pool, slots, c.cu_seqlens, out=out, **(c.gates() | more))


@pytest.mark.parametrize(
    "lengths, H, HV, K, V, tma",
    [
        ([150], 1, 1, 64, 64, True),
        ([150], 1, 1, 64, 64, False),
        ([64, 3, 0, 65], 1, 2, 32, 32, False),
        ([66], 1, 1, 96, 192, False),
        ([65], 1, 2, 128, 128, True),
        ([40], 2, 4, 64, 32, True),
        ([70, 0, 9], 2, 6, 32, 32, False),
        ([600], 1, 3, 64, 64, True),
        ([66], 1, 4, 32, 32, False),
        ([9], 1, 5, 32, 32, False),
        ([65], 1, 8, 32, 32, False),
    ],
    ids=lambda x: str(x).replace(" ", ""),
)
def test_equals_the_recurrence(
    operator, delta_case, slot_ids, relative_error, lengths, H, HV, K, V, tma
):
    c = delta_case(lengths, H, HV, K, V, per_channel=operator == "kimi")
    slots = range(1, len(lengths) + 1)
    pool = c.pool(len(lengths) + 2, slots, torch.float32)
    o = run(operator, c, pool, slot_ids(slots), tma=tma and K in (64, 128))
    want_o, want_s = expected(operator, c)
    assert relative_error(o, want_o) < TIGHT
    assert relative_error(pool[1:-1], want_s) < TIGHT
    assert pool[0].isnan().all()
    assert pool[-1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_and_pool(operator, delta_case, slot_ids, relative_error, dtype):
    c = delta_case([70], HV=1, K=64, V=64, per_channel=operator == "kimi", dtype=dtype)
    pool = c.pool(1, [0], dtype)
    c.state = pool.float().clone()
    o = run(operator, c, pool, slot_ids([0]))
    want_o, want_s = expected(operator, c)
    # The interpreter rounds to bf16 towards zero, which doubles the error of the GPU.
    assert relative_error(o, want_o) < 1.2e-2
    assert relative_error(pool, want_s) < 1.2e-2


@pytest.mark.parametrize("cuts", [(64,), (1, 2, 3), (30, 100), (64, 128)], ids=str)
def test_any_split_of_a_prefill(operator, delta_case, slot_ids, relative_error, cuts):
    c = delta_case([140], per_channel=operator == "kimi")
    whole, parts = c.pool(1, [0], torch.float32), c.pool(1, [0], torch.float32)
    o = run(operator, c, whole, slot_ids([0]))
    bounds = (0, *cuts, 140)
    pieces = [
        run(operator, c.part(0, a, z), parts, slot_ids([0])) for a, z in itertools.pairwise(bounds)
    ]
    assert relative_error(torch.cat(pieces), o) < TIGHT
    assert relative_error(parts, whole) < TIGHT


def test_token_by_token_decode_equals_prefill(operator, delta_case, slot_ids, relative_error):
    c = delta_case([20], 1, 1, 16, 16, per_channel=operator == "kimi")
    whole, stepped = c.pool(1, [0], torch.float32), c.pool(1, [0], torch.float32)
    o = run(operator, c, whole, slot_ids([0]))
    step, slot = OPERATORS[operator][1], slot_ids([0])
    rows = []
    for t in range(20):
        p = c.part(0, t, t + 1)
        rows.append(step(p.q, p.k, p.v, p.b, stepped, slot, **p.gates()))
    assert relative_error(torch.cat(rows), o) < TIGHT
    assert relative_error(stepped, whole) < TIGHT


@pytest.mark.parametrize("segment_chunks", [0, 1, 2])
def test_exports_equal_shorter_prefills(
    operator, delta_case, slot_ids, relative_error, segment_chunks
):
    c = delta_case([200, 100], K=64, V=64, per_channel=operator == "kimi")
    exports = [(0, 64, 4), (0, 192, 5), (1, 64, 6)]
    pool = c.pool(7, [2, 0], torch.float32)
    run(operator, c, pool, slot_ids([2, 0]), exports=exports, segment_chunks=segment_chunks)
    assert pool[[1, 3]].isnan().all()
    for n, p, slot in exports:
        short = c.pool(2, [0, 1], torch.float32)[n : n + 1].clone()
        run(operator, c.part(n, 0, p), short, slot_ids([0]), segment_chunks=segment_chunks)
        assert torch.equal(pool[slot], short[0])


@pytest.mark.parametrize("in_loop", [True, False])
@pytest.mark.parametrize("segment_chunks", [0, 3])
def test_exports_change_nothing_else(
    operator, delta_case, slot_ids, segment_chunks, in_loop, monkeypatch
):
    monkeypatch.setattr(delta_launch, "exports_in_loop", lambda _: in_loop)
    c = delta_case([450, 130], K=32, V=32, per_channel=operator == "kimi")
    exports = [(0, 64, 4), (0, 128, 5), (0, 320, 6), (0, 384, 7), (1, 64, 8), (1, 128, 9)]
    pools, outs = [], []
    for wanted in (exports, []):
        pools.append(c.pool(11, [2, 0], torch.float32))
        out = run(
            operator, c, pools[-1], slot_ids([2, 0]), exports=wanted, segment_chunks=segment_chunks
        )
        outs.append(out)
    assert torch.equal(*outs)
    assert torch.equal(*(p[[2, 0]] for p in pools))
    assert pools[0][[1, 3, 10]].isnan().all()
    for n, p, slot in exports:
        short = c.pool(2, [0, 1], torch.float32)[n : n + 1].clone()
        run(operator, c.part(n, 0, p), short, slot_ids([0]), segment_chunks=segment_chunks)
        assert torch.equal(pools[0][slot], short[0])


@pytest.mark.skipif(ON_GPU, reason="the interpreter runs what a card decides by its size")
def test_reading_ahead_changes_nothing(delta_case, slot_ids, monkeypatch):
    c = delta_case([400, 64, 260, 0, 90, 0], H=1, HV=2, K=64, V=64)
    pools, outs = [], []
    for programs in (0, 1, 3):
        monkeypatch.setattr(delta_launch, "programs_ahead", lambda *_, n=programs: n)
        pools.append(c.pool(9, [2, 0, 3, 5, 7, 8], torch.float32))
        slots = slot_ids([2, 0, 3, 5, 7, 8])
        outs.append(run("gated", c, pools[-1], slots, exports=[(0, 64, 6)]))
    for o, pool in zip(outs[1:], pools[1:], strict=True):
        assert torch.equal(o, outs[0])
        assert torch.equal(pool.nan_to_num(-1), pools[0].nan_to_num(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_pool_whose_pairs_do_not_align(operator, delta_case, slot_ids, dtype):
    c = delta_case([200], K=64, V=64, per_channel=operator == "kimi")
    pools = []
    for shift in (0, 1):
        pool = c.pool(4, [1], dtype)
        room = torch.full((pool.numel() + 1,), math.nan, dtype=dtype, device=pool.device)
        pools.append(room[shift : shift + pool.numel()].view(pool.shape))
        pools[-1].copy_(pool)
        run(operator, c, pools[-1], slot_ids([1]), exports=[(0, 64, 3), (0, 128, 0)])
    assert pools[0][[0, 1, 3]].isfinite().all()
    assert torch.equal(pools[0].nan_to_num(-1), pools[1].nan_to_num(-1))


def test_exports_off_the_chunk_boundary(operator, delta_case, slot_ids, relative_error):
    c = delta_case([80, 20], HV=1, per_channel=operator == "kimi")
    exports = [(0, 1, 2), (0, 70, 3), (0, 71, 4), (0, 80, 5), (1, 20, 6)]
    pool = c.pool(7, [0, 1], torch.float32)
    o = run(operator, c, pool, slot_ids([0, 1]), exports=exports)
    assert relative_error(o, expected(operator, c)[0]) < TIGHT
    for n, p, slot in exports:
        want = expected(operator, c.part(n, 0, p))[1][0]
        assert relative_error(pool[slot], want) < TIGHT


@pytest.mark.parametrize("segment_chunks", [1, 2, 4])
@pytest.mark.parametrize("decay", [1.0, 1e-3, 40.0], ids=lambda x: f"decay x {x}")
def test_segments_side_by_side(
    operator, delta_case, slot_ids, relative_error, segment_chunks, decay
):
    c = delta_case([350, 64], HV=1, per_channel=operator == "kimi")
    c.a_log = c.a_log + math.log(decay)
    pool = c.pool(3, [2, 0], torch.float32)
    o = run(operator, c, pool, slot_ids([2, 0]), segment_chunks=segment_chunks)
    want_o, want_s = expected(operator, c)
    assert relative_error(o, want_o) < max(TIGHT, 1e-3)
    assert relative_error(pool[[2, 0]], want_s) < max(TIGHT, 1e-3)


def test_packed_equals_separate_bit_for_bit(operator, delta_case, slot_ids):
    lengths = [65, 1, 130, 7]
    c = delta_case(lengths, per_channel=operator == "kimi")
    pool = c.pool(5, [3, 1, 4, 0], torch.float32)
    o = run(operator, c, pool, slot_ids([3, 1, 4, 0]))
    for n, slot in enumerate([3, 1, 4, 0]):
        alone = c.part(n, 0, lengths[n])
        own = alone.pool(1, [0], torch.float32)
        a = c.cu_seqlens[n]
        assert torch.equal(run(operator, alone, own, slot_ids([0])), o[a : a + lengths[n]])
        assert torch.equal(own[0], pool[slot])


# a chunk's last sum is found as its least, for which numpy warns where all are NaN
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
def test_neighbours_of_nan_requests_stay_clean(operator, delta_case, slot_ids):
    c = delta_case([65, 20, 66], K=64, V=64, per_channel=operator == "kimi")
    clean = run(operator, c, c.pool(3, [0, 1, 2], torch.float32), slot_ids([0, 1, 2]), tma=True)
    for t in (c.q, c.k, c.v, c.b, c.x):
        t[65:85] = math.nan
    dirty = run(operator, c, c.pool(3, [0, 1, 2], torch.float32), slot_ids([0, 1, 2]), tma=True)
    assert torch.equal(dirty[:65], clean[:65])
    assert torch.equal(dirty[85:], clean[85:])


def test_permuting_requests_permutes_results(operator, delta_case, slot_ids):
    c = delta_case([30, 70, 5], per_channel=operator == "kimi")
    pool = c.pool(3, [0, 1, 2], torch.float32)
    o = run(operator, c, pool, slot_ids([0, 1, 2]))
    order = [2, 0, 1]
    parts = [c.part(n, 0, c.lengths[n]) for n in order]
    mixed = parts[0].part(0, 0, c.lengths[order[0]])
    for name in ("q", "k", "v", "b", "x"):
        setattr(mixed, name, torch.cat([getattr(p, name) for p in parts]))
    mixed.lengths = tuple(c.lengths[n] for n in order)
    mixed.state = c.state[order]
    other = mixed.pool(3, order, torch.float32)
    moved = run(operator, mixed, other, slot_ids(order))
    assert torch.equal(other, pool)
    start = 0
    for n in order:
        a = c.cu_seqlens[n]
        assert torch.equal(moved[start : start + c.lengths[n]], o[a : a + c.lengths[n]])
        start += c.lengths[n]


def test_padding_and_unrelated_slots_stay_untouched(operator, delta_case, slot_ids):
    c = delta_case([40, 10, 20], per_channel=operator == "kimi")
    pool = c.pool(4, [1, -1, 3], torch.float32)
    o = run(operator, c, pool, slot_ids([1, -1, 3]))
    assert o[40:50].isnan().all()
    assert o[:40].isfinite().all()
    assert o[50:].isfinite().all()
    assert pool[[0, 2]].isnan().all()
    assert pool[[1, 3]].isfinite().all()


def test_starting_from_zero_and_from_a_shared_slot(operator, delta_case, slot_ids, relative_error):
    c = delta_case([70, 70, 3], per_channel=operator == "kimi")
    pool = torch.full((5, *c.state.shape[1:]), math.nan, device=c.q.device)
    pool[4] = c.state[0]
    o = run(operator, c, pool, slot_ids([0, 1, 2]), read_slots=slot_ids([4, 4, -1]))
    c.state = torch.stack([c.state[0], c.state[0], torch.zeros_like(c.state[0])])
    want_o, want_s = expected(operator, c)
    assert relative_error(o, want_o) < TIGHT
    assert relative_error(pool[:3], want_s) < TIGHT
    assert torch.equal(pool[4], c.state[0])


@pytest.mark.parametrize("log_decay", [0.0, -5.0, -90.0, -math.inf], ids=str)
def test_extreme_gates(operator, delta_case, slot_ids, relative_error, log_decay):
    c = delta_case([70], HV=1, K=32, V=32, per_channel=operator == "kimi")
    gate = torch.full_like(c.x, log_decay)
    pool = c.pool(1, [0], torch.float32)
    o = OPERATORS[operator][0](
        c.q, c.k, c.v, c.b, pool, slot_ids([0]), gate=Gate.LOG, gate_input=gate, beta_is_logit=True
    )
    want_o, want_s = OPERATORS[operator][2].recurrent_reference(
        c.q, c.k, c.v, gate, c.b.double().sigmoid(), c.lengths, c.state
    )
    # Running sums of thousands are exact to 1e-4, and the gated kernel adds a key's length to them.
    bound = 1e-4 if operator == "gated" and log_decay < -20 else TIGHT
    assert relative_error(o, want_o) < bound
    assert relative_error(pool, want_s) < bound


def test_plain_delta_rule_has_no_gate(operator, delta_case, slot_ids):
    c = delta_case([70], per_channel=operator == "kimi")
    zero, none = c.pool(1, [0], torch.float32), c.pool(1, [0], torch.float32)
    prefill = OPERATORS[operator][0]
    with_zero = prefill(c.q, c.k, c.v, c.b, zero, slot_ids([0]), gate=Gate.LOG, gate_input=c.x * 0)
    without = prefill(c.q, c.k, c.v, c.b, none, slot_ids([0]), gate=Gate.NONE)
    assert torch.equal(with_zero, without)
    assert torch.equal(zero, none)


def test_nearly_parallel_keys(operator, delta_case, slot_ids, relative_error):
    c = delta_case([256], HV=1, K=64, V=64, per_channel=operator == "kimi", dtype=torch.bfloat16)
    c.k = (c.k[:1] + 0.02 * c.k).contiguous()
    c.b = torch.full_like(c.b, 4.6)  # beta 0.99
    c.a_log = c.a_log - 10
    pool = c.pool(1, [0], torch.float32)
    o = run(operator, c, pool, slot_ids([0]))
    want_o, want_s = expected(operator, c)
    bound = 2e-2 if ON_GPU else 4e-2  # the interpreter rounds towards zero
    assert relative_error(o, want_o) < bound
    assert relative_error(pool, want_s) < bound


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_batches(operator, delta_case, slot_ids, relative_error, data):
    lengths = data.draw(st.lists(st.integers(0, 150), min_size=1, max_size=3))
    if not sum(lengths):
        return
    ratio = data.draw(st.sampled_from([1, 2]))
    exports, free = [], len(lengths)
    for n, length in enumerate(lengths):
        for p in sorted(data.draw(st.sets(st.integers(1, max(length, 1)), max_size=2))):
            if p <= length:
                exports.append((n, p, free))
                free += 1
    c = delta_case(lengths, 1, ratio, 16, 16, per_channel=operator == "kimi")
    pool = c.pool(free + 1, range(len(lengths)), torch.float32)
    o = run(operator, c, pool, slot_ids(range(len(lengths))), exports=exports)
    want_o, want_s = expected(operator, c)
    assert relative_error(o, want_o) < TIGHT
    assert relative_error(pool[: len(lengths)], want_s) < TIGHT
    assert pool[-1].isnan().all()
    for n, p, slot in exports:
        assert relative_error(pool[slot], expected(operator, c.part(n, 0, p))[1][0]) < TIGHT


REFUSED = {
    "q of the wrong shape": lambda a: a.update(q=a["q"][:-1]),
    "k of another dtype": lambda a: a.update(k=a["k"].to(torch.float16)),
    "v with interleaved heads": lambda a: a.update(v=a["v"].mT.contiguous().mT),
    "beta not contiguous": lambda a: a.update(b=a["b"].T.contiguous().T),
    "pool of integers": lambda a: a.update(pool=a["pool"].long()),
    "slot beyond the pool": lambda a: a.update(slots=a["slots"] + 3),
    "slot below -1": lambda a: a.update(slots=a["slots"] - 4),
    "slot written twice": lambda a: a.update(slots=a["slots"] * 0),
    "slots of int64": lambda a: a.update(slots=a["slots"].long()),
    "cu_seqlens too short": lambda a: a.update(cu_seqlens=(0, 10, 19)),
    "cu_seqlens falls": lambda a: a.update(cu_seqlens=(0, 25, 20)),
    "gate without a_log": lambda a: a.update(a_log=None),
    "export beyond the end": lambda a: a.update(exports=[(0, 11, 2)]),
    "export into a used slot": lambda a: a.update(exports=[(0, 4, 1)]),
    "export twice": lambda a: a.update(exports=[(0, 4, 2), (0, 4, 3)]),
    "segments over a ragged export": lambda a: a.update(exports=[(0, 4, 2)], segment_chunks=1),
    "scale of zero": lambda a: a.update(scale=0.0),
    "read while written": lambda a: a.update(read_slots=a["slots"].flip(0)),
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED.keys())
def test_refuses_before_launch(operator, delta_case, slot_ids, change):
    c = delta_case([10, 10], per_channel=operator == "kimi")
    arguments = {
        "q": c.q,
        "k": c.k,
        "v": c.v,
        "b": c.b,
        "pool": c.pool(4, [0, 1], torch.float32),
        "slots": slot_ids([0, 1]),
        "cu_seqlens": c.cu_seqlens,
        **c.gates(),
    }
    before = arguments["pool"].clone()
    pool = arguments["pool"]
    change(arguments)
    first = [arguments.pop(n) for n in ("q", "k", "v", "b", "pool", "slots", "cu_seqlens")]
    with pytest.raises(KernelInputError) as caught:
        OPERATORS[operator][0](*first, **arguments)
    assert "\n" not in caught.value.sentence
    assert torch.equal(pool.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize(
    "export", [(0, 11, 2), (0, 75, 2), (0, 0, 2), (2, 4, 2)], ids=lambda e: f"{e[0]} at {e[1]}"
)
def test_trusted_ids_leave_positions_of_exports_checked(operator, delta_case, slot_ids, export):
    c = delta_case([10, 10], per_channel=operator == "kimi")
    pool = c.pool(3, [0, 1], torch.float32)
    with pytest.raises(KernelInputError, match="export"):
        run(operator, c, pool, slot_ids([0, 1]), exports=[export], trust_ids=True)


def test_a_gate_that_is_no_number_shows(operator, delta_case, slot_ids):
    c = delta_case([100, 40], K=64, V=64, per_channel=operator == "kimi")
    c.x[70] = math.nan
    pool = c.pool(2, [0, 1], torch.float32)
    o = run(operator, c, pool, slot_ids([0, 1]))
    assert o[70:100].isnan().all()
    assert pool[0].isnan().all()
    assert o[:64].isfinite().all()
    assert o[100:].isfinite().all()
    assert pool[1].isfinite().all()


@pytest.mark.parametrize("tma", [None, True])
def test_no_tokens_leave_states_and_make_no_descriptor(
    operator, delta_case, slot_ids, tma, monkeypatch
):
    def refuse(*_):
        raise AssertionError("an empty tensor has no descriptor")

    for name in ("tile_map", "row_tiles"):
        monkeypatch.setattr(delta_launch, name, refuse)
    c = delta_case([0, 0], K=64, V=64, per_channel=operator == "kimi")
    pool = c.pool(3, [2, 0], torch.float32)
    before = pool.clone()
    o = run(operator, c, pool, slot_ids([2, 0]), tma=tma)
    assert o.shape[0] == 0
    assert torch.equal(pool.nan_to_num(-1), before.nan_to_num(-1))


@pytest.mark.gpu
def test_graph_replay_equals_eager(operator, delta_case, slot_ids):
    c = delta_case([300, 65], K=128, V=128, per_channel=operator == "kimi", dtype=torch.bfloat16)
    slots = slot_ids([0, 1])
    eager, pool = (c.pool(2, [0, 1], torch.float32) for _ in "ab")
    want = run(operator, c, eager, slots)
    start = pool.clone()
    out = torch.empty_like(want)
    prefill = OPERATORS[operator][0]

    def call():
        prefill(c.q, c.k, c.v, c.b, pool, slots, c.cu_seqlens, out=out, **c.gates())

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for _ in range(2):
        pool.copy_(start)
        out.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, want)
        assert torch.equal(pool, eager)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("K, V", [(128, 128), (96, 128), (32, 128), (256, 256)])
def test_a_batch_that_fills_the_card_equals_each_sequence_alone(
    operator, delta_case, slot_ids, dtype, K, V
):
    lengths = [330, 200, 64, 1, 450, 0] * 4
    c = delta_case(
        lengths, H=8, HV=16, K=K, V=V, per_channel=operator == "kimi", dtype=torch.bfloat16
    )
    ids = list(range(len(lengths)))
    pool = c.pool(32, ids, dtype)
    exports = [(0, 64, 24), (0, 256, 25), (4, 384, 26), (4, 448, 27), (10, 64, 28), (18, 320, 29)]
    o = run(operator, c, pool, slot_ids(ids), exports=exports)
    for n in (0, 1, 2, 3, 4, 10, 23):
        alone = c.part(n, 0, lengths[n])
        own = alone.pool(1, [0], dtype)
        start = c.cu_seqlens[n]
        assert torch.equal(
            o[start : start + lengths[n]], run(operator, alone, own, slot_ids([0]))
        ), f"outputs of sequence {n}"
        assert torch.equal(pool[n], own[0]), f"state of sequence {n}"
    for n, p, slot in exports:
        short = c.part(n, 0, p)
        own = short.pool(1, [0], dtype)
        run(operator, short, own, slot_ids([0]))
        assert torch.equal(pool[slot], own[0]), f"state after token {p} of sequence {n}"
