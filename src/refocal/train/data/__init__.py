"""Data sets of the papers, read from their publishers' files, verified and divided the same way everywhere."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from refocal import _check
from refocal.train.data import digits, human, splits
from refocal.train.data.cifar import CIFAR10, CIFAR100
from refocal.train.data.doors import DataError, Recipe, find_door, no_door
from refocal.train.data.download import fetch
from refocal.train.data.fashion_mnist import FASHION
from refocal.train.data.record import DataSet, Part, moments
from refocal.train.data.svhn import STREET_VIEW
from refocal.train.data.tiny_imagenet import TINY_IMAGENET

__all__ = ["DataError", "DataSet", "Part", "cifar10h", "load", "names"]

_CIFAR10 = CIFAR10.recipe(held_out=5_000)
_RECIPES: dict[str, Recipe] = {
    "cifar10": _CIFAR10,
    "cifar10-s": replace(_CIFAR10, share=0.1),
    "cifar100": CIFAR100.recipe(held_out=5_000),
    "svhn": STREET_VIEW.recipe(held_out=7_325),
    "fashion-mnist": FASHION.recipe(held_out=6_000),
    "tiny-imagenet": TINY_IMAGENET.recipe(held_out=10_000),
    "digits": digits.recipe(held_out=180),
}


def names() -> tuple[str, ...]:
    """The names of all data sets.

    Example:
        >>> names()
        ('cifar10', 'cifar10-s', 'cifar100', 'svhn', 'fashion-mnist', 'tiny-imagenet', 'digits')
    """
    return tuple(_RECIPES)


def load(
    name: str, *, folder: str | os.PathLike[str] | None = None, download: bool = False, split_seed: int = 0
) -> DataSet:
    """Read a data set whole, verify it, and divide it.

    | name | train / val / test |
    |---|---|
    | cifar10, cifar100 | 45,000 / 5,000 / 10,000 (001 to 003) |
    | cifar10-s | 10% of each class of cifar10's training part, the same val and test (001) |
    | svhn | 65,932 / 7,325 / 26,032: a tenth held out, as in 002's code |
    | fashion-mnist | 54,000 / 6,000 / 10,000: a tenth held out |
    | tiny-imagenet | 90,000 / 10,000 / 10,000: the published validation part is the test part (003) |
    | digits | 1,257 / 180 / 360: test and validation parts drawn from all |

    The validation part is drawn from the publisher's training samples by a hash of their indices (`splits.draw`), so
    that a seed means the same split on every machine and under every version.

    Args:
        name: One of `names()`.
        folder: Holds the publisher's files, packed or unpacked, or compact shards, itself or in a folder named after
            the data set. By default the environment variable REFOCAL_DATA, else ~/.cache/refocal.
        download: Fetch the publisher's files into the folder where nothing else is found.
        split_seed: Another seed draws another validation part.

    Returns:
        All samples in memory.

    Raises:
        DataError: A file is damaged, incomplete or not the published one.
        FileNotFoundError: There are no files, and `download` is false.
        ConnectionError: They could not be fetched.

    Example:
        >>> digits = load("digits")
        >>> len(digits.train), len(digits.val), len(digits.test), digits.shape
        (1257, 180, 360, (64,))
    """
    _check.one_of(name, "name", names())
    split_seed = _check.count(split_seed, "split_seed", least=0)
    return _load(name, _RECIPES[name], _root(folder), download=download, split_seed=split_seed)


def cifar10h(folder: str | os.PathLike[str] | None = None) -> np.ndarray:
    """Human label distributions of the CIFAR-10 test images: a measured posterior.

    Args:
        folder: Holds `cifar10h-counts.npy` of the publisher or `counts.npz`, itself or in a folder `cifar10h`; by
            default as in `load`.

    Returns:
        Probabilities, float64 (10,000, 10), in the order of the test images.

    Raises:
        DataError: The file is damaged or not the published one.
        FileNotFoundError: There is no such file.

    Reference: Peterson, Battleday, Griffiths, Russakovsky: Human Uncertainty Makes Classification More Robust. ICCV
        2019.
    """
    return human.read(_root(folder))


def _root(folder: str | os.PathLike[str] | None) -> Path:
    return Path(folder or os.environ.get("REFOCAL_DATA") or "~/.cache/refocal").expanduser()


def _load(name: str, recipe: Recipe, root: Path, *, download: bool, split_seed: int) -> DataSet:
    read = find_door(recipe, root)
    if read is None and download and recipe.downloads:
        fetch(recipe.downloads, root, recipe.key)
        read = find_door(recipe, root)
    if read is None:
        raise no_door(recipe, root)
    published = read()
    whole = published.train
    held_out = splits.draw(whole.indices, recipe.held_out, key=recipe.key, seed=split_seed)
    kept = np.setdiff1d(whole.indices, held_out)
    if recipe.share < 1:
        labels = whole.labels[np.searchsorted(whole.indices, kept)]
        kept = splits.draw_share(labels, kept, recipe.share, key=name, seed=split_seed)
    train, val, test = whole.take(kept), whole.take(held_out), published.test
    mean, std = moments(train.inputs)
    split = (
        f"{len(train):,} / {len(val):,} / {len(test):,}, the validation part drawn by SHA-256 with seed {split_seed}"
    )
    return DataSet(name, published.classes, train, val, test, published.source, split, mean, std)
