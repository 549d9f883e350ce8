"""Trace and largest eigenvalue of a Hessian, beside PyHessian and plain curvlinops, on the same network and data.

The data are 1,000 patches of 32 x 32 pixels of scikit-learn's two photographs, in ten classes by where they lie; each
network is trained on them for ten epochs first. On a CPU times are CPU seconds of one thread, which other processes do
not change; contenders take turns. Memory is the peak beyond what network and data take.

    python benchmarks/curvature.py --out benchmarks/results/curvature.md
    python benchmarks/curvature.py --device cuda --memory 8e9 --out benchmarks/results/curvature_gpu.md
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import multiprocessing
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from refocal.curvature import hessian_top_eigenvalues, hessian_trace
from refocal.curvature.problem import differentiable_attention

PRODUCTS, ROUNDS, SAMPLES = 100, 3, 1000
Result = dict[str, Any]
Data = tuple[Tensor, Tensor]
Run = Callable[[nn.Module, Data], Result]


def patches(device: str) -> Data:
    """Standardised patches (1000, 3, 32, 32) and the fifth of the photograph that each comes from."""
    rng = np.random.default_rng(0)
    photos = load_sample_images().images
    height, width = photos[0].shape[:2]
    rows, columns = rng.integers(height - 32, size=SAMPLES), rng.integers(width - 32, size=SAMPLES)
    which = rng.integers(2, size=SAMPLES)
    cut = np.stack([photos[w][r : r + 32, c : c + 32] for w, r, c in zip(which, rows, columns, strict=True)])
    images = torch.tensor(cut, dtype=torch.float32).permute(0, 3, 1, 2) / 255
    spread, mean = torch.std_mean(images, dim=(0, 2, 3), keepdim=True)
    target = torch.tensor(which * 5 + columns * 5 // (width - 32))
    return ((images - mean) / spread).contiguous().to(device), target.to(device)


def network(name: str, device: str) -> nn.Module:
    """A network, trained a little."""
    torch.manual_seed(0)
    if name == "MLP 3072-100-10":
        model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(3072, 100), nn.ReLU(), nn.Linear(100, 10))
    else:
        models = importlib.import_module("refocal.train.models")
        model = models.build(name, classes=10, shape=(3, 32, 32))
    model, (inputs, target) = model.to(device), patches(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        for batch in torch.randperm(SAMPLES, device=device).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), target[batch]).backward()
            optimiser.step()
    model.zero_grad()
    return model.eval()


def pyhessian_trace(model: nn.Module, data: Data) -> Result:
    """All probes: with its tolerance it would stop after a few."""
    hessian = importlib.import_module("pyhessian").hessian
    found = hessian(model, nn.CrossEntropyLoss(), data=data, cuda=data[0].is_cuda).trace(maxIter=PRODUCTS, tol=0.0)
    model.zero_grad()
    return {"value": np.mean(found), "error": np.std(found, ddof=1) / math.sqrt(len(found))}


def curvlinops_trace(model: nn.Module, data: Data) -> Result:
    """Hutchinson's estimate, which tells no error."""
    curvlinops = importlib.import_module("curvlinops")
    return {"value": float(curvlinops.hutchinson_trace(_curvlinops_hessian(model, data), PRODUCTS))}


def refocal_trace(model: nn.Module, data: Data, **settings: Any) -> Result:
    """The same by this package."""
    found = hessian_trace(model, nn.CrossEntropyLoss(), [data], **settings)
    return {"value": found.value, "error": found.standard_error}


def pyhessian_eigenvalue(model: nn.Module, data: Data, *, tolerance: float) -> Result:
    """Power iteration."""
    module = importlib.import_module("pyhessian.hessian")
    plain, products = module.hessian_vector_product, [0]

    def counted(*arguments: Any) -> Any:
        products[0] += 1
        return plain(*arguments)

    module.hessian_vector_product = counted
    try:
        torch.manual_seed(0)
        search = module.hessian(model, nn.CrossEntropyLoss(), data=data, cuda=data[0].is_cuda)
        value = search.eigenvalues(maxIter=5000, tol=tolerance)[0][0]
    finally:
        module.hessian_vector_product = plain
    model.zero_grad()
    return {"value": value, "products": products[0]}


def curvlinops_eigenvalue(model: nn.Module, data: Data) -> Result:
    """SciPy's `eigsh` as it comes, on the operator."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator, products = _curvlinops_hessian(model, data).to_scipy(), [0]

    def counted(vector: np.ndarray) -> np.ndarray:
        products[0] += 1
        return operator @ vector

    start = np.random.default_rng(0).standard_normal(operator.shape[0])
    wrapped = LinearOperator(operator.shape, matvec=counted, dtype=np.float64)
    value = eigsh(wrapped, k=1, which="LA", tol=1e-4, v0=start, return_eigenvectors=False)[0]
    return {"value": value, "products": products[0]}


def refocal_eigenvalue(model: nn.Module, data: Data) -> Result:
    """The Lanczos method."""
    found = hessian_top_eigenvalues(model, nn.CrossEntropyLoss(), [data])
    return {"value": found.algebraic[0], "products": found.products}


def _curvlinops_hessian(model: nn.Module, data: Data) -> Any:
    curvlinops = importlib.import_module("curvlinops")
    parameters = list(model.parameters())
    return curvlinops.HessianLinearOperator(model, nn.CrossEntropyLoss(), parameters, [data], check_deterministic=False)


def contenders(memory: int) -> tuple[dict[str, Run], dict[str, Run]]:
    """Who estimates the trace and who the largest eigenvalue: those whose package is installed."""
    trace = {
        "PyHessian": pyhessian_trace,
        "curvlinops": curvlinops_trace,
        "refocal, one group": partial(refocal_trace, probes=PRODUCTS, group=None, memory=memory),
        "refocal": partial(refocal_trace, probes=PRODUCTS, memory=memory),
        "refocal, Gauss-Newton": partial(refocal_trace, probes=PRODUCTS, memory=memory, matrix="ggn"),
        "refocal, XTrace": partial(refocal_trace, probes=PRODUCTS, method="xtrace"),
    }
    top = {
        "PyHessian, tolerance 1e-3": partial(pyhessian_eigenvalue, tolerance=1e-3),
        "PyHessian, tolerance 1e-6": partial(pyhessian_eigenvalue, tolerance=1e-6),
        "curvlinops and eigsh": curvlinops_eigenvalue,
        "refocal": refocal_eigenvalue,
    }
    return tuple({name: run for name, run in some.items() if _present(name)} for some in (trace, top))


def _present(name: str) -> bool:
    return all(importlib.util.find_spec(each) for each in ("pyhessian", "curvlinops") if name.lower().startswith(each))


def clock(device: str) -> float:
    """Seconds: of the processor, or of the wall once the device is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def take_turns(runs: dict[str, Run], model: nn.Module, data: Data, device: str) -> dict[str, Result]:
    """Medians over rounds, errors as root mean squares; who runs out of memory is left out."""
    results: dict[str, list[Result]] = {name: [] for name in runs}
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            start = clock(device)
            try:
                found = run(model, data)
            except torch.OutOfMemoryError:
                model.zero_grad()
                continue
            found["seconds"] = clock(device) - start
            if turn:  # the first warms up
                results[name].append(found)
    return {
        name: {key: _middle(key, [each[key] for each in rows]) for key in rows[0]}
        for name, rows in results.items()
        if rows
    }


def _middle(key: str, values: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))) if key == "error" else np.median(values))


def peak_memory(run: Run, architecture: str, device: str) -> float:
    """MB beyond network and data, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (run, architecture, device))


def _peak(run: Run, architecture: str, device: str) -> float:
    torch.set_num_threads(1)
    model, data = network(architecture, device), patches(device)
    with differentiable_attention():
        run(model, (data[0][:8], data[1][:8]))  # what it imports does not count
        if device == "cuda":
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            run(model, data)
            return (torch.cuda.max_memory_allocated() - before) / 1e6
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak begins again
        before = _resident("VmRSS")
        run(model, data)
        return _resident("VmHWM") - before


def _resident(what: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024 / 1e6


def table(architecture: str, device: str, memory: int) -> list[str]:
    """Both tables of one network."""
    model, data = network(architecture, device), patches(device)
    trace, top = contenders(memory)
    with differentiable_attention():
        rows = take_turns(trace, model, data, device)
        first = rows.get("PyHessian", rows["refocal, one group"])
        # as many probes a group as it takes for the error of common probes
        fewer = max(2, math.ceil(PRODUCTS * (rows["refocal"]["error"] / first["error"]) ** 2))
        few = f"refocal, {fewer} probes a group"
        trace[few] = partial(refocal_trace, probes=fewer, memory=memory)
        rows |= take_turns({few: trace[few]}, model, data, device)
        tops = take_turns(top, model, data, device)
        exact = hessian_top_eigenvalues(
            model, nn.CrossEntropyLoss(), [data], dtype=torch.float64, tolerance=1e-8, max_products=20_000
        ).algebraic[0]
    lines = [
        f"## {architecture}, {sum(p.numel() for p in model.parameters()):,} parameters, 1,000 samples",
        "",
        "| trace | value | standard error | seconds | times faster than the first | memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {name} | out of memory | | | | |" for name in trace if name not in rows]
    for name, row in rows.items():
        error = f"{row['error']:.3g}" if "error" in row else ""
        used = peak_memory(trace[name], architecture, device)
        ratio = first["seconds"] / row["seconds"]
        lines.append(f"| {name} | {row['value']:.5g} | {error} | {row['seconds']:.3f} | {ratio:.2f} | {used:,.0f} |")
        print(lines[-1], flush=True)
    lines += ["", "| largest eigenvalue | value | relative error | products | seconds |", "|---|---|---|---|---|"]
    for name, row in tops.items():
        off = abs(row["value"] / exact - 1)
        lines.append(f"| {name} | {row['value']:.6g} | {off:.1e} | {row['products']:.0f} | {row['seconds']:.3f} |")
        print(lines[-1], flush=True)
    return [*lines, ""]


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--networks", nargs="+", help="default: the MLP on a CPU, resnet20 and vit-small on a GPU")
    parser.add_argument("--memory", type=float, default=2**27, help="bytes for the probes under way")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.networks or (["MLP 3072-100-10"] if options.device == "cpu" else ["resnet20", "vit-small"])
    gpu = options.device == "cuda"
    unit = "seconds of wall time" if gpu else "CPU seconds of one thread"
    lines = [
        "# Curvature: trace and largest eigenvalue of a Hessian",
        "",
        f"{PRODUCTS} probes or products unless a row says otherwise; {unit}, medians of {ROUNDS} rounds in which the",
        f"contenders take turns; memory for probes under way: {options.memory / 1e6:,.0f} MB. Memory column: the peak",
        "beyond network and data, in a process of its own.",
        "",
    ]
    for name in names:
        lines += table(name, options.device, int(options.memory))
    where = torch.cuda.get_device_name() if gpu else platform.machine()
    lines.append(f"{where}, PyTorch {torch.__version__}.")
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
