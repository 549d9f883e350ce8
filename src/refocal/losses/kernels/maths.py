"""The focal formulas of one probability, inside a kernel, in float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def log1p(x):
    """log(1 + x) for x >= 0: the rounding of 1 + x is divided out."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))


@triton.jit
def focus(log_p, odds, gamma, DETACHED: tl.constexpr):
    """1 + gamma s with s = -p log(p) / q and odds = p / q; 1 where the factor's gradient is stopped."""
    if DETACHED:
        return 1.0 + 0.0 * log_p
    else:
        # from odds of 1e30 on, s is 1 to the last digit
        s = tl.where(odds > 1e30, 1.0, -log_p * tl.where(odds > 1e30, 0.0, odds))
        return 1.0 + gamma * s


@triton.jit
def reduced_power(base, gamma, WHOLE: tl.constexpr):
    """base^(gamma - 1) for base > 0; by products where gamma is the whole number WHOLE >= 1, without log and exp."""
    if WHOLE >= 1:
        result = tl.full(base.shape, 1.0, tl.float32)
        for _ in tl.static_range(WHOLE - 1):
            result = result * base
        return result
    else:
        return tl.exp((gamma - 1.0) * tl.log(base))


@triton.jit
def power(log_base, gamma):
    """base^gamma, with 0^0 = 1."""
    return tl.where(gamma == 0.0, 1.0, tl.exp(gamma * tl.where(gamma == 0.0, 0.0, log_base)))
