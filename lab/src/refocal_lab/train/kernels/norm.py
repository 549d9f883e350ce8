"""Batch norm with the sum and the activation after it, forward and backward, with channels last.

An image batch is a matrix: one row per pixel, one column per channel. At these sizes batch norm is bound by memory, so
the kernels read as little as possible. Forward, they read the inputs twice and write the outputs once. Backward,
whether the activation passes a gradient on is computed again from the inputs. With a residual it is read off the
outputs; the gradient that passes is then written once, because the residual needs it anyway, and used from there.

    measure, merge_moments        1. mean and inverse deviation of each channel
    normalize                     2. outputs = activation((inputs - mean) inverse weight + bias + residual)
    measure_gradient, merge_sums  3. for each channel the sums of g and of g normalized, g = the gradient that passes
    differentiate                 4. weight inverse (g - mean of g - normalized mean of (g normalized))

Sums over rows are computed in shares. A share is every `shares`-th block of rows, so the programs walk through memory
side by side. Steps 2 and 4 walk backward, and find in the cache what steps 1 and 3 read last. All sums have a fixed
order; results are the same bit for bit.

Names: ROWS is the height and WIDTH the number of channels of a block; SHARES is a power of two, at least the number of
shares. Sizes that only masks depend on are no constants, so few kernels are compiled. Addresses have 32 bits: a batch
has fewer than 2^31 values. NaN passes through every step, so that a diverged network is noticed.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def measure(inputs_ptr, parts_ptr, rows, channels, ROWS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr):
    """Means and sums of squared deviations of each share, as parts (2, shares, channels).

    Values are taken relative to the first row of the share, so a large mean costs no digits.
    """
    share, shares = tl.program_id(1), tl.num_programs(1)
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    exists = channel < channels
    origin = tl.load(inputs_ptr + share * ROWS * channels + channel, mask=exists, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    squares = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in tl.range(share * ROWS, rows, shares * ROWS, num_stages=STAGES):
        place, inside = _block(start, channel, rows, channels, ROWS)
        values = tl.load(inputs_ptr + place, mask=inside, other=0.0).to(tl.float32)
        values = tl.where(inside, values - origin[None, :], 0.0)
        total += values
        squares += values * values
    count = _count_rows(share, shares, rows, ROWS)
    shift = tl.sum(total, axis=0) / count
    here = parts_ptr + share * channels + channel
    tl.store(here, origin + shift, mask=exists)
    tl.store(here + shares * channels, tl.sum(squares, axis=0) - count * shift * shift, mask=exists)


@triton.jit(do_not_specialize=["rows", "shares"])
def merge_moments(
    parts_ptr,
    moments_ptr,
    running_mean_ptr,
    running_var_ptr,
    rows,
    channels,
    shares,
    epsilon,
    momentum,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    SHARES: tl.constexpr,
):
    """Moments (2, channels), mean and inverse deviation, from the parts; and a step of the running statistics."""
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    exists = channel < channels
    share = tl.arange(0, SHARES)[:, None]
    inside = (share < shares) & exists[None, :]
    here = parts_ptr + share * channels + channel[None, :]
    means = tl.load(here, mask=inside, other=0.0)
    squares = tl.load(here + shares * channels, mask=inside, other=0.0)
    count = tl.where(share < shares, _count_rows(share, shares, rows, ROWS), 0.0)
    mean = tl.sum(count * means, axis=0) / rows
    apart = means - mean[None, :]
    variance = tl.sum(squares + count * apart * apart, axis=0) / rows
    variance = tl.where(variance < 0.0, 0.0, variance)
    tl.store(moments_ptr + channel, mean, mask=exists)
    tl.store(moments_ptr + channels + channel, 1.0 / tl.sqrt(variance + epsilon), mask=exists)
    running_mean = tl.load(running_mean_ptr + channel, mask=exists, other=0.0)
    running_var = tl.load(running_var_ptr + channel, mask=exists, other=0.0)
    unbiased = variance * (rows / (rows - 1.0))
    tl.store(running_mean_ptr + channel, running_mean + momentum * (mean - running_mean), mask=exists)
    tl.store(running_var_ptr + channel, running_var + momentum * (unbiased - running_var), mask=exists)


@triton.jit(do_not_specialize=["rows"])
def normalize(
    inputs_ptr,
    moments_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    outputs_ptr,
    rows,
    channels,
    ACTIVATION: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Normalize, add the residual, activate."""
    start, channel = _walk_backward(channels, ROWS, WIDTH)
    place, inside = _block(start, channel, rows, channels, ROWS)
    inputs = tl.load(inputs_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        residual = tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    mean, inverse, weight, bias = _load_affine(moments_ptr, weight_ptr, bias_ptr, channel, channels)
    values = (inputs - mean) * (inverse * weight) + bias
    if RESIDUAL:
        values += residual
    if ACTIVATION != "none":
        values = tl.where(values < 0.0, 0.0, values)
    if ACTIVATION == "relu6":
        values = tl.where(values > 6.0, 6.0, values)
    tl.store(outputs_ptr + place, values.to(outputs_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def measure_gradient(
    gradient_ptr,
    inputs_ptr,
    outputs_ptr,
    moments_ptr,
    weight_ptr,
    bias_ptr,
    passed_ptr,
    parts_ptr,
    rows,
    channels,
    ACTIVATION: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Parts (shares, 2, channels): for each share the sums of g and of g normalized.

    RESIDUAL: the activation came after a residual was added; g is then stored as `passed`.
    """
    share, shares = tl.program_id(1), tl.num_programs(1)
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    mean, inverse, weight, bias = _load_affine(moments_ptr, weight_ptr, bias_ptr, channel, channels)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    product = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in tl.range(share * ROWS, rows, shares * ROWS, num_stages=STAGES):
        place, inside = _block(start, channel, rows, channels, ROWS)
        gradient = tl.load(gradient_ptr + place, mask=inside, other=0.0).to(tl.float32)
        normalized = (tl.load(inputs_ptr + place, mask=inside, other=0.0).to(tl.float32) - mean) * inverse
        if RESIDUAL:
            outputs = tl.load(outputs_ptr + place, mask=inside, other=0.0).to(tl.float32)
            gradient = _pass_back(gradient, outputs, ACTIVATION)
            tl.store(passed_ptr + place, gradient.to(passed_ptr.dtype.element_ty), mask=inside)
        else:
            gradient = _pass_back(gradient, (normalized * weight + bias).to(inputs_ptr.dtype.element_ty), ACTIVATION)
        total += gradient
        product += gradient * tl.where(inside, normalized, 0.0)
    here = parts_ptr + share * (2 * channels) + channel
    tl.store(here, tl.sum(total, axis=0), mask=channel < channels)
    tl.store(here + channels, tl.sum(product, axis=0), mask=channel < channels)


@triton.jit(do_not_specialize=["shares"])
def merge_sums(parts_ptr, sums_ptr, size, shares, WIDTH: tl.constexpr, SHARES: tl.constexpr):
    """Sum parts (shares, size) over the shares."""
    place, share = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH), tl.arange(0, SHARES)
    inside = (share < shares)[:, None] & (place < size)[None, :]
    total = tl.sum(tl.load(parts_ptr + share[:, None] * size + place[None, :], mask=inside, other=0.0), axis=0)
    tl.store(sums_ptr + place, total.to(sums_ptr.dtype.element_ty), mask=place < size)


@triton.jit(do_not_specialize=["rows"])
def differentiate(
    gradient_ptr,
    inputs_ptr,
    moments_ptr,
    weight_ptr,
    bias_ptr,
    sums_ptr,
    slope_ptr,
    rows,
    channels,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The gradient with respect to the inputs, from the sums (2, channels) of step 3."""
    start, channel = _walk_backward(channels, ROWS, WIDTH)
    exists = channel < channels
    place, inside = _block(start, channel, rows, channels, ROWS)
    gradient = tl.load(gradient_ptr + place, mask=inside, other=0.0).to(tl.float32)
    inputs = tl.load(inputs_ptr + place, mask=inside, other=0.0).to(tl.float32)
    mean, inverse, weight, bias = _load_affine(moments_ptr, weight_ptr, bias_ptr, channel, channels)
    total = tl.load(sums_ptr + channel, mask=exists, other=0.0)[None, :] / rows
    product = tl.load(sums_ptr + channels + channel, mask=exists, other=0.0)[None, :] / rows
    normalized = (inputs - mean) * inverse
    gradient = _pass_back(gradient, (normalized * weight + bias).to(inputs_ptr.dtype.element_ty), ACTIVATION)
    slope = weight * inverse * (gradient - total - normalized * product)
    tl.store(slope_ptr + place, slope.to(slope_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _walk_backward(channels, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The first row and the channels of this program's block. Blocks of the same rows follow each other."""
    number, columns = tl.num_programs(0) - 1 - tl.program_id(0), tl.cdiv(channels, WIDTH)
    return number // columns * ROWS, number % columns * WIDTH + tl.arange(0, WIDTH)


@triton.jit
def _block(start, channel, rows, channels, ROWS: tl.constexpr):
    """Where the values of a block of rows are, and which of them exist."""
    row = start + tl.arange(0, ROWS)[:, None]
    return row * channels + channel[None, :], (row < rows) & (channel < channels)[None, :]


@triton.jit
def _count_rows(share, shares, rows, ROWS: tl.constexpr):
    """Number of rows of a share, as a float: whole blocks, less what the last block of all lacks."""
    blocks = (rows + ROWS - 1) // ROWS
    lacks = tl.where((blocks - 1) % shares == share, blocks * ROWS - rows, 0)
    return ((blocks - share + shares - 1) // shares * ROWS - lacks).to(tl.float32)


@triton.jit
def _load_affine(moments_ptr, weight_ptr, bias_ptr, channel, channels):
    """Mean, inverse deviation, weight and bias, each (1, channels)."""
    exists = channel < channels
    mean = tl.load(moments_ptr + channel, mask=exists, other=0.0)
    inverse = tl.load(moments_ptr + channels + channel, mask=exists, other=0.0)
    weight = tl.load(weight_ptr + channel, mask=exists, other=0.0)
    bias = tl.load(bias_ptr + channel, mask=exists, other=0.0)
    return mean[None, :], inverse[None, :], weight[None, :], bias[None, :]


@triton.jit
def _pass_back(gradient, values, ACTIVATION: tl.constexpr):
    """The part of a gradient that passes an activation. The values are those before or after it, rounded as stored."""
    if ACTIVATION != "none":
        gradient = tl.where(values <= 0.0, 0.0, gradient)
    if ACTIVATION == "relu6":
        gradient = tl.where(values >= 6.0, 0.0, gradient)
    return gradient
