"""The data sets of the papers, read from their publishers' files, verified, and divided the same way everywhere."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from refocal import _check
from refocal_lab.train.data import digits, human, splits
from refocal_lab.train.data import word_vectors as glove
from refocal_lab.train.data.cifar import CIFAR10, CIFAR100
from refocal_lab.train.data.data_set import DataSet, Part, moments
from refocal_lab.train.data.download import fetch
from refocal_lab.train.data.fashion_mnist import FASHION
from refocal_lab.train.data.newsgroups20 import NEWSGROUPS20
from refocal_lab.train.data.own_data import check_data_set, make_data_set
from refocal_lab.train.data.sources import DataError, DataSetSpec, PublishedData, explain_missing, find_layout
from refocal_lab.train.data.sst import SST
from refocal_lab.train.data.svhn import STREET_VIEW
from refocal_lab.train.data.tiny_imagenet import TINY_IMAGENET
from refocal_lab.train.data.words import build_vocabulary, renumber
from refocal_lab.train.own_parts import OwnPartError, call_own, check_name, is_own

__all__ = ["TEXTS", "DataError", "DataSet", "Part", "cifar10h", "load", "make_data_set", "names"]

_CIFAR10 = CIFAR10.spec(held_out=5_000)
_TEXTS: dict[str, DataSetSpec] = {
    "newsgroups20": NEWSGROUPS20.spec(by_date=False),
    "newsgroups20-headerless": NEWSGROUPS20.spec(by_date=False, left_out="headers"),
    "newsgroups20-stripped": NEWSGROUPS20.spec(by_date=False, left_out="headers, quotes and signatures"),
    "newsgroups20-bydate": NEWSGROUPS20.spec(by_date=True),
    "newsgroups20-bydate-stripped": NEWSGROUPS20.spec(by_date=True, left_out="headers, quotes and signatures"),
    "sst": SST.spec(),
}
TEXTS = tuple(_TEXTS)
_SPECS: dict[str, DataSetSpec] = {
    "cifar10": _CIFAR10,
    "cifar10-s": replace(_CIFAR10, share=0.1),
    "cifar100": CIFAR100.spec(held_out=5_000),
    "svhn": STREET_VIEW.spec(held_out=7_325),
    "fashion-mnist": FASHION.spec(held_out=6_000),
    "tiny-imagenet": TINY_IMAGENET.spec(held_out=10_000),
    "digits": digits.spec(held_out=180),
    **_TEXTS,
}


def names() -> tuple[str, ...]:
    """The names of all data sets.

    Example:
        >>> names()[:7]
        ('cifar10', 'cifar10-s', 'cifar100', 'svhn', 'fashion-mnist', 'tiny-imagenet', 'digits')
        >>> names()[7:10]
        ('newsgroups20', 'newsgroups20-headerless', 'newsgroups20-stripped')
        >>> names()[10:]
        ('newsgroups20-bydate', 'newsgroups20-bydate-stripped', 'sst')
    """
    return tuple(_SPECS)


def load(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    download: bool = False,
    split_seed: int = 0,
    word_vectors: str | None = None,
) -> DataSet:
    """Read a whole data set, verify it, and divide it into training, validation and test parts.

    | name | train / val / test |
    |---|---|
    | cifar10, cifar100 | 45,000 / 5,000 / 10,000, as in three of the papers |
    | cifar10-s | 10% of each class of cifar10's training part; the same val and test; Charoenphakdee et al. (2021) |
    | svhn | 65,932 / 7,325 / 26,032: a tenth held out, as in the code of Mukhoti et al. (2020) |
    | fashion-mnist | 54,000 / 6,000 / 10,000: a tenth held out |
    | tiny-imagenet | 90,000 / 10,000 / 10,000: tested on the published val part; Komisarenko and Kull (2024) |
    | digits | 1,257 / 180 / 360: test and validation parts drawn from all samples |
    | newsgroups20, -headerless, -stripped | 14,229 / 848 / 3,769: in the proportions of Mukhoti et al. (2020) |
    | newsgroups20-bydate, newsgroups20-bydate-stripped | 10,678 / 636 / 7,532: tested on later messages |
    | sst | 6,920 / 872 / 1,821: as published, without neutral sentences |

    The messages of newsgroups20 are complete; "headerless" removes headers, as the code of Mukhoti et al. (2020) does,
    and "stripped" headers, quotes and signatures. Messages are decoded as UTF-8 if possible, else as Latin-1. An empty
    message has no words and keeps its label. Texts have a vocabulary of the 20,000 most frequent words of the training
    part; all other words count as one unknown word. In sst each node of a training tree has a label, and these may be
    neutral.

    The validation part is drawn from the publisher's training samples by a hash of their indices (`splits.draw`), so a
    seed means the same split on every machine and under every version.

    Args:
        name: One of `names()`, or `package.module:function`: a function of your own that returns a `DataSet`. It is
            called with `split_seed` if that is not 0, and else without arguments.
        folder: Folder of the publisher's files, packed or unpacked, or of compact shards. The files are in the folder
            itself or in a subfolder named after the data set. Default: the environment variable REFOCAL_DATA, else
            ~/.cache/refocal.
        download: Fetch the publisher's files into the folder if they are not there.
        split_seed: Seed of the validation part.
        word_vectors: Initial word vectors of texts: "glove" (6B, 100 dimensions, in the folder or in its subfolder
            glove), "learned" for random ones, or the path of a file in GloVe's format. Default: "glove".

    Returns:
        All samples in memory.

    Raises:
        DataError: A file is damaged, incomplete or not the published one.
        FileNotFoundError: The files are missing, and `download` is false.
        ConnectionError: The files could not be fetched.

    Example:
        >>> digits = load("digits")
        >>> len(digits.train), len(digits.val), len(digits.test), digits.shape
        (1257, 180, 360, (64,))
    """
    check_name(name, "name", names())
    split_seed = _check.count(split_seed, "split_seed", least=0, most=_check.LARGEST_SEED)
    if word_vectors is not None and name not in _TEXTS:
        msg = f"word_vectors are for {', '.join(_TEXTS)}, got {word_vectors!r} for {name}"
        raise ValueError(msg)
    if is_own(name):
        return _load_own(name, folder, download=download, split_seed=split_seed)
    return _load(name, _SPECS[name], _root(folder), download=download, split_seed=split_seed, word_vectors=word_vectors)


def _load_own(name: str, folder: str | os.PathLike[str] | None, *, download: bool, split_seed: int) -> DataSet:
    if folder is not None or download:
        msg = f"folder and download are for the lab's data sets, got data {name!r}: let your function find its files"
        raise ValueError(msg)
    found = call_own(name, "data", DataSet, **({"split_seed": split_seed} if split_seed else {}))
    try:
        check_data_set(found)
    except ValueError as error:
        msg = f"data {name!r}: {error}"
        raise OwnPartError(msg) from None
    return found


def cifar10h(folder: str | os.PathLike[str] | None = None) -> np.ndarray:
    """Read the human label distributions of the CIFAR-10 test images, an estimate of the true posterior.

    Args:
        folder: Folder of the publisher's `cifar10h-counts.npy` or of `counts.npz`; the file is in the folder itself or
            in its subfolder `cifar10h`. Default: as in `load`.

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


def _load(
    name: str,
    spec: DataSetSpec,
    root: Path,
    *,
    download: bool,
    split_seed: int,
    word_vectors: str | None = None,
) -> DataSet:
    read = find_layout(spec, root)
    if read is None and download and spec.downloads:
        fetch(spec.downloads, root, spec.key)
        read = find_layout(spec, root)
    if read is None:
        raise explain_missing(spec, root)
    published = read()
    train, val, split = _divide(name, spec, published, split_seed)
    if published.lexicon is not None:
        parts = train, val, published.test
        return _make_texts(name, published, parts, split, glove.find_file(word_vectors or "glove", root))
    assert isinstance(train.inputs, np.ndarray)
    mean, std = moments(train.inputs)
    return DataSet(name, published.classes, train, val, published.test, published.source, split, mean, std)


def _divide(name: str, spec: DataSetSpec, published: PublishedData, split_seed: int) -> tuple[Part, Part, str]:
    """The training and validation parts, and a description of the split."""
    if published.val is not None:
        split = f"{len(published.train):,} / {len(published.val):,} / {len(published.test):,}, as published"
        return published.train, published.val, split
    whole = published.train
    held_out = splits.draw(whole.indices, spec.held_out, key=spec.key, seed=split_seed)
    kept = np.setdiff1d(whole.indices, held_out)
    if spec.share < 1:
        labels = whole.labels[np.searchsorted(whole.indices, kept)]
        kept = splits.draw_share(labels, kept, spec.share, key=name, seed=split_seed)
    train, val = whole.take(kept), whole.take(held_out)
    sizes = f"{len(train):,} / {len(val):,} / {len(published.test):,}"
    return train, val, f"{sizes}, the validation part drawn by SHA-256 with seed {split_seed}"


def _make_texts(
    name: str, published: PublishedData, parts: tuple[Part, Part, Part], split: str, vectors_file: Path | None
) -> DataSet:
    """Number the words of texts by the vocabulary of the training part, and look up their initial vectors."""
    lexicon = published.lexicon or ()
    texts = [part.inputs for part in parts if not isinstance(part.inputs, np.ndarray)]
    vocabulary = build_vocabulary(texts[0], lexicon)
    vectors, description = None, "learned"
    if vectors_file is not None:
        vectors, found = glove.read(vectors_file, vocabulary)
        description = f"{vectors_file.name}: {found:,} of {len(vocabulary):,} words"
    train, val, test = (
        replace(part, inputs=renumber(inputs, lexicon, vocabulary)) for part, inputs in zip(parts, texts, strict=True)
    )
    return DataSet(
        *(name, published.classes, train, val, test, published.source, split),
        vocabulary=vocabulary,
        vectors=vectors,
        word_vectors=description,
        scored=published.scored,
    )
