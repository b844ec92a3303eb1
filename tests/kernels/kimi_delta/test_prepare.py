"""Chunked Kimi delta attention against the token recurrence, over gates and key widths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.kimi_delta.chunk import chunk_prefill
from hybridplan.kernels.kimi_delta.prepare import MOST_LOG2, can_be_steep
from hybridplan.kernels.kimi_delta.reference import recurrent_reference

# Entries above the diagonal, and chunks done again, may overflow (kimi_delta.prepare).
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)
SAME = 8e-3 if torch.cuda.is_available() else 1e-4


def run(c, slots, **more):
    pool = c.pool(len(c.lengths), range(len(c.lengths)), torch.float32)
    out = chunk_prefill(c.q, c.k, c.v, c.b, pool, slots, c.cu_seqlens, **(c.gates() | more))
    return out, pool


def reference(c, log_decay):
    return recurrent_reference(c.q, c.k, c.v, log_decay, c.b.double().sigmoid(), c.lengths, c.state)


@pytest.mark.parametrize("K", [128, 96, 64, 32, 256])
def test_released_gate(delta_case, slot_ids, relative_error, K):
    c = delta_case([129, 1, 70], HV=1, K=K, V=16, per_channel=True)
    for got, want in zip(run(c, slot_ids(range(3))), reference(c, c.log_decay()), strict=True):
        assert relative_error(got, want) < SAME


def constant(value):
    return lambda x: torch.full_like(x, value)


def steep_tokens(x):
    x = torch.zeros_like(x)
    x[3:9, 0, 5] = -40.0
    x[70:75, 1, 17] = -math.inf
    x[100:130, 1, 3] = -90.0
    x[128, :, 64:] = -1e30
    return x


GATES = {"all -5": constant(-5.0), "all -6": constant(-6.0), "all 0": constant(0.0)}
GATES |= {"all -300": constant(-300.0), "some steep": steep_tokens}


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_log_decay(delta_case, slot_ids, relative_error, gate):
    c = delta_case([130], H=1, HV=2, K=128, V=16, per_channel=True, seed=3)
    x = gate(c.x)
    got = run(c, slot_ids([0]), gate=Gate.LOG, gate_input=x)
    for a, b in zip(got, reference(c, x.double().clamp(min=-1e4)), strict=True):
        assert relative_error(a, b) < SAME


def test_no_gate(delta_case, slot_ids, relative_error):
    c = delta_case([130], H=1, HV=2, K=128, V=16, per_channel=True, seed=3)
    got = run(c, slot_ids([0]), gate=Gate.NONE, gate_input=None, a_log=None, dt_bias=None)
    for a, b in zip(got, reference(c, torch.zeros_like(c.x).double()), strict=True):
        assert relative_error(a, b) < SAME


def test_bounded_gate(delta_case, slot_ids, relative_error):
    c = delta_case([130], H=1, HV=2, K=128, V=16, per_channel=True, seed=3)
    got = run(c, slot_ids([0]), gate=Gate.BOUNDED, lower_bound=-5.0)
    y = c.x.double() + c.dt_bias.double()
    want = reference(c, -5.0 * torch.sigmoid(c.a_log.double().exp()[:, None] * y))
    for a, b in zip(got, want, strict=True):
        assert relative_error(a, b) < SAME


# Of the deepest bound whose chunks are never steep, and of one that needs the steep way.
BOUNDS = {-5.02: False, -5.03: True, -40.0: True}


@pytest.mark.parametrize("bound", BOUNDS)
def test_gate_at_its_bound(delta_case, slot_ids, relative_error, bound):
    assert can_be_steep(Gate.BOUNDED, bound) is BOUNDS[bound]
    c = delta_case([130], H=1, HV=2, K=128, V=16, per_channel=True, seed=3)
    x = torch.where(torch.arange(130)[:, None, None] % 70 < 65, 1e4, c.x.float())
    got = run(c, slot_ids([0]), gate=Gate.BOUNDED, lower_bound=bound, gate_input=x)
    y = x.double() + c.dt_bias.double()
    want = reference(c, bound * torch.sigmoid(c.a_log.double().exp()[:, None] * y))
    for a, b in zip(got, want, strict=True):
        assert relative_error(a, b) < SAME


def test_a_half_chunk_at_a_bound_of_minus_5_is_not_steep():
    """Whatever the order in which fp32 sums go, and with each of 32 terms one digit too large."""
    term = np.nextafter(np.float32(-5.0) * np.float32(math.log2(math.e)), np.float32(-8.0))
    one_by_one = np.float32(0.0)
    for _ in range(32):
        one_by_one = np.nextafter(one_by_one + term, np.float32(-1e3))
    assert one_by_one > -2 * MOST_LOG2.value
    assert not can_be_steep(Gate.BOUNDED, -5.0)
    assert not can_be_steep(Gate.NONE, -5.0)
    assert can_be_steep(Gate.SOFTPLUS, -5.0)
    assert can_be_steep(Gate.LOG, -5.0)
