"""Hints to the compiler and to the card that change no result."""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.launch import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)


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
