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
def _join(T, L, apart, s: tl.constexpr):
    Ls = tl.where((apart >= s) & (apart < 2 * s), L, tl.zeros_like(L))
    Tb = T.to(INVERSE_DTYPE)
    X = tl.dot(Tb, Ls)
    return T - tl.dot(X.to(INVERSE_DTYPE), Tb)


@triton.jit
def unit_lower_inverse(L, BATCHED: tl.constexpr):
    """(I + L)^-1 in fp32 for strictly lower L [64, 64] in INVERSE_DTYPE."""
    oc = tl.arange(0, 64)
    apart = oc[:, None] ^ oc[None, :]  # its highest bit names the level that joins i and j
    if BATCHED:
        o4 = tl.arange(0, 4)
        oe = tl.arange(0, 16)
        same = o4[:, None, None, None] == o4[None, None, :, None]
        near = (oe[:, None] ^ oe[None, :])[None, :, :]
        L4 = tl.reshape(L, [4, 16, 4, 16])
        # One of the four terms is not zero, so an fp16 sum loses nothing.
        D = tl.sum(tl.where(same, L4, tl.zeros_like(L4)), 2)
        T = (near == 0).to(tl.float32) - tl.where(near < 2, D, tl.zeros_like(D)).to(tl.float32)
        T = _join(T, D, near, 2)
        T = _join(T, D, near, 4)
        T = _join(T, D, near, 8)
        T = tl.reshape(tl.where(same, T[:, :, None, :], 0.0), [64, 64])
    else:
        T = (apart == 0).to(tl.float32) - tl.where(apart < 2, L, tl.zeros_like(L)).to(tl.float32)
        T = _join(T, L, apart, 2)
        T = _join(T, L, apart, 4)
        T = _join(T, L, apart, 8)
    T = _join(T, L, apart, 16)
    return _join(T, L, apart, 32)
