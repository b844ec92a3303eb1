"""Gate arithmetic shared by the kernels: log decay from raw inputs, in fp32."""

from __future__ import annotations

import enum

import triton
import triton.language as tl

from hybridplan.kernels.common.launch import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)


class Gate(enum.IntEnum):
    """How a kernel gets the natural-log decay of a token from its gate input x.

    LOG: x is the log decay. SOFTPLUS: -exp(A_log) * softplus(x + dt_bias), the gate of
    Qwen3-Next, Kimi Linear and Mamba-2. BOUNDED: lower_bound * sigmoid(exp(A_log) * (x +
    dt_bias)), the bounded ("safe") gate of later Kimi models. NONE: no decay (plain DeltaNet).
    """

    NONE = 0
    LOG = 1
    SOFTPLUS = 2
    BOUNDED = 3


@triton.jit
def power_of_2(x):
    """2^x, results below 2^-126 flushed to zero: one instruction, against four of tl.exp2."""
    if _INTERPRETED:
        y = tl.exp2(x)
    else:
        y = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return y


@triton.jit
def power_of_2_minus(x):
    """2^-x, the sign part of the instruction."""
    if _INTERPRETED:
        y = tl.exp2(-x)
    else:
        y = tl.inline_asm_elementwise(
            "{.reg .f32 t; neg.f32 t, $1; ex2.approx.ftz.f32 $0, t;}", "=f,f", [x],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return y


@triton.jit
def power_of_2_minus_size(x):
    """2^-|x|, sign and size part of the instruction."""
    if _INTERPRETED:
        y = tl.exp2(-tl.abs(x))
    else:
        y = tl.inline_asm_elementwise(
            "{.reg .f32 t; abs.f32 t, $1; neg.f32 t, t; ex2.approx.ftz.f32 $0, t;}", "=f,f", [x],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return y


@triton.jit
def reciprocal(x):
    """1 / x in one instruction, 0 of infinity."""
    if _INTERPRETED:
        y = 1.0 / x
    else:
        y = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return y


@triton.jit
def log_2(x):
    """Base-2 logarithm of a normal number in one instruction."""
    if _INTERPRETED:
        y = tl.log2(x)
    else:
        y = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return y


@triton.jit
def softplus(x):
    """log(1 + exp(x)) with full relative accuracy for very negative x."""
    u = tl.exp(tl.minimum(x, 20.0))
    w = 1.0 + u
    small = tl.where(w == 1.0, u, tl.log(w) * (u / tl.where(w == 1.0, 1.0, w - 1.0)))
    return tl.where(x > 20.0, x, small)


@triton.jit
def softplus_fast(x):
    """As softplus, to 3e-4 of its value: for prefill, whose products carry bf16 rounding anyway."""
    u = power_of_2(-1.4426950408889634 * tl.abs(x))
    tail = tl.where(u < 1e-3, u * (1.0 - 0.5 * u), 0.6931471805599453 * log_2(1.0 + u))
    return tl.maximum(x, 0.0) + tail


@triton.jit
def _log2_of_1_plus(u):
    """log2(1 + u) for u in [0, 1], to 9e-6 of its value however small: minimax polynomial."""
    p = -0.03443590680527523 * u + 0.1460328883431308
    p = p * u - 0.30303620335846393
    p = p * u + 0.46917406486143143
    p = p * u - 0.7204261644799705
    return (p * u + 1.4426829196061195) * u


@triton.jit
def fast_log2_decay(x, factor, bias, lower_bound, GATE: tl.constexpr):
    """Log2 decay (<= 0) to 2e-5 of its value, for prefill.

    ``factor``: -exp(A_log) of the softplus gate, exp(A_log) of the bounded one.
    """
    if GATE == 1:
        g = x * 1.4426950408889634
    elif GATE == 2:
        y = x * 1.4426950408889634 + bias * 1.4426950408889634
        g = factor * (tl.maximum(y, 0.0) + _log2_of_1_plus(power_of_2_minus_size(y)))
    else:
        slope = factor * -1.4426950408889634
        y = x * slope + bias * slope
        g = (lower_bound * 1.4426950408889634) * reciprocal(1.0 + power_of_2(y))
    return g


@triton.jit
def sigmoid(x):
    u = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, u) / (1.0 + u)


@triton.jit
def log_decay(x, a_log, bias, lower_bound, GATE: tl.constexpr, FAST: tl.constexpr = False):
    """Natural-log decay (<= 0) from the gate input; a_log, bias broadcast against x."""
    if GATE == 1:
        g = x
    elif GATE == 2:
        if FAST:
            g = -tl.exp(a_log) * softplus_fast(x + bias)
        else:
            g = -tl.exp(a_log) * softplus(x + bias)
    else:
        g = lower_bound * sigmoid(tl.exp(a_log) * (x + bias))
    return g
