"""K Q^T of a chunk, the same for all heads of a group: worked out once, kept in 16 bits.

A tile [64, 64] lies in memory as 512 rows of 8 numbers in the order in which 128 threads hold it as
a product, so that a program loads it straight into place, 16 bytes at a time, and needs no shared
memory for it. Two columns side by side are one word. The tile holds zero where the column's token
is before the row's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.gates import power_of_2


@triton.jit
def store_tile(base, x):
    """Store x [64, 64] at ``base``."""
    x = x.reshape(4, 2, 8, 4, 2, 4, 2).permute(3, 0, 2, 5, 4, 1, 6).reshape(512, 8)
    at = tl.arange(0, 512)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(base + at, x.to(base.dtype.element_ty))


@triton.jit
def load_tile(base):
    """What ``store_tile`` stored, as it lies there; of 16-bit numbers, as words of two."""
    row = tl.arange(0, 512)[:, None]
    if base.dtype.element_ty == tl.float32:
        x = tl.load(base + row * 8 + tl.arange(0, 8)[None, :])
    else:
        x = tl.load(base.to(tl.pointer_type(tl.int32)) + row * 4 + tl.arange(0, 4)[None, :])
    return x


@triton.jit
def as_product(x):
    """[64, 64] from what ``load_tile`` gave."""
    if x.dtype == tl.float32:
        y = x
    else:
        low = x.to(tl.int16).to(tl.bfloat16, bitcast=True)
        y = tl.join(low, (x >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True))
    y = y.reshape(4, 4, 8, 4, 2, 2, 2)
    return y.permute(1, 5, 2, 0, 4, 3, 6).reshape(64, 64)


@triton.jit
def gated(products, exponent, DT: tl.constexpr):
    """Products times 2^exponent. Where a product is zero the power may overflow."""
    if products.dtype == tl.float32:
        x = (products * power_of_2(tl.minimum(exponent, 126.0))).to(DT)
    else:
        # infinity is rounded to the largest number
        x = tl.inline_asm_elementwise(
            """{
            .reg .b32 pair;
            cvt.rn.satfinite.bf16x2.f32 pair, $3, $2;
            mul.bf16x2 $0, $1, pair;
            }""",
            "=r,r,r,r",
            [products, power_of_2(exponent)],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    return x
