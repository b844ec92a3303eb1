"""Reading ahead for the program that a processor runs next.

Where one program of the scan fills a multiprocessor, nothing runs there while the next one waits
for its state, 64 KiB, and its first tiles. The one before asks for them near its end, so that they
come from L2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridplan.kernels.common.delta_plan import RUN_COLUMNS
from hybridplan.kernels.common.hints import LINE_BYTES, prefetch

RUN = tl.constexpr(RUN_COLUMNS)
LEAD_CHUNKS = tl.constexpr(3)
"""Chunks before its end at which a program asks."""


@triton.jit
def bring(
    ahead,
    pool,
    q,
    k,
    v,
    A,
    P,
    read_slots,
    runs,
    segments,
    q_stride,
    k_stride,
    v_stride,
    pool_stride,
    pool_slots,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
):
    """Bring into L2 what program ``ahead`` reads first: its state and its first chunk.

    q, k [T, H, K], v [T, HV, V], A, P [rows, C] are of 16 bits, K = 64 or 128, BV = 64 or 128.
    """
    NV: tl.constexpr = V // BV
    iv = ahead % NV
    hv = (ahead // NV) % HV
    g = ahead // (NV * HV)
    run = tl.load(segments + g * 5)
    end_run = tl.load(segments + g * 5 + 1)
    slot = tl.load(read_slots + tl.load(segments + g * 5 + 2)).to(tl.int64)
    numbers: tl.constexpr = LINE_BYTES // (pool.dtype.element_ty.primitive_bitwidth // 8)
    if (slot >= 0) & (slot < pool_slots):
        rows = hv * (V * K) + (iv * BV + tl.arange(0, BV))[:, None] * K
        prefetch(pool + slot * pool_stride + rows + numbers * tl.arange(0, K // numbers)[None, :])
    if run < end_run:
        t0 = tl.load(runs + run * RUN)
        full = tl.load(runs + run * RUN + 1)
        tail = tl.load(runs + run * RUN + 2)
        c0 = tl.load(runs + run * RUN + 3)
        half: tl.constexpr = LINE_BYTES // 2
        oc = tl.arange(0, C)
        # a short sequence's last token again, where there is no further one
        to = (t0 + tl.minimum(oc, full * C + tail - 1)).to(tl.int64)[:, None]
        along = half * tl.arange(0, K // half)[None, :]
        h = hv // (HV // H)
        prefetch(k + to * k_stride + h * K + along)
        prefetch(q + to * q_stride + h * K + along)
        prefetch(v + to * v_stride + hv * V + iv * BV + half * tl.arange(0, BV // half)[None, :])
        rows = (c0 * HV + hv).to(tl.int64) * C + oc
        prefetch(A + rows * C)
        prefetch(P + rows * C)
