"""Stores that stay out of shared memory."""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.launch import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def store_pairs(pointers, x):
    """Store fp32 x [rows, columns] to ``pointers``, contiguous by rows, from where it is.

    tl.store would first bring x into an order that coalesces best, through shared memory that a
    pipelined loop has no room for. Here every thread stores its own elements, two at once where
    they turn out to be neighbours; a product leaves each 32-byte sector to one instruction then.
    """
    if _INTERPRETED:
        tl.store(pointers, x.to(pointers.dtype.element_ty))
    elif pointers.dtype.element_ty == tl.float32:
        tl.inline_asm_elementwise(
            """{
            .reg .pred near, even;
            .reg .s64 apart, low;
            sub.s64 apart, $3, $2;
            and.b64 low, $2, 7;
            setp.eq.s64 near, apart, 4;
            setp.eq.and.s64 even, low, 0, near;
            @even st.global.v2.f32 [$2], {$4, $5};
            @!even st.global.f32 [$2], $4;
            @!even st.global.f32 [$3], $5;
            mov.b32 $0, 0;
            mov.b32 $1, 0;
            }""",
            "=r,=r,l,l,f,f",
            [pointers.to(tl.int64), x],
            dtype=tl.int32,
            is_pure=False,
            pack=2,
        )
    else:
        tl.inline_asm_elementwise(
            """{
            .reg .pred near, even;
            .reg .s64 apart, low;
            .reg .b16 first, second;
            sub.s64 apart, $3, $2;
            and.b64 low, $2, 3;
            setp.eq.s64 near, apart, 2;
            setp.eq.and.s64 even, low, 0, near;
            mov.b32 {first, second}, $4;
            @even st.global.b32 [$2], $4;
            @!even st.global.b16 [$2], first;
            @!even st.global.b16 [$3], second;
            mov.b32 $0, 0;
            mov.b32 $1, 0;
            }""",
            "=r,=r,l,l,r",
            [pointers.to(tl.int64), x.to(pointers.dtype.element_ty)],
            dtype=tl.int32,
            is_pure=False,
            pack=2,
        )


@triton.jit
def store_in_place(pointers, x):
    """Store fp32 x to ``pointers`` from where it is; threads that hold the same store the same.

    For a few numbers: tl.store would bring them to one thread each through shared memory first.
    """
    if _INTERPRETED:
        tl.store(pointers, x)
    else:
        tl.inline_asm_elementwise(
            """{
            st.global.f32 [$1], $2;
            mov.b32 $0, 0;
            }""",
            "=r,l,f",
            [pointers.to(tl.int64), x],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
