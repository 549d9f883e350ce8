"""Forward and backward of a linear layer with its loss on a GPU: time, memory and accuracy, beside Liger and CCE.

Hidden states are normal, weights make logits of standard deviation 1, as in an untrained network, or 3, and targets are
drawn from their softmax. Times are medians of eager calls. Memory is the peak beyond the inputs. Errors are those of
the head's gradient against float64, relative to its norm.

    pip install liger-kernel cut-cross-entropy
    python benchmarks/linear_losses.py --out benchmarks/results/linear_losses.md
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from refocal.losses import FocalLoss, LinearFocalLoss
from refocal.losses.linear.chunks import default_chunk_bytes

SHAPES = [(8_192, 2_304, 256_000), (8_192, 4_096, 128_256), (8_192, 2_048, 32_000), (16_384, 4_096, 152_064)]
RATE = 790e12  # floating-point operations per second of a large matrix product in bfloat16 on an H200
GAMMA = 2.0
SPREADS = (1.0, 3.0)  # of the logits
GIB = 2**30


class Case(NamedTuple):
    """The inputs of one shape: hidden states (N, D), head (V, D) and targets (N,)."""

    hidden: Tensor
    head: Tensor
    target: Tensor

    @property
    def gradient_bytes(self) -> int:
        """The size of the gradients."""
        return self.hidden.nbytes + self.head.nbytes

    @property
    def floor_ms(self) -> float:
        """The time of the three matrix products."""
        return 6 * self.hidden.shape[0] * self.head.numel() / RATE * 1e3


FOCAL = ("linear + `FocalLoss`", "`LinearFocalLoss`", "`LinearFocalLoss`, float32 sums")  # with GAMMA
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def draw(rows: int, width: int, classes: int, spread: float) -> Case:
    """Random inputs."""
    torch.manual_seed(0)
    hidden = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    head = (torch.randn(classes, width, device="cuda") * (spread / width**0.5)).to(torch.bfloat16)
    target = torch.cat([torch.softmax((part @ head.t()).float(), dim=1).multinomial(1) for part in hidden.split(256)])
    return Case(hidden.requires_grad_(), head.requires_grad_(), target[:, 0])


def losses() -> dict[str, Loss]:
    """What is compared: a name, and a function from hidden states, head and targets to a mean."""
    return {
        "linear + `F.cross_entropy`": lambda hidden, head, target: F.cross_entropy(hidden @ head.t(), target),
        "linear + `FocalLoss`": lambda hidden, head, target: FocalLoss(GAMMA)(hidden @ head.t(), target),
        "Liger": _liger(),
        "CCE": _cce(),
        "`LinearFocalLoss`": LinearFocalLoss(GAMMA),
        "`LinearFocalLoss`, float32 sums": LinearFocalLoss(GAMMA, sum_dtype=torch.float32),
        "`LinearFocalLoss`, gamma 0": LinearFocalLoss(0.0),
    }


def _liger() -> Loss:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    criterion = LigerFusedLinearCrossEntropyLoss()
    return lambda hidden, head, target: criterion(head, hidden, target)


def _cce() -> Loss:
    from cut_cross_entropy import linear_cross_entropy

    return linear_cross_entropy


def gradients(loss: Loss, case: Case) -> tuple[Tensor, Tensor]:
    """The gradients of hidden states and head."""
    return torch.autograd.grad(loss(*case), [case.hidden, case.head])  # type: ignore[return-value]


def peak_bytes(loss: Loss, case: Case) -> int:
    """The peak of allocated memory beyond the inputs."""
    gradients(loss, case)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients(loss, case)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def time_ms(loss: Loss, case: Case) -> float:
    """The median time of forward and backward."""
    return float(triton.testing.do_bench(lambda: gradients(loss, case), warmup=100, rep=700, return_mode="median"))


@torch.no_grad()
def exact_head_gradient(case: Case, gamma: float, block: int = 512) -> Tensor:
    """The head's gradient in float64: phi (p - [j = y]), averaged, times the hidden states."""
    head, total = case.head.double(), None
    for hidden, target in zip(case.hidden.double().split(block), case.target.split(block), strict=True):
        log_p = F.log_softmax(hidden @ head.t(), dim=1)
        of_target = log_p.gather(1, target[:, None])
        p, q = of_target.exp(), -torch.expm1(of_target)
        factor = (q**gamma - gamma * q ** (gamma - 1) * p * of_target) / len(case.target)
        gradient = log_p.exp_().scatter_add_(1, target[:, None], -torch.ones_like(of_target)).mul_(factor)
        total = gradient.t() @ hidden if total is None else total.addmm_(gradient.t(), hidden)
    assert total is not None
    return total


def error(found: Tensor, exact: Tensor) -> float:
    """The norm of the difference over the norm, by slices that fit into memory."""
    difference = sum(
        (a.double() - b).square().sum() for a, b in zip(found.split(8_192), exact.split(8_192), strict=True)
    )
    return float((difference / exact.square().sum()).sqrt())


def compare(case: Case, spread: float) -> list[str]:
    """The table's rows for one shape."""
    (rows, width), classes = case.hidden.shape, len(case.head)
    lines = []
    exact = {gamma: exact_head_gradient(case, gamma) for gamma in (0.0, GAMMA)}
    for name, loss in losses().items():
        wrong = error(gradients(loss, case)[1], exact[GAMMA if name in FOCAL else 0.0])
        peak, ms = peak_bytes(loss, case), time_ms(loss, case)
        lines.append(
            f"| {rows:,} x {width:,} x {classes:,} | {spread:g} | {name} | {ms:.1f} "
            f"| {ms / case.floor_ms:.2f} | {peak / GIB:.2f} | {peak / case.gradient_bytes:.2f} | {wrong:.2%} |"
        )
        print(lines[-1], flush=True)
    return lines


def trade(case: Case) -> list[str]:
    """Time and memory along the size of a chunk."""
    (rows, width), classes = case.hidden.shape, len(case.head)
    lines = []
    for factor in (0.125, 0.25, 0.5, 1, 2, 4):
        chunk = int(factor * default_chunk_bytes(case.hidden, case.head))
        cells = [f"{rows:,} x {width:,} x {classes:,}", f"{chunk / 2**20:,.0f}"]
        for sum_dtype in (None, torch.float32):
            loss = LinearFocalLoss(GAMMA, chunk_bytes=chunk, sum_dtype=sum_dtype)
            cells += [
                f"{time_ms(loss, case) / case.floor_ms:.2f}",
                f"{peak_bytes(loss, case) / case.gradient_bytes:.2f}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the tables to this Markdown file")
    options = parser.parse_args()
    rows, curve = [], []
    for shape, spread in itertools.product(SHAPES, SPREADS):
        case = draw(*shape, spread)
        rows += compare(case, spread)
        curve += trade(case) if spread == SPREADS[0] else []
        del case
        torch.cuda.empty_cache()
    text = "\n".join(
        [
            "# Linear layer and loss on a GPU: forward and backward",
            "",
            f"Tokens x hidden x vocabulary, bfloat16, mean reduction, gamma = {GAMMA:g} for the focal losses. Time in "
            f"milliseconds, and over that of the three matrix products at {RATE / 1e12:.0f} TFLOP/s. Peak memory "
            "beyond the inputs in GiB, and over the size of the gradients. Error: of the head's gradient against "
            "float64, relative to its norm, each for its own loss. Spread: the standard deviation of the logits.",
            "",
            "| shape | spread | loss | ms | x products | GiB | x gradients | error |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            "## Speed against memory",
            "",
            "Time over that of the products, and peak memory over the size of the gradients, for chunks of an eighth "
            "to four times the default; with sums in the type of the head, and in float32.",
            "",
            "| shape | MiB per chunk | time | memory | time, float32 | memory, float32 |",
            "|---|---|---|---|---|---|",
            *curve,
            "",
            f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Triton {triton.__version__}, "
            f"{_versions()}; `python benchmarks/linear_losses.py`.",
            "",
        ]
    )
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


def _versions() -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("liger-kernel", "cut-cross-entropy"))


if __name__ == "__main__":
    main()
