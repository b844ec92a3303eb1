"""The two fp64 references agree: token by token, and chunks with a triangular solve."""

from __future__ import annotations

import pytest
import torch

from hybridplan.kernels.gated_delta.reference import (
    chunk_reference,
    recurrent_reference,
    softplus_gate,
)


@pytest.mark.parametrize("chunk_tokens", [1, 5, 16, 64])
def test_chunks_equal_tokens(delta_case, relative_error, chunk_tokens):
    c = delta_case([37, 1, 12], H=2, HV=4, K=16, V=24)
    inputs = (c.q, c.k, c.v, c.log_decay(), c.b.double().sigmoid(), c.lengths, c.state)
    o, s = recurrent_reference(*inputs)
    chunked_o, chunked_s = chunk_reference(*inputs, chunk_tokens=chunk_tokens)
    assert relative_error(chunked_o, o) < 1e-12
    assert relative_error(chunked_s, s) < 1e-12


def test_gate_is_what_the_cases_use(delta_case):
    c = delta_case([9])
    assert torch.equal(softplus_gate(c.x, c.a_log, c.dt_bias), c.log_decay())


def test_delta_rule_by_hand():
    # One channel, k = 1, no decay, beta 1: the state becomes the last value.
    one = torch.ones(3, 1, 1)
    v = torch.tensor([2.0, -1.0, 5.0])[:, None, None]
    zero = torch.zeros(3, 1)
    o, s = recurrent_reference(one, one, v, zero, zero + 1, [3], None, 1.0, l2norm=False)
    assert o[:, 0, 0].tolist() == [2.0, -1.0, 5.0]
    assert s.item() == 5.0
