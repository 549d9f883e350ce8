"""Tiny ImageNet: the publisher's zip file or its unpacked folder. The published validation images are the test part."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from refocal_lab.train.data.data_set import Part
from refocal_lab.train.data.sources import (
    DataError,
    DataSetSpec,
    Download,
    FileLayout,
    PublishedData,
    check_md5,
    convert_errors,
    make_part,
)

_FOLDER = "tiny-imagenet-200"
_SIDE = 64


@dataclass(frozen=True)
class TinyImageNet:
    """The file of the data set.

    Attributes:
        archive: The publisher's zip file.
        classes: Number of classes.
        train: Number of training images per class.
        test: Number of test images.
    """

    archive: Download
    classes: int = 200
    train: int = 500
    test: int = 10_000

    def spec(self, *, held_out: int) -> DataSetSpec:
        """How the data set is found and divided."""
        places = ("tiny-imagenet", "")
        inside = (f"tiny-imagenet/{_FOLDER}", _FOLDER, *places)
        return DataSetSpec(
            layouts=(
                FileLayout(places, (self.archive.file,), self.read_archive),
                FileLayout(inside, ("wnids.txt", "val/val_annotations.txt"), self.read_folder),
            ),
            held_out=held_out,
            key="tiny-imagenet",
            downloads=(self.archive,),
        )

    def read_archive(self, folder: Path) -> PublishedData:
        """The publisher's file, unpacked in memory."""
        path = folder / self.archive.file
        check_md5(path, self.archive.md5, path)
        with zipfile.ZipFile(path) as archive:
            return self._read(lambda name: archive.read(f"{_FOLDER}/{name}"), path, "md5 verified")

    def read_folder(self, folder: Path) -> PublishedData:
        """The unpacked file, of which no checksums are published."""
        return self._read(lambda name: (folder / name).read_bytes(), folder, "unpacked, number of images verified")

    def _read(self, read: Callable[[str], bytes], place: Path, verified: str) -> PublishedData:
        """Read all images: classes in the order of their WordNet names, training images class by class by number."""
        with convert_errors(f"{place}, wnids.txt or val/val_annotations.txt,"):
            classes = tuple(sorted(read("wnids.txt").decode().split()))
            lines = read("val/val_annotations.txt").decode().splitlines()
            annotations = [(name, label) for name, label, *_ in (line.split("\t") for line in lines)]
        if len(classes) != self.classes or len(annotations) != self.test:
            msg = (
                f"{place} is not complete: expected {self.classes} classes and {self.test} validation images, "
                f"found {len(classes)} and {len(annotations)}"
            )
            raise DataError(msg)
        training = [f"train/{name}/images/{name}_{k}.JPEG" for name in classes for k in range(self.train)]
        testing = [f"val/images/{name}" for name, _ in annotations]
        try:
            labels = [classes.index(name) for _, name in annotations]
        except ValueError as error:
            msg = f"{place}, val/val_annotations.txt names a class that wnids.txt does not have: {error}"
            raise DataError(msg) from error
        return PublishedData(
            _images(read, place, training, np.repeat(np.arange(len(classes)), self.train)),
            _images(read, place, testing, np.array(labels)),
            classes,
            f"{self.archive.file} of the publisher, {verified}",
        )


def _images(read: Callable[[str], bytes], place: Path, names: list[str], labels: np.ndarray) -> Part:
    images = np.empty((len(names), _SIDE, _SIDE, 3), dtype=np.uint8)

    def decode(number: int) -> None:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(read(names[number])), formats=["JPEG"]) as picture:
                images[number] = np.asarray(picture.convert("RGB"))
        except Exception as error:  # a missing file, or one of many types that Pillow raises for damaged images
            msg = f"{place}, {names[number]} cannot be read: {error}"
            raise DataError(msg) from error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(decode, range(len(names))):
            pass
    return make_part(images, labels)


TINY_IMAGENET = TinyImageNet(
    Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", md5="90528d7ca1a48142e341f4ef8d21d0de")
)
