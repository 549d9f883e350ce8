"""Trace and largest eigenvalue of a Hessian, beside PyHessian and plain curvlinops, on the same network and data.

The data are 1,000 patches of 32 x 32 pixels of scikit-learn's two photographs, in ten classes by where they lie; each
network is trained on them for ten epochs first. On a CPU times are CPU seconds of one thread, which other processes do
not change; contenders take turns. On a GPU each runs once, after a few probes on 16 samples; for everyone float32 has
all of its digits (no TF32) and cuDNN chooses its kernels by trying them. Memory is the peak beyond what network and
data take. A contender that fails, or that would begin after the time given to its network is over, says so in its row.

    python benchmarks/curvature.py --out benchmarks/results/curvature.md
    python benchmarks/curvature.py --device cuda --out benchmarks/results/curvature_gpu.md
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import math
import multiprocessing
import os
import platform
import shlex
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads of SciPy's that wait take CPU seconds, too

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from refocal.curvature import hessian_top_eigenvalues, hessian_trace
from refocal.curvature.modes import full_precision

PRODUCTS, ROUNDS, SAMPLES = 100, 3, 1000
PATIENCE = 110  # seconds that the contenders of one network may take on a GPU, before the last one begins
Result = dict[str, Any]
Data = tuple[Tensor, Tensor]
Run = Callable[[nn.Module, Data], Result]


def patches(device: str) -> Data:
    """Standardized patches (1000, 3, 32, 32) and the fifth of the photograph that each comes from."""
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
    elif name == "ViT 192 x 6":
        transformer = importlib.import_module("refocal_lab.train.models.vit").VisionTransformer
        model = transformer(classes=10, shape=(3, 32, 32), patch=4, width=192, depth=6, heads=3)
    else:
        models = importlib.import_module("refocal_lab.train.models")
        model = models.build(name, classes=10, shape=(3, 32, 32))
    model, (inputs, target) = model.to(device), patches(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        for batch in torch.randperm(SAMPLES, device=device).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), target[batch]).backward()
            optimizer.step()
    model.zero_grad()
    return model.eval()


def pyhessian_trace(model: nn.Module, data: Data, *, probes: int = PRODUCTS) -> Result:
    """All probes: with its tolerance it would stop after a few."""
    hessian = importlib.import_module("pyhessian").hessian
    found = hessian(model, nn.CrossEntropyLoss(), data=data, cuda=data[0].is_cuda).trace(maxIter=probes, tol=0.0)
    model.zero_grad()
    return {"value": np.mean(found), "error": np.std(found, ddof=1) / math.sqrt(len(found))}


def curvlinops_trace(model: nn.Module, data: Data, *, probes: int = PRODUCTS) -> Result:
    """Hutchinson's estimate, which tells no error."""
    curvlinops = importlib.import_module("curvlinops")
    return {"value": float(curvlinops.hutchinson_trace(_curvlinops_hessian(model, data), probes))}


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
        value = search.eigenvalues(maxIter=300, tol=tolerance)[0][0]
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


def refocal_eigenvalue(model: nn.Module, data: Data, *, tolerance: float) -> Result:
    """The Lanczos method; its tolerance is that of the residual, whose square is the order of the error."""
    found = hessian_top_eigenvalues(model, nn.CrossEntropyLoss(), [data], tolerance=tolerance)
    return {"value": found.algebraic[0], "products": found.products}


def _curvlinops_hessian(model: nn.Module, data: Data) -> Any:
    curvlinops = importlib.import_module("curvlinops")
    parameters = list(model.parameters())
    return curvlinops.HessianLinearOperator(model, nn.CrossEntropyLoss(), parameters, [data], check_deterministic=False)


def contenders(memory: int | None) -> tuple[dict[str, Run], dict[str, Run]]:
    """Who estimates the trace and who the largest eigenvalue."""
    trace = {
        "PyHessian": pyhessian_trace,
        "curvlinops": curvlinops_trace,
        "refocal, one group": partial(refocal_trace, probes=PRODUCTS, group=SAMPLES, memory=memory),
        "refocal": partial(refocal_trace, probes=PRODUCTS, memory=memory),
        "refocal, 16 probes": partial(refocal_trace, probes=16, memory=memory),
        "refocal, Gauss-Newton": partial(refocal_trace, probes=PRODUCTS, memory=memory, matrix="ggn"),
        "refocal, XTrace": partial(refocal_trace, probes=PRODUCTS, method="xtrace", memory=memory),
    }
    top = {
        "PyHessian, tolerance 1e-3": partial(pyhessian_eigenvalue, tolerance=1e-3),
        "PyHessian, tolerance 1e-6": partial(pyhessian_eigenvalue, tolerance=1e-6),
        "curvlinops and eigsh": curvlinops_eigenvalue,
        "refocal, tolerance 1e-2": partial(refocal_eigenvalue, tolerance=1e-2),
        "refocal, tolerance 1e-4": partial(refocal_eigenvalue, tolerance=1e-4),
    }
    return trace, top


def clock(device: str) -> float:
    """Seconds: of the processor, or of the wall once the device is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def take_turns(
    runs: dict[str, Run], model: nn.Module, data: Data, device: str, *, deadline: float
) -> dict[str, Result]:
    """Medians over rounds, errors as root mean squares, or {"failed": why}."""
    if device == "cuda":
        return {name: _once(name, run, model, data, deadline) for name, run in runs.items()}
    results: dict[str, list[Result]] = {name: [] for name in runs}
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            found = _timed(run, model, data, device)
            if turn:  # the first warms up
                results[name].append(found)
    return {
        name: next((row for row in rows if "failed" in row), None)
        or {key: _middle(key, [each[key] for each in rows]) for key in rows[0]}
        for name, rows in results.items()
    }


def _once(name: str, run: Run, model: nn.Module, data: Data, deadline: float) -> Result:
    """On a GPU: a few probes to warm up, then time and memory of one run."""
    if time.perf_counter() > deadline:
        return {"failed": "not run, out of time"}
    takes_probes = getattr(run, "func", run).__name__.endswith("trace")
    short = partial(run, probes=8) if takes_probes else run
    _timed(short, model, (data[0][:16], data[1][:16]), "cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = _timed(run, model, data, "cuda")
    print(f"  {name}: {found}", flush=True)
    return {**found, "memory": (torch.cuda.max_memory_allocated() - before) / 1e6}


def _timed(run: Run, model: nn.Module, data: Data, device: str) -> Result:
    start = clock(device)
    try:
        found = run(model, data)
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:100].replace("|", "/")}
    finally:
        model.zero_grad(set_to_none=True)
    return {**found, "seconds": clock(device) - start}


def _middle(key: str, values: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))) if key == "error" else np.median(values))


def peak_memory(run: Run, architecture: str) -> float:
    """MB beyond network and data, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (run, architecture))


def _peak(run: Run, architecture: str) -> float:
    torch.set_num_threads(1)
    model, data = network(architecture, "cpu"), patches("cpu")
    with full_precision():
        run(model, (data[0][:8], data[1][:8]))  # what it imports does not count
        ctypes.CDLL(None).malloc_trim(0)  # what was freed is no head start
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # Linux: the peak begins again
        before = _resident("VmRSS")
        run(model, data)
        return _resident("VmHWM") - before


def _resident(what: str) -> float:
    line = next(
        line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if line.startswith(what)
    )
    return int(line.split()[1]) * 1024 / 1e6


def tables(architecture: str, device: str, memory: int | None, write: Callable[[str], None]) -> None:
    """Both tables of one network, row by row."""
    model, data = network(architecture, device), patches(device)
    trace, top = contenders(memory)
    write(f"## {architecture}, {sum(p.numel() for p in model.parameters()):,} parameters, {SAMPLES:,} samples\n")
    write("| largest eigenvalue | value | relative error | products | seconds |\n|---|---|---|---|---|")
    with full_precision():
        exact = _exact(model, data)
        deadline = time.perf_counter() + PATIENCE
        for name, row in take_turns(top, model, data, device, deadline=deadline).items():
            write(_top_row(name, row, exact))
        write(
            "\n| trace | value | standard error | seconds | times faster than the first | for the same error "
            "| memory, MB |"
        )
        write("|---|---|---|---|---|---|---|")
        rows = take_turns(trace, model, data, device, deadline=deadline)
        first = rows["PyHessian"] if "failed" not in rows["PyHessian"] else rows["refocal, one group"]
        for name, row in rows.items():
            if device == "cpu" and "failed" not in row:
                row["memory"] = peak_memory(trace[name], architecture)
            write(_trace_row(name, row, first))
    write("")


def _exact(model: nn.Module, data: Data) -> float | None:
    try:
        settings: dict[str, Any] = {"dtype": torch.float64, "tolerance": 1e-5}
        return float(hessian_top_eigenvalues(model, nn.CrossEntropyLoss(), [data], **settings).algebraic[0])
    except Exception as error:
        print(f"no eigenvalue in float64: {error}", flush=True)
        return None


def _top_row(name: str, row: Result, exact: float | None) -> str:
    if "failed" in row:
        return f"| {name} | {row['failed']} | | | |"
    off = "" if exact is None else f"{abs(row['value'] / exact - 1):.1e}"
    return f"| {name} | {row['value']:.6g} | {off} | {row['products']:.0f} | {row['seconds']:.3f} |"


def _trace_row(name: str, row: Result, first: Result) -> str:
    if "failed" in row:
        return f"| {name} | {row['failed']} | | | | | |"
    error = f"{row['error']:.3g}" if "error" in row else ""
    faster = first["seconds"] / row["seconds"] if "failed" not in first else math.nan
    # four times the products halve an error
    for_the_same = faster * (first["error"] / row["error"]) ** 2 if "error" in row and "error" in first else math.nan
    ratios = " | ".join("" if math.isnan(ratio) else f"{ratio:.2f}" for ratio in (faster, for_the_same))
    return f"| {name} | {row['value']:.5g} | {error} | {row['seconds']:.3f} | {ratios} | {row['memory']:,.0f} |"


def main() -> None:
    """Write the tables, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--networks", nargs="+", help="default: the MLP on a CPU, resnet20 and a small ViT on a GPU")
    parser.add_argument("--memory", type=float, help="bytes for the probes under way; default: the package's own")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    gpu = torch.backends.cudnn.benchmark = options.device == "cuda"
    names = options.networks or (["resnet20", "ViT 192 x 6"] if gpu else ["MLP 3072-100-10"])
    times = "seconds of wall time" if gpu else f"CPU seconds of one thread, medians of {ROUNDS} rounds in turns"
    where = torch.cuda.get_device_name() if gpu else platform.machine()
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        print(line, flush=True)
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")

    write("# Curvature: trace and largest eigenvalue of a Hessian\n")
    write(f"{where}, PyTorch {torch.__version__}. {PRODUCTS} probes or products unless a row says otherwise; {times}.")
    chosen = ["--networks", *options.networks] if options.networks else []
    command = shlex.join(["python", "benchmarks/curvature.py", *(["--device", "cuda"] if gpu else []), *chosen])
    write(f"Memory: the peak beyond network and data. By `{command}`.\n")
    for name in names:
        tables(name, options.device, None if options.memory is None else int(options.memory), write)


if __name__ == "__main__":
    main()
