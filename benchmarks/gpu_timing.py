"""What benchmarks of losses on a GPU share: the cases, a training step, and its time in a CUDA graph.

It imports nothing of refocal, so that a process can time another version.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ROWS = [
    (8_192, 128_256, torch.bfloat16),
    (8_192, 50_257, torch.bfloat16),
    (8_192, 32_000, torch.bfloat16),
    (65_536, 1_000, torch.bfloat16),
    (4_096, 1_000, torch.float32),
    (1_048_576, 100, torch.float32),
]
IMAGES = [(8, 21, 512, 512), (16, 150, 128, 128)]
GAMMA = 2.0


def replay_ms(function: Callable[[], object], repeats: int = 20, calls: int = 8) -> float:
    """Time of a call, the median over CUDA-graph replays that hold several."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            function()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2] / calls


def step(criterion: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> Callable[[], object]:
    """A forward and backward pass."""

    def run() -> object:
        return torch.autograd.grad(criterion(logits, target), logits)

    return run
