"""Inverse of a unit lower-triangular 64 x 64 matrix on the tensor cores.

Block doubling: with T the inverse of the diagonal blocks of size s and L_s the entries that join
two of them, T <- T - T L_s T is the inverse of the blocks of size 2 s. It needs no substitution
and, unlike a Neumann series, never forms large powers. Up to 16 the four diagonal blocks go as one
batched product; the last two levels are 64 wide.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.launch import INTERPRETED

INVERSE_DTYPE = tl.constexpr(tl.float32 if INTERPRETED else tl.float16)
"""Entries stay near or below one in size, where fp16 is eight times finer than bf16."""


@triton.jit
def _joins(row, column, s: tl.constexpr):
    """Entries that join two blocks of size s into one of size 2 s.

    Rows and columns are looked at apart: what a thread holds settles most of their bits, so that
    few entries need an instruction.
    """
    lower = ((row & s) != 0) & ((column & s) == 0)
    return lower & ((row & -(2 * s)) == (column & -(2 * s)))


@triton.jit
def _join(T, L, row, column, s: tl.constexpr):
    Ls = tl.where(_joins(row, column, s), L, tl.zeros_like(L))
    Tb = T.to(INVERSE_DTYPE)
    X = tl.dot(Tb, Ls)
    return T - tl.dot(X.to(INVERSE_DTYPE), Tb)


@triton.jit
def unit_lower_inverse(L, BATCHED: tl.constexpr):
    """(I + L)^-1 in fp32 for strictly lower L [64, 64] in INVERSE_DTYPE."""
    oc = tl.arange(0, 64)
    row = oc[:, None]
    column = oc[None, :]
    if BATCHED:
        o4 = tl.arange(0, 4)
        oe = tl.arange(0, 16)
        same = o4[:, None, None, None] == o4[None, None, :, None]
        r = oe[None, :, None]
        c = oe[None, None, :]
        L4 = tl.reshape(L, [4, 16, 4, 16])
        # One of the four terms is not zero, so an fp16 sum loses nothing.
        D = tl.sum(tl.where(same, L4, tl.zeros_like(L4)), 2)
        T = (r == c).to(tl.float32)
        T -= tl.where(_joins(r, c, 1), D, tl.zeros_like(D)).to(tl.float32)
        T = _join(T, D, r, c, 2)
        T = _join(T, D, r, c, 4)
        T = _join(T, D, r, c, 8)
        T = tl.reshape(tl.where(same, T[:, :, None, :], 0.0), [64, 64])
    else:
        T = (row == column).to(tl.float32)
        T -= tl.where(_joins(row, column, 1), L, tl.zeros_like(L)).to(tl.float32)
        T = _join(T, L, row, column, 2)
        T = _join(T, L, row, column, 4)
        T = _join(T, L, row, column, 8)
    T = _join(T, L, row, column, 16)
    return _join(T, L, row, column, 32)
