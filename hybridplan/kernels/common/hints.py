"""Hints to the compiler and to the card that change no result."""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.launch import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)
LINE_BYTES = tl.constexpr(128)
"""What :func:`prefetch` brings for one pointer."""


@triton.jit
def prefetch(pointers):
    """Bring the lines at ``pointers`` into L2."""
    if not _INTERPRETED:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
            "=r,l",
            [pointers.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def recomputed(x):
    """int32 x as something new, so that what follows from it is not kept across a loop."""
    if _INTERPRETED:
        y = x
    else:
        y = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=False, pack=1
        )
    return y


@triton.jit
def touch(x):
    """A use of a tile of 16-bit numbers outside of products, of which no instruction is left.

    Triton 3.6 gives a loaded tile that only warp-group products read one buffer more than its
    pipeline has steps between the load and the use. With this use it gets no more.
    """
    if not _INTERPRETED and x.dtype.primitive_bitwidth == 16:
        tl.inline_asm_elementwise(
            "mov.b32 $0, 0;", "=r,r", [x], dtype=tl.int16, is_pure=False, pack=2
        )


@triton.jit
def multiply_beside(x, y, beside):
    """bf16 x times fp32 y, rounded once, held as ``beside`` is held."""
    if _INTERPRETED or x.dtype != tl.bfloat16:
        z = (x.to(tl.float32) * y).to(x.dtype)
    else:
        z = tl.inline_asm_elementwise(
            """{
            .reg .b32 first, second;
            .reg .f32 one, other;
            shl.b32 first, $1, 16;
            and.b32 second, $1, 0xffff0000;
            mov.b32 one, first;
            mov.b32 other, second;
            mul.f32 one, one, $2;
            mul.f32 other, other, $3;
            cvt.rn.bf16x2.f32 $0, other, one;
            }""",
            "=r,r,f,f,f,f",
            [x, y, beside],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    return z


@triton.jit
def plus_product(z, x, y):
    """fp32 z + x y, with x of 16 bits and y fp32, held as ``z`` is held."""
    if _INTERPRETED or x.dtype != tl.bfloat16:
        z = z + x.to(tl.float32) * y
    else:
        z, y = tl.broadcast(z, y)
        z = tl.inline_asm_elementwise(
            """{
            .reg .b32 first, second;
            .reg .f32 one, other;
            shl.b32 first, $4, 16;
            and.b32 second, $4, 0xffff0000;
            mov.b32 one, first;
            mov.b32 other, second;
            fma.rn.f32 $0, one, $5, $2;
            fma.rn.f32 $1, other, $6, $3;
            }""",
            "=f,=f,f,f,r,f,f",
            [z, x, y],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    return z
