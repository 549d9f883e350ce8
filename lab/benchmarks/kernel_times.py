"""Where the time of a training step goes: microseconds per kind of kernel, for `train.py --profile`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

# The first kind that matches the name of a kernel. The depthwise convolution's `merge_sums` counts as norm.
KINDS = {
    "depthwise": r"depthwise|dwconv|dw_|conv2d_c1_k1|filter_channels|c1_k1_nhwc",
    "norm": r"measure|merge_|normalize|differentiate|batch_norm|bn_fw|bn_bw|batchnorm|layer_norm|LayerNorm|GammaBeta",
    "optimizer": r"multi_tensor_apply|FusedSgd|FusedAdam|update_weights",
    "attention": r"flash|fmha|attention",
    "product": r"conv|wgrad|dgrad|fprop|gemm|cutlass|xmma|nvjet|cudnn|sm90|sm80|correlate|spread|add_up|nchw|nhwc",
    "elementwise": r"elementwise|triton_|vectorized|CatArray|copy|Copy|index|gather|scatter",
    "reduction": r"reduce|softmax|SoftMax|pool",
}


def measure_kernels(step: Callable[[], object], *, steps: int) -> tuple[Counter[str], Counter[str]]:
    """Microseconds and launches per step of each kernel, by name."""
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for event in trace.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] += event.device_time_total / steps
            launches[event.name] += 1 / steps
    return times, launches


def find_kind(name: str) -> str:
    """The kind of a kernel."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "other")


def render_kernels(model: str, times: Counter[str], launches: Counter[str], *, longest: int) -> str:
    """The sums of each kind, and the kernels that take longest."""
    kinds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, time in times.items():
        kinds[find_kind(name)] += time
        counts[find_kind(name)] += launches[name]
    lines = [f"{model}: {sum(times.values()):,.0f} us in {sum(launches.values()):,.0f} kernels"]
    lines += [f"  {kind:12} {time:8.0f} us {counts[kind]:6.0f} kernels" for kind, time in kinds.most_common()]
    for name, time in times.most_common(longest):
        lines.append(f"    {time:7.0f} us {launches[name]:5.0f} x  {find_kind(name):11} {name[:140]}")
    return "\n".join(lines)
