"""CIFAR-10 and CIFAR-100: the publisher's binary version, or compact shards."""

from __future__ import annotations

import tarfile
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

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Cifar:
    """The files of one of the two data sets.

    A record is one byte per label (CIFAR-100: coarse, then fine) and 3,072 bytes of pixels, channel by channel.

    Attributes:
        name: Name of the data set.
        archive: The publisher's archive, with the checksum from the publisher's page.
        folder: Name of the folder in the archive.
        train: Training files with their checksums.
        test: Test files with their checksums.
        classes: Names of the classes.
        pickles: File names of the publisher's Python version.
        labels: The labels of a record, as suffixes of "train" and "test" in `labels.npz`; the last one is used.
    """

    name: str
    archive: Download
    folder: str
    train: dict[str, str]
    test: dict[str, str]
    classes: tuple[str, ...]
    pickles: tuple[str, ...]
    labels: tuple[str, ...] = ("",)

    def spec(self, *, held_out: int) -> DataSetSpec:
        """How the data set is found and divided."""
        places = (self.name, "")
        inside = tuple(f"{place}/{self.folder}".strip("/") for place in places)
        return DataSetSpec(
            layouts=(
                FileLayout(places, (self.archive.file,), self.read_archive),
                FileLayout(inside + places, (*self.train, *self.test), self.read_folder),
                FileLayout(places, shards.FILES, self.read_shards),
            ),
            held_out=held_out,
            key=self.name,
            downloads=(self.archive,),
            pickles=self.pickles,
        )

    def read_archive(self, folder: Path) -> PublishedData:
        """Read the publisher's archive, unpacked in memory."""
        path = folder / self.archive.file
        check_md5(path, self.archive.md5, path)
        content = {}
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                stream = archive.extractfile(member) if name in self.train or name in self.test else None
                if stream is not None:
                    content[name] = stream.read()
        return self._assemble(content, f"{self.archive.file} of the publisher, md5 verified")

    def read_folder(self, folder: Path) -> PublishedData:
        """Read the publisher's unpacked files."""
        content = {}
        for name, md5 in (self.train | self.test).items():
            content[name] = (folder / name).read_bytes()
            check_md5(content[name], md5, folder / name)
        return self._assemble(content, f"{', '.join(content)} of the publisher, md5 verified")

    def read_shards(self, folder: Path) -> PublishedData:
        """Read compact shards, which must yield the publisher's files byte by byte."""
        stored = shards.read_labels(folder)
        train, test = (
            self._shard(folder, part, stored, files) for part, files in (("train", self.train), ("test", self.test))
        )
        return PublishedData(train, test, self.classes, "compact shards, md5 of the publisher's files verified")

    def _shard(self, folder: Path, part: str, stored: dict[str, np.ndarray], files: dict[str, str]) -> Part:
        keys = [part + suffix for suffix in self.labels]
        missing = [key for key in keys if key not in stored]
        if missing:
            msg = f"{folder / 'labels.npz'} lacks {', '.join(missing)}"
            raise DataError(msg)
        labels = np.stack([stored[key].astype(np.uint8) for key in keys], axis=1)
        images = shards.read_images(folder, part, count=len(labels))
        pieces = np.array_split(images, len(files)), np.array_split(labels, len(files))
        for (name, md5), piece, columns in zip(files.items(), *pieces, strict=True):
            pixels = piece.transpose(0, 3, 1, 2).reshape(len(piece), -1)
            check_md5(np.concatenate([columns, pixels], axis=1).data, md5, f"{name}, as {folder} gives it,")
        return make_part(images, labels[:, -1])

    def _assemble(self, content: dict[str, bytes], source: str) -> PublishedData:
        return PublishedData(
            self._samples(content, self.train), self._samples(content, self.test), self.classes, source
        )

    def _samples(self, content: dict[str, bytes], files: dict[str, str]) -> Part:
        length = len(self.labels) + _PIXELS
        records = np.frombuffer(b"".join(content[name] for name in files), dtype=np.uint8).reshape(-1, length)
        pixels = records[:, -_PIXELS:].reshape(-1, 3, 32, 32)
        return make_part(pixels.transpose(0, 2, 3, 1), records[:, len(self.labels) - 1])


CIFAR10 = Cifar(
    name="cifar10",
    archive=Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", md5="c32a1d4ab5d03f1284b67883e8d87530"),
    folder="cifar-10-batches-bin",
    train={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    },
    test={"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"},
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    pickles=("cifar-10-python.tar.gz", "cifar-10-batches-py"),
)
_CLASSES_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
""".split()  # noqa: SIM905
CIFAR100 = Cifar(
    name="cifar100",
    archive=Download(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", md5="03b5dce01913d631647c71ecec9e9cb8"
    ),
    folder="cifar-100-binary",
    train={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"},
    test={"test.bin": "4499cfba6c016c1be1438163640a0898"},
    classes=tuple(_CLASSES_100),
    pickles=("cifar-100-python.tar.gz", "cifar-100-python"),
    labels=("_coarse", ""),
)
