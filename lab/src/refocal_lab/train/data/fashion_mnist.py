"""Fashion-MNIST: four idx files, plain or compressed."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from refocal_lab.train.data.data_set import Part
from refocal_lab.train.data.sources import (
    DataError,
    DataSetSpec,
    Download,
    FileLayout,
    PublishedData,
    check_md5,
    decompress,
    make_part,
)

_UNPACK: dict[str, Callable[[Path], Any]] = {".gz": gzip.GzipFile, ".xz": lzma.LZMAFile, "": io.FileIO}
_MOST = 1 << 26  # bytes of a file; the largest has 47 million


@dataclass(frozen=True)
class FashionMNIST:
    """The files of the data set. Checksums are those of the idx files, which others may have compressed again.

    Attributes:
        md5: Checksums of training images, training labels, test images and test labels.
        downloads: The publisher's compressed files, in the same order.
    """

    md5: tuple[str, str, str, str]
    downloads: tuple[Download, ...] = ()

    def spec(self, *, held_out: int) -> DataSetSpec:
        """How the data set is found and divided."""
        places = ("fashion-mnist", "fashion_mnist", "")
        layouts = (
            FileLayout(places, tuple(name + suffix for name in _FILES), partial(self.read, suffix=suffix))
            for suffix in _UNPACK
        )
        return DataSetSpec(layouts=tuple(layouts), held_out=held_out, key="fashion-mnist", downloads=self.downloads)

    def read(self, folder: Path, *, suffix: str) -> PublishedData:
        """Read all four files."""
        contents = []
        for name, md5 in zip(_FILES, self.md5, strict=True):
            path = folder / (name + suffix)
            try:
                with _UNPACK[suffix](path) as stream:
                    content = decompress(stream, path, most=_MOST)
            except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
                msg = f"{path} is damaged: {error}"
                raise DataError(msg) from error
            check_md5(content, md5, path)
            contents.append(_parse_idx(content))
        source = f"{', '.join(_FILES)} of the publisher, md5 verified"
        return PublishedData(_samples(*contents[:2]), _samples(*contents[2:]), _CLASSES, source)


def _samples(images: np.ndarray, labels: np.ndarray) -> Part:
    return make_part(images[..., None], labels)


def _parse_idx(content: bytes) -> np.ndarray:
    """Parse an array: two zeros, the type, the number of axes, their lengths as big-endian integers, the data."""
    axes = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=axes, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION = FashionMNIST(
    md5=(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    downloads=(
        Download(_URL + "train-images-idx3-ubyte.gz", md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Download(_URL + "train-labels-idx1-ubyte.gz", md5="25c81989df183df01b3e8a0aad5dffbe"),
        Download(_URL + "t10k-images-idx3-ubyte.gz", md5="bef4ecab320f06d8554ea6380940ec79"),
        Download(_URL + "t10k-labels-idx1-ubyte.gz", md5="bb300cfdad3c16e7a12a480ee83cd310"),
    ),
)
