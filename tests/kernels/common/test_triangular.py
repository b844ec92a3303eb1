"""The inverse of a chunk's triangle against torch, whatever lies above the diagonal."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from hybridplan.kernels.common.triangular import keep_lower, update_matrix

ON_GPU = torch.cuda.is_available()


@triton.jit
def _update_matrix(G, beta, A, tokens):
    o = tl.arange(0, 64)
    at = o[:, None] * 64 + o[None, :]
    tl.store(A + at, update_matrix(tl.load(G + at), tl.load(beta + o), tokens).to(tl.float32))


@triton.jit
def _keep_lower(X, Y):
    o = tl.arange(0, 64)
    at = o[:, None] * 64 + o[None, :]
    tl.store(Y + at, keep_lower(tl.load(X + at)))


def _keys(kind: str, generator: torch.Generator) -> torch.Tensor:
    keys = torch.randn(64, 32, generator=generator)
    if kind == "parallel":
        keys = keys[:1] + 0.02 * keys
    elif kind == "opposite":
        signs = torch.randint(0, 2, (64, 1), generator=generator) * 2 - 1
        keys = (keys[:1] + 0.02 * keys) * signs
    elif kind == "few directions":
        keys = keys @ torch.diag((torch.arange(32) < 4).float())
    return keys / keys.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("kind", ["random", "parallel", "opposite", "few directions"])
@pytest.mark.parametrize("tokens", [64, 37, 1])
def test_update_matrix_is_the_inverse(device, kind, tokens):
    generator = torch.Generator().manual_seed(tokens)
    keys = _keys(kind, generator)
    beta = torch.full((64,), 0.99) if kind == "parallel" else torch.rand(64, generator=generator)
    beta[tokens:] = 0
    G = keys @ keys.T
    lower = G.double().tril(-1)
    want = torch.linalg.inv(torch.eye(64, dtype=torch.float64) + beta.double()[:, None] * lower)
    want = want * beta.double()
    G[torch.ones(64, 64, dtype=torch.bool).triu()] = math.inf
    G[tokens:] = math.nan
    A = torch.full((64, 64), math.nan, device=device)
    _update_matrix[(1,)](G.to(device), beta.to(device), A, tokens)
    error = (A.cpu().double() - want).norm() / want.norm()
    assert error < (2e-3 if ON_GPU else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_keep_lower_drops_whatever_is_above(device, dtype):
    X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    want = X.tril()
    X[torch.ones(64, 64, dtype=torch.bool).triu(1)] = math.nan
    Y = torch.full_like(X, math.nan).to(device)
    _keep_lower[(1,)](X.to(device), Y)
    assert torch.equal(Y.cpu(), want)
