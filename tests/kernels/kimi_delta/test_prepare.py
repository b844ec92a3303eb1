"""The builds of the prepare stage give what the default one gives, up to rounding."""

from __future__ import annotations

import math
import typing

import pytest
import torch

from hybridplan.kernels.common.gates import Gate
from hybridplan.kernels.common.variants import Variant
from hybridplan.kernels.kimi_delta.chunk import HALVES, RUNS, chunk_prefill
from hybridplan.kernels.kimi_delta.reference import recurrent_reference

# Entries above the diagonal, and chunks done again, may overflow (kimi_delta.prepare).
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)
BUILDS = typing.get_args(typing.get_type_hints(Variant)["prepare"])
SAME = 8e-3 if torch.cuda.is_available() else 2e-5


def run(c, build, slots, **more):
    pool = c.pool(len(c.lengths), range(len(c.lengths)), torch.float32)
    given = c.gates() | more
    out = chunk_prefill(
        c.q, c.k, c.v, c.b, pool, slots, c.cu_seqlens, variant=Variant(prepare=build), **given
    )
    return out, pool


def test_every_build_has_a_name():
    assert set(BUILDS) == {"tokens", *RUNS, *HALVES}


@pytest.mark.parametrize("build", ["runs128", "halves"])
@pytest.mark.parametrize("K", [128, 96])
def test_released_gate(delta_case, slot_ids, relative_error, build, K):
    c = delta_case([129, 1, 70], HV=1, K=K, V=16, per_channel=True)
    o, pool = run(c, build, slot_ids(range(3)))
    want_o, want_s = recurrent_reference(
        c.q, c.k, c.v, c.log_decay(), c.b.double().sigmoid(), c.lengths, c.state
    )
    assert relative_error(o, want_o) < SAME
    assert relative_error(pool, want_s) < SAME


GATES = {
    "bounded": {"gate": Gate.BOUNDED},
    "log, all -5": {"gate": Gate.LOG, "log_decay": -5.0},
    "log, all 0": {"gate": Gate.LOG, "log_decay": 0.0},
    "log, some steep": {"gate": Gate.LOG, "log_decay": None},
    "none": {"gate": Gate.NONE},
}


@pytest.mark.parametrize("build", ["runs128", "halves"])
@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_other_gates_as_the_default_build(delta_case, slot_ids, relative_error, build, gate):
    c = delta_case([130], H=1, HV=2, K=128, V=16, per_channel=True, seed=3)
    given = dict(gate)
    if given["gate"] is Gate.NONE:
        given["gate_input"] = None
    elif "log_decay" in given:
        value = given.pop("log_decay")
        x = torch.zeros_like(c.x) if value is None else torch.full_like(c.x, value)
        if value is None:
            x[3:9, 0, 5] = -40.0
            x[70:75, 1, 17] = -math.inf
        given["gate_input"] = x
    got = run(c, build, slot_ids([0]), **given)
    want = run(c, "tokens", slot_ids([0]), **given)
    for a, b in zip(got, want, strict=True):
        assert a.isfinite().all()
        assert relative_error(a, b.double()) < SAME
