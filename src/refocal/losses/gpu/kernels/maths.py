"""Elementary functions in float32 with so few instructions that a memory-bound kernel hides them.

Exponentials are taken to base 2, which is one instruction; e^x would be five.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def reciprocal(x):
    """1 / x to a unit in the last place, and 0 from 2^126 on, in one instruction; a division takes eight."""
    if _INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def log2(x):
    """Logarithm to 2^-22, absolute near 1 and relative elsewhere, in one instruction; the exact one takes thirty."""
    if _INTERPRETED:
        return tl.log2(x)
    else:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def log1p(x):
    """log(1 + x) for 0 <= x <= 1 to a relative error of 2e-7: x times a minimax polynomial of degree 8."""
    y = 0.005232623979824515 * x - 0.02950495712129146
    y = y * x + 0.07822549321437273
    y = y * x - 0.13663206888644888
    y = y * x + 0.19105988470098637
    y = y * x - 0.2484297754151801
    y = y * x + 0.3331909622101218
    y = y * x - 0.49999493112397597
    y = y * x + 0.9999999698773514
    return x * y


@triton.jit
def whole_power(base, EXPONENT: tl.constexpr):
    """The base to the power of a whole number >= 0, by products."""
    result = tl.full(base.shape, 1.0, tl.float32)
    for _ in tl.static_range(EXPONENT):
        result = result * base
    return result


@triton.jit
def reduced_power(q, gamma, WHOLE: tl.constexpr):
    """q^(gamma - 1) for q > 0; by products if gamma is the whole number WHOLE >= 1. WHOLE is 0 for other gammas."""
    if WHOLE > 0:
        return whole_power(q, WHOLE - 1)
    else:
        return tl.exp2((gamma - 1.0) * log2(q))


@triton.jit
def log2_of_total(beside):
    """log2(1 + beside), with full precision for small `beside`."""
    return tl.where(beside < 1.0, log1p(tl.minimum(beside, 1.0)) * LOG2_E, log2(1.0 + beside))
