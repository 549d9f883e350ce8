"""Histogram binning of many classes: bins for each class, or for the top class alone.

    python benchmarks/histogram_methods.py logits --out benchmarks/results/histogram_methods.md

`logits` is a folder of .npz files with logits_val, labels_val, logits_test and labels_test. The networks are published:
DenseNet-BC-100, Wide ResNet-16-4 and LeNet-5 for CIFAR-100, from the repository EFS-OpenSource/calibration-framework,
whose 10,000 test rows are halved.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.metrics import log_loss

from refocal.calibrators import FocalPosterior, HistogramBinning

NETWORKS = {
    "DenseNet-BC-100": "netcal_densenet_bc_100_c100",
    "Wide ResNet-16-4": "netcal_wideresnet_16_4_c100",
    "LeNet-5": "netcal_lenet_5_c100",
}


def compare(path: Path) -> str:
    """The columns of one network: two accuracies, then three log losses."""
    with np.load(path) as data:
        logits, labels, new_logits, new_labels = (
            data[f"{kind}_{split}"] for split in ("val", "test") for kind in ("logits", "labels")
        )
    given = FocalPosterior(gamma=0.0, input="logits")
    fits = [HistogramBinning(method=method).fit(logits, labels) for method in ("one_vs_rest", "top_label")]
    accuracies = [f"{np.mean(fit.predict(new_logits) == new_labels):.1%}" for fit in fits]
    classes = np.arange(logits.shape[1])
    losses = [log_loss(new_labels, each.predict_proba(new_logits), labels=classes) for each in (given, *fits)]
    return " | ".join([*accuracies, *(f"{loss:.3f}" for loss in losses)])


def main() -> None:
    """Fit and measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logits", type=Path, help="the folder of the networks' logits")
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    options = parser.parse_args()
    lines = [
        "# Histogram binning of 100 classes",
        "",
        "Fitted to 5,000 rows and measured on 5,000 others. Networks: EFS-OpenSource/calibration-framework.",
        "",
        '| network | accuracy, `"one_vs_rest"` | accuracy, `"top_label"` | log loss, uncalibrated | `"one_vs_rest"` '
        '| `"top_label"` |',
        "|---|---|---|---|---|---|",
        *(f"| {name} | {compare(options.logits / f'{file}.npz')} |" for name, file in NETWORKS.items()),
        "",
        "`python benchmarks/histogram_methods.py logits`",
    ]
    table = "\n".join(lines) + "\n"
    print(table)
    if options.out is not None:
        options.out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
