"""Microseconds of batch norm with ReLU at the sizes of ResNet-50 and MobileNet-v2, by block size, beside PyTorch's.

The block sizes of `refocal_lab.train.normalization` were chosen from this table. Needs a CUDA device.

    python benchmarks/normalization.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F

from refocal_lab.train import normalization
from refocal_lab.train.normalization import _differentiate, measure, normalize

SIZES = ((32, 64), (32, 256), (16, 512), (8, 256), (8, 1024), (4, 2048), (32, 144))  # pixels high and wide; channels
TILES = ((2048, 4, 1), (2048, 4, 2), (4096, 4, 1), (4096, 4, 2), (4096, 8, 1), (8192, 8, 1), (8192, 8, 2))
BATCH = 128


def time_operation(run: Callable[[], object], *, repeats: int = 20, replays: int = 10) -> float:
    """Microseconds of an operation inside a CUDA graph."""
    for _ in range(3):
        run()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / repeats / replays


def measure_size(pixels: int, channels: int) -> None:
    """Print one line per block size."""
    inputs, residual, incoming = (
        torch.randn(BATCH, channels, pixels, pixels, device="cuda", dtype=torch.bfloat16).contiguous(
            memory_format=torch.channels_last
        )
        for _ in range(3)
    )
    weight, mean, bias = (torch.full((channels,), value, device="cuda") for value in (1.0, 0.0, 0.0))
    variance = torch.ones_like(weight)
    megabytes = inputs.numel() * 2e-6
    print(f"{pixels} x {pixels} pixels, {channels} channels, {megabytes:.1f} MB; at 4 TB/s one pass is", end=" ")
    print(f"{megabytes / 4:.1f} us")
    _, saved_mean, saved_inverse = torch.native_batch_norm(inputs, weight, bias, mean, variance, True, 0.1, 1e-5)
    pytorch = (
        lambda: F.relu(F.batch_norm(inputs, mean, variance, weight, bias, training=True)),
        lambda: torch.ops.aten.native_batch_norm_backward(
            *(incoming, inputs, weight, mean, variance, saved_mean, saved_inverse, True, 1e-5, [True] * 3)
        ),
    )
    print("  PyTorch: forward {:.1f}, backward without ReLU {:.1f}".format(*map(time_operation, pytorch)))
    given = (measure(inputs, mean, variance, 0.1, 1e-5), weight, bias)
    outputs = normalize(inputs, *given, residual, "relu")
    for block, warps, stages in TILES:
        normalization._FORWARD = normalization._BACKWARD = (block, stages)
        normalization._WARPS = warps
        times = (
            time_operation(lambda: measure(inputs, mean, variance, 0.1, 1e-5)),
            time_operation(lambda: normalize(inputs, *given, None, "relu")),
            time_operation(lambda: normalize(inputs, *given, residual, "relu")),
            time_operation(lambda: _differentiate(incoming, inputs, None, *given, "relu")),
            time_operation(lambda: _differentiate(incoming, inputs, outputs, *given, "relu")),
        )
        names = ("measure", "normalize", "with residual", "backward", "with residual")
        print(f"  {block} values, {warps} warps, {stages} stages:", end=" ")
        print(", ".join(f"{name} {time:.1f}" for name, time in zip(names, times, strict=True)), flush=True)


def main() -> None:
    """Measure and print."""
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    for pixels, channels in SIZES:
        measure_size(pixels, channels)


if __name__ == "__main__":
    main()
