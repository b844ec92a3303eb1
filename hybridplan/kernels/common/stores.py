"""Loads and stores that stay out of shared memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridplan.kernels.common.launch import INTERPRETED, next_power_of_2

_INTERPRETED = tl.constexpr(INTERPRETED)


def in_pairs(pool: torch.Tensor) -> bool:
    """Whether states of ``pool`` [slots, HV, V, K] may be moved two neighbouring elements at once.

    A row must fill a tile, and every pair must start on a multiple of its size.
    """
    K, pair_bytes = pool.shape[-1], 2 * pool.element_size()
    even = pool.data_ptr() % pair_bytes == 0 and pool.stride(0) % 2 == 0
    return even and next_power_of_2(K) == K >= 16


@triton.jit
def store_pairs(pointers, x):
    """Store fp32 x [rows, columns] at ``pointers`` [rows, columns / 2] of columns 0, 2, 4 ..., from
    where it is.

    tl.store would first bring x into an order that coalesces best, through shared memory that a
    pipelined loop has no room for. Here every thread stores two neighbouring columns at once; a
    product leaves each 32-byte sector to one instruction then. The pool must be ``in_pairs``. A
    loop stores what it ends with: Triton moves such a branch to the end of the loop, where anything
    older would have to be copied.
    """
    rows: tl.constexpr = x.shape[0]
    pairs: tl.constexpr = x.shape[1] // 2
    low, high = tl.split(tl.reshape(x, (rows, pairs, 2)))
    if _INTERPRETED:
        tl.store(pointers, low.to(pointers.dtype.element_ty))
        tl.store(pointers + 1, high.to(pointers.dtype.element_ty))
    elif pointers.dtype.element_ty == tl.float32:
        tl.inline_asm_elementwise(
            "st.global.v2.f32 [$1], {$2, $3}; mov.b32 $0, 0;",
            "=r,l,f,f",
            [pointers.to(tl.int64), low, high],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        low = low.to(pointers.dtype.element_ty).to(tl.int16, bitcast=True)
        high = high.to(pointers.dtype.element_ty).to(tl.int16, bitcast=True)
        tl.inline_asm_elementwise(
            "st.global.v2.b16 [$1], {$2, $3}; mov.b32 $0, 0;",
            "=r,l,h,h",
            [pointers.to(tl.int64), low, high],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def load_pairs(pointers):
    """fp32 [rows, columns] of what ``pointers`` [rows, columns / 2] of columns 0, 2, 4 ... say.

    The counterpart of :func:`store_pairs`: tl.load would bring the tile to where a product wants
    it through shared memory, and everything after it would wait for that.
    """
    rows: tl.constexpr = pointers.shape[0]
    columns: tl.constexpr = 2 * pointers.shape[1]
    if _INTERPRETED:
        low = tl.load(pointers).to(tl.float32)
        high = tl.load(pointers + 1).to(tl.float32)
    elif pointers.dtype.element_ty == tl.float32:
        low, high = tl.inline_asm_elementwise(
            "ld.global.v2.f32 {$0, $1}, [$2];",
            "=f,=f,l",
            [pointers.to(tl.int64)],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        low, high = tl.inline_asm_elementwise(
            "ld.global.v2.b16 {$0, $1}, [$2];",
            "=h,=h,l",
            [pointers.to(tl.int64)],
            dtype=(tl.int16, tl.int16),
            is_pure=True,
            pack=1,
        )
        low = low.to(pointers.dtype.element_ty, bitcast=True).to(tl.float32)
        high = high.to(pointers.dtype.element_ty, bitcast=True).to(tl.float32)
    return tl.reshape(tl.join(low, high), (rows, columns))


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
