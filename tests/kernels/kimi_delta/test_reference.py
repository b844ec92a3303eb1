"""The two fp64 references agree: token by token, and chunks with a triangular solve."""

from __future__ import annotations

import pytest
import torch

from hybridplan.kernels.gated_delta import reference as scalar
from hybridplan.kernels.kimi_delta.reference import (
    bounded_gate,
    chunk_reference,
    recurrent_reference,
    softplus_gate,
)


@pytest.mark.parametrize("chunk_tokens", [1, 5, 16, 64])
def test_chunks_equal_tokens(delta_case, relative_error, chunk_tokens):
    c = delta_case([37, 1, 12], H=2, HV=4, K=16, V=24, per_channel=True)
    inputs = (c.q, c.k, c.v, c.log_decay(), c.b.double().sigmoid(), c.lengths, c.state)
    o, s = recurrent_reference(*inputs)
    chunked_o, chunked_s = chunk_reference(*inputs, chunk_tokens=chunk_tokens)
    assert relative_error(chunked_o, o) < 1e-12
    assert relative_error(chunked_s, s) < 1e-12


def test_one_decay_for_all_channels_is_the_scalar_rule(delta_case):
    c = delta_case([20], K=16, V=16)
    beta = c.b.double().sigmoid()
    g = c.log_decay()
    wide = g[..., None].expand(*g.shape, 16)
    ours = recurrent_reference(c.q, c.k, c.v, wide, beta, c.lengths, c.state)
    other = scalar.recurrent_reference(c.q, c.k, c.v, g, beta, c.lengths, c.state)
    assert torch.equal(ours[0], other[0])
    assert torch.equal(ours[1], other[1])


def test_gates(delta_case):
    c = delta_case([9], per_channel=True)
    assert torch.equal(softplus_gate(c.x, c.a_log, c.dt_bias), c.log_decay())
    bounded = bounded_gate(c.x, c.a_log, c.dt_bias, -5.0)
    assert bounded.max() <= 0
    assert bounded.min() >= -5
