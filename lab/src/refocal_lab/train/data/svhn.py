"""SVHN, cropped digits: the publisher's MATLAB files, or compact shards derived from the full-number images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from refocal_lab.train.data import shards
from refocal_lab.train.data.data_set import Part
from refocal_lab.train.data.sources import (
    DataError,
    DataSetSpec,
    Download,
    FileLayout,
    PublishedData,
    check_md5,
    make_part,
)


@dataclass(frozen=True)
class SVHN:
    """The files of the data set.

    Attributes:
        train: A MATLAB 5 file of X (32, 32, 3, N) and y (N, 1), with 10 for the digit 0.
        test: The same for the test part.
        shards: Checksums of the derived training and test parts: the bytes of the images, then those of the labels.
    """

    train: Download
    test: Download
    shards: tuple[str, str]

    def spec(self, *, held_out: int) -> DataSetSpec:
        """How the data set is found and divided."""
        return DataSetSpec(
            layouts=(
                FileLayout(("svhn", ""), (self.train.file, self.test.file), self.read_matlab),
                FileLayout(("svhn", ""), shards.FILES, self.read_shards),
            ),
            held_out=held_out,
            key="svhn",
            downloads=(self.train, self.test),
        )

    def read_matlab(self, folder: Path) -> PublishedData:
        """Read the publisher's files."""
        source = f"{self.train.file}, {self.test.file} of the publisher, md5 verified"
        return PublishedData(_read_mat(folder, self.train), _read_mat(folder, self.test), _DIGITS, source)

    def read_shards(self, folder: Path) -> PublishedData:
        """Read compact shards."""
        stored = shards.read_labels(folder)
        train, test = (
            _read_shard(folder, part, stored, md5) for part, md5 in zip(("train", "test"), self.shards, strict=True)
        )
        source = "compact shards, re-derived from the full-number images: some pixels differ by one gray level"
        return PublishedData(train, test, _DIGITS, source)


def _read_shard(folder: Path, part: str, stored: dict[str, np.ndarray], md5: str) -> Part:
    if part not in stored:
        msg = f"{folder / 'labels.npz'} lacks {part}"
        raise DataError(msg)
    labels = stored[part].astype(np.uint8)
    images = shards.read_images(folder, part, count=len(labels))
    content = np.concatenate([images.reshape(-1), labels])
    check_md5(content.data, md5, f"{part}, as {folder} gives it,")
    return make_part(images, labels)


def _read_mat(folder: Path, download: Download) -> Part:
    from scipy.io import loadmat

    path = folder / download.file
    check_md5(path, download.md5, path)
    content = loadmat(path, variable_names=("X", "y"))
    return make_part(content["X"].transpose(3, 0, 1, 2), content["y"].ravel() % 10)


_DIGITS = tuple("0123456789")
_URL = "http://ufldl.stanford.edu/housenumbers/"
STREET_VIEW = SVHN(
    train=Download(_URL + "train_32x32.mat", md5="e26dedcc434d2e4c54c9b2d4a06d8373"),
    test=Download(_URL + "test_32x32.mat", md5="eb5a983be6a315427106f1b164d9cef3"),
    shards=("5a76e40870392134a6997c20724939db", "67c33eef46e261f8b459f14e6bfc9a8e"),
)
