"""Decode by replay gives what decode with a written state gives."""

from __future__ import annotations

import math

import pytest
import torch

from hybridplan.kernels.common.checks import KernelInputError
from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.gated_delta import replay
from hybridplan.kernels.gated_delta.recurrent import recurrent_step
from hybridplan.kernels.gated_delta.replay import advance, make_ring, replay_step


def ring_for(c, slots, fold_tokens, drafts):
    _, HV, V = c.v.shape
    _, H, K = c.q.shape
    return make_ring(slots, H, HV, K, V, fold_tokens, drafts, torch.float32, c.q.device)


@pytest.mark.parametrize("fold_tokens", [1, 3, 16])
def test_equals_the_written_state_token_by_token(delta_case, slot_ids, fold_tokens):
    c = delta_case([7, 7], 1, 2, 16, 16)
    slots = slot_ids([2, 0])
    lazy, written = (c.pool(3, [2, 0], torch.float32) for _ in "ab")
    ring = ring_for(c, 3, fold_tokens, 1)
    for t in range(7):
        rows = torch.tensor([t, 7 + t])
        x = [z[rows].contiguous() for z in (c.q, c.k, c.v, c.b)]
        gates = c.gates() | {"gate_input": c.x[rows].contiguous()}
        before = lazy.clone()
        o = replay_step(*x, lazy, slots, ring, **gates)
        folded = not torch.equal(lazy.nan_to_num(), before.nan_to_num())
        assert folded == (t > 0 and t % fold_tokens == 0)
        advance(ring, slots, 1, 1)
        assert torch.allclose(o, recurrent_step(*x, written, slots, **gates), atol=1e-6)
    assert ring.pending.tolist()[1] == 0
    assert lazy[1].isnan().all()


def test_rejecting_drafts_moves_a_cursor(delta_case, slot_ids):
    drafts, kept = 3, [1, 3, 2, 1, 3]
    lazy_c = delta_case([drafts * len(kept)])
    slots = slot_ids([1])
    lazy, written = (lazy_c.pool(3, [-1], torch.float32) for _ in "ab")
    lazy[1] = written[1] = lazy_c.state[0]
    ring = ring_for(lazy_c, 3, 4, drafts)
    for i, keep in enumerate(kept):
        p = lazy_c.part(0, i * drafts, (i + 1) * drafts)
        o = replay_step(p.q, p.k, p.v, p.b, lazy, slots, ring, **p.gates())
        advance(ring, slots, drafts, keep)
        snapshots = torch.stack([written[1], written[1] * 0, written[1] * 0])
        want = recurrent_step(p.q, p.k, p.v, p.b, snapshots, slot_ids([[0, 1, 2]]), **p.gates())
        assert torch.allclose(o, want, atol=1e-6)
        written[1] = snapshots[keep - 1]


@pytest.mark.parametrize("steepest", [-100.0, -1e5, -math.inf], ids=str)
def test_steep_gates_leave_what_follows_exact(delta_case, slot_ids, steepest):
    drafts, kept = 3, [3, 2, 3, 1, 3]
    c = delta_case([drafts * len(kept)])
    c.x = -torch.rand(c.x.shape, generator=torch.Generator().manual_seed(1)).to(c.x.device)
    c.x[[1, 4, 5, 12]] = steepest
    slots = slot_ids([0])
    lazy, written = c.state.clone(), c.state.clone()
    ring = ring_for(c, 1, 8, drafts)
    for i, keep in enumerate(kept):
        p = c.part(0, i * drafts, (i + 1) * drafts)
        gates = {"gate": Gate.LOG, "gate_input": p.x, "beta_is_logit": True}
        o = replay_step(p.q, p.k, p.v, p.b, lazy, slots, ring, **gates)
        advance(ring, slots, drafts, keep)
        snapshots = torch.cat([written, written.new_zeros(drafts - 1, *written.shape[1:])])
        want = recurrent_step(p.q, p.k, p.v, p.b, snapshots, slot_ids([[0, 1, 2]]), **gates)
        assert torch.allclose(o, want, atol=5e-5)  # sums of the last tokens reach 2^9
        written = snapshots[keep - 1 : keep]


@pytest.mark.parametrize("fold_tokens", [12, 20])
def test_long_windows_go_by_blocks_of_rows(delta_case, slot_ids, monkeypatch, fold_tokens):
    monkeypatch.setattr(replay, "_rows", lambda *_: 32)
    drafts, kept = 9, [9, 2, 6, 9]
    c = delta_case([drafts * len(kept)], 1, 2, 24, 64)
    slots = slot_ids([0])
    lazy = c.state.clone()
    written = c.state.clone()
    ring = ring_for(c, 1, fold_tokens, drafts)
    for i, keep in enumerate(kept):
        p = c.part(0, i * drafts, (i + 1) * drafts)
        o = replay_step(p.q, p.k, p.v, p.b, lazy, slots, ring, **p.gates())
        advance(ring, slots, drafts, keep)
        snapshots = torch.cat([written, written.new_zeros(drafts - 1, *written.shape[1:])])
        table = torch.arange(drafts, dtype=torch.int32, device=written.device)[None]
        want = recurrent_step(p.q, p.k, p.v, p.b, snapshots, table, **p.gates())
        assert torch.allclose(o, want, atol=2e-6)
        written = snapshots[keep - 1 : keep]


@pytest.mark.parametrize(
    "requests, heads, rows",
    [(1, 16, 16), (8, 16, 16), (32, 16, 64), (64, 16, 128), (64, 48, 128)],
)
def test_a_program_takes_more_rows_where_there_are_many(requests, heads, rows):
    assert replay._rows(requests, heads, 128, torch.device("cpu")) == rows
    assert replay._rows(requests, heads, 48, torch.device("cpu")) == 16


def test_padding_keeps_ring_and_state(delta_case, slot_ids):
    c = delta_case([1, 1])
    pool = c.pool(2, [0, -1], torch.float32)
    ring = ring_for(c, 2, 4, 1)
    slots = slot_ids([0, -1])
    replay_step(c.q, c.k, c.v, c.b, pool, slots, ring, **c.gates())
    advance(ring, slots, 1, 1)
    assert ring.pending.tolist() == [1, 0]
    assert pool[1].isnan().all()


def test_refuses_a_ring_without_room(delta_case, slot_ids):
    c = delta_case([2])
    ring = ring_for(c, 1, 1, 1)
    with pytest.raises(KernelInputError, match="ring has 2 rows"):
        replay_step(
            c.q, c.k, c.v, c.b, c.pool(1, [0], torch.float32), slot_ids([0]), ring, **c.gates()
        )
