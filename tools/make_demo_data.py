"""Make src/refocal/data/digits.npz: predictions of networks trained with focal loss on scikit-learn's digits.

A small network is trained with gamma = 3 on four fifths of the images, with new noise at every step, and predicts the
last fifth, with noise so that it errs now and then; five such networks predict all images. Half of the predictions are
for validation, half for the test.

    python tools/make_demo_data.py src/refocal/data/digits.npz
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from torch import nn

from refocal.losses import FocalLoss
from refocal.predictions import Predictions

GAMMA = 3.0
NOISE = 0.35  # standard deviation, of gray values from 0 to 1
EPOCHS = 100


def train(images: torch.Tensor, labels: torch.Tensor, *, seed: int) -> nn.Module:
    """A network of one hidden layer."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    criterion = FocalLoss(GAMMA)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            noisy = images[rows] + NOISE * torch.randn(len(rows), 64)
            criterion(network(noisy), labels[rows]).backward()
            optimizer.step()
    return network.eval()


def main(path: str) -> None:
    """Train, predict and write the file."""
    torch.set_num_threads(1)
    data = load_digits()
    rng = np.random.default_rng(0)
    images = torch.tensor(data.data / 16, dtype=torch.float32)
    noisy = images + NOISE * torch.tensor(rng.standard_normal(images.shape), dtype=torch.float32)
    labels = torch.tensor(data.target)
    logits = np.zeros((len(labels), 10), np.float32)
    for seed, (seen, held_out) in enumerate(
        StratifiedKFold(5, shuffle=True, random_state=0).split(images, data.target)
    ):
        network = train(images[seen], labels[seen], seed=seed)
        with torch.no_grad():
            logits[held_out] = network(noisy[held_out]).numpy()
    split = np.where(rng.permutation(len(labels)) % 2 == 0, "val", "test")
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    predictions = Predictions(
        logits.astype(np.float16), input="logits", labels=data.target, split=split, class_names=names
    )
    predictions.write(path, overwrite=True)
    error = np.mean(np.argmax(logits, axis=1) != data.target)
    print(f"wrote {path}: {len(labels)} samples, error {100 * error:.2f} %")


if __name__ == "__main__":
    main(sys.argv[1])
