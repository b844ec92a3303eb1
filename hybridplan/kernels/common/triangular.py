"""The matrix that turns a chunk's values into its updates, on the tensor cores.

A chunk of the delta rule solves (I + B G) U = B W, with B = diag(beta) and G strictly lower. The
inverse of diagonal blocks grows from 4 to 16, each warp its own 16 in registers, and on to 64. A
step takes the inverse T of four blocks and R, less T times what joins them: R^4 = 0, so that
(I + R + R^2 + R^3) T is exact. No power beyond the third is formed, unlike in a Neumann series, and
no step needs a mask but the first. Masks work on pairs of 16-bit numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.launch import INTERPRETED

INVERSE_DTYPE = tl.constexpr(tl.float32 if INTERPRETED else tl.float16)
"""Entries stay near or below one in size, where fp16 is eight times finer than bf16."""

_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def bits(condition):
    """A mask for :func:`keep`: all bits of a 16-bit number, or none."""
    return tl.where(condition, -1, 0).to(tl.int16)


@triton.jit
def keep(x, mask):
    """x where the mask is set, else 0, whatever x is there: one instruction for two numbers."""
    if _INTERPRETED:
        y = tl.where(mask != 0, x, 0.0)
    else:
        y = tl.inline_asm_elementwise(
            "and.b32 $0, $1, $2;", "=r,r,r", [x, mask], dtype=x.dtype, is_pure=True, pack=2
        )
    return y


@triton.jit
def keep_lower(x):
    """x [64, 64] of 16-bit numbers with zeros above the diagonal."""
    o4 = tl.arange(0, 4)
    oe = tl.arange(0, 16)
    below = bits(o4[:, None, None, None] > o4[None, None, :, None])
    same = bits(o4[:, None, None, None] == o4[None, None, :, None])
    fine = bits(oe[None, :, None, None] >= oe[None, None, None, :])
    x4 = tl.reshape(x, [4, 16, 4, 16])
    if _INTERPRETED:
        y = tl.where((below | (same & fine)) != 0, x4, 0.0)
    else:
        y = tl.inline_asm_elementwise(
            """{
            .reg .b32 mask;
            lop3.b32 mask, $2, $3, $4, 0xF8;
            and.b32 $0, $1, mask;
            }""",
            "=r,r,r,r,r",
            [x4, below, same, fine],
            dtype=x.dtype,
            is_pure=True,
            pack=2,
        )
    return tl.reshape(y, [64, 64])


@triton.jit
def _keep_negative(x, mask):
    """-x where the mask is set, else 0."""
    if _INTERPRETED:
        y = tl.where(mask != 0, -x, 0.0)
    else:
        y = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, 0x80008000, 0x48;",
            "=r,r,r",
            [x, mask],
            dtype=x.dtype,
            is_pure=True,
            pack=2,
        )
    return y


@triton.jit
def _keep_beside(x, mask, y):
    """:func:`keep` of x where threads hold y, a product of full size, so that x moves little."""
    if _INTERPRETED:
        z = tl.where(mask != 0, x, 0.0)
    else:
        z = tl.inline_asm_elementwise(
            "and.b32 $0, $1, $2;", "=r,r,r,r", [x, mask, y], dtype=x.dtype, is_pure=True, pack=2
        )
    return z


@triton.jit
def _add(x, y):
    """x + y of fp16 numbers, two an instruction."""
    if _INTERPRETED:
        z = x + y
    else:
        z = tl.inline_asm_elementwise(
            "add.rn.f16x2 $0, $1, $2;", "=r,r,r", [x, y], dtype=x.dtype, is_pure=True, pack=2
        )
    return z


@triton.jit
def diagonal_blocks(X):
    """The four diagonal blocks [4, 16, 16] of X [64, 64]; each warp of four has its own."""
    warp = tl.arange(0, 4)[:, None, None]
    X5 = tl.permute(tl.reshape(X, [4, 16, 2, 2, 16]), (0, 1, 4, 2, 3))
    even, odd = tl.split(X5)
    first, second = tl.split(tl.where(warp[:, :, :, None] % 2 == 0, even, odd))
    return tl.where(warp < 2, first, second)


@triton.jit
def _times(x, y_transposed):
    return tl.dot(x, tl.permute(y_transposed, (0, 2, 1)))


@triton.jit
def _small_inverse(D, beta, inside):
    """(I + D)^-1 diag(beta) for the strictly lower parts of D [4, 16, 16], beta [4, 16].

    Rows that are not ``inside`` [4, 16] count as 0.

    Every factor is kept with its transpose: as a right operand a thread needs the numbers of the
    transpose that it holds anyway, so that nothing moves between threads.
    """
    oe = tl.arange(0, 16)
    r = oe[None, :, None]
    c = oe[None, None, :]
    quad = r // 4 == c // 4
    one = tl.where(r == c, 1.0, 0.0).to(INVERSE_DTYPE)
    D = keep(D.to(INVERSE_DTYPE), bits((r > c) & inside[:, :, None]))
    Dt = tl.permute(D, (0, 2, 1))
    L = _keep_negative(D, bits(quad))
    Lt = _keep_negative(Dt, bits(quad))
    St = _add(_times(Lt, L).to(INVERSE_DTYPE), one)
    L = _add(L, one)
    T = _times(L, St).to(INVERSE_DTYPE)
    Tt = _times(St, L).to(INVERSE_DTYPE)
    N = _keep_negative(D, bits(r // 4 != c // 4))
    R = _times(N, Tt).to(INVERSE_DTYPE)
    Rt = _times(Tt, N).to(INVERSE_DTYPE)
    T = _times(T, _add(Rt, one)).to(INVERSE_DTYPE)
    beta = beta[:, :, None]
    Rt = _times(Rt, R) * beta + tl.where(r == c, beta, 0.0)
    return _times(T, Rt.to(INVERSE_DTYPE)).to(INVERSE_DTYPE)


@triton.jit
def update_matrix(G, beta, tokens):
    """(I + B G)^-1 B in INVERSE_DTYPE: B = diag(beta), beta fp32 [64], G fp32 [64, 64].

    G is taken as strictly lower, and its rows from ``tokens`` on as 0, as beta is there; what
    else it holds may be anything.
    """
    o4 = tl.arange(0, 4)
    inside = o4[:, None] * 16 + tl.arange(0, 16)[None, :] < tokens
    same = bits(o4[:, None, None, None] == o4[None, None, :, None])
    below = (o4[:, None, None, None] > o4[None, None, :, None]) & inside[:, :, None, None]
    b4 = tl.reshape(beta, [4, 16])
    T = _small_inverse(diagonal_blocks(G) * b4[:, :, None], b4, inside)
    G = tl.reshape(G.to(INVERSE_DTYPE), [4, 16, 4, 16])
    N = tl.reshape(_keep_negative(G, bits(below)), [4, 16, 64])
    # Rows of R need no other warp's. R and T go through shared memory once, as right operands;
    # what they are multiplied by stays in registers, rows of one warp.
    R = tl.reshape(tl.dot(T, N).to(INVERSE_DTYPE), [64, 64])
    T = tl.reshape(_keep_beside(T[:, :, None, :], same, G), [64, 64])
    powers = _add(tl.dot(R, R).to(INVERSE_DTYPE), R)
    powers = _add(tl.dot(powers, R).to(INVERSE_DTYPE), R)
    return _add(tl.dot(powers, T).to(INVERSE_DTYPE), T)
