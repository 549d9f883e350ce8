"""The ways into a data set: which files hold it, where they may lie, and what reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from refocal._documents import Readable, check_regular, unpack
from refocal._files import is_disk_error
from refocal_lab.train.data.data_set import Part


class DataError(ValueError):
    """Files that do not hold the whole data set as it was published: the message names the file and what was found."""


@dataclass(frozen=True, eq=False)
class PublishedData:
    """What a publisher provides: samples to train on, before a validation part is taken out, and to test on.

    Attributes:
        train: What to train on.
        test: What to test on.
        classes: Names of the classes.
        source: Which files it came from, and how they were verified.
        val: The validation part, where the publisher has one.
        lexicon: Of texts, all words by number.
        scored: Of the classes, those that labels of samples are places in; None for all.
    """

    train: Part
    test: Part
    classes: tuple[str, ...]
    source: str
    val: Part | None = None
    lexicon: tuple[str, ...] | None = None
    scored: tuple[int, ...] | None = None


@dataclass(frozen=True)
class FileLayout:
    """One way into a data set.

    Attributes:
        folders: Below the user's folder, where the files may lie.
        files: Names, of files or folders, that must all be there.
        read: Reads a folder that has them.
    """

    folders: tuple[str, ...]
    files: tuple[str, ...]
    read: Callable[[Path], PublishedData]


@dataclass(frozen=True)
class Download:
    """A file at its publisher's."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        """Its name."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class DataSetSpec:
    """How a data set is found, read and divided.

    Attributes:
        layouts: File layouts that hold it, the best first.
        held_out: Number of training samples that become the validation part.
        downloads: Files to fetch where no door opens.
        pickles: Names of files that hold the data set as pickles.
        share: What part of each class is kept for training.
        key: Names the split; two data sets with one key have one validation part.
    """

    layouts: tuple[FileLayout, ...]
    held_out: int
    key: str
    downloads: tuple[Download, ...] = ()
    pickles: tuple[str, ...] = ()
    share: float = 1.0


def make_part(inputs: np.ndarray, labels: np.ndarray) -> Part:
    """All samples of a file, in its order."""
    return Part(np.ascontiguousarray(inputs), labels.astype(np.int64), np.arange(len(labels)))


def find_layout(spec: DataSetSpec, root: Path) -> Callable[[], PublishedData] | None:
    """What reads the first door whose files are all there."""
    for door in spec.layouts:
        for place in door.folders:
            if all((root / place / name).exists() for name in door.files):
                for name in door.files:
                    _check_regular(root / place / name)
                return partial(door.read, root / place)
    return None


def _check_regular(path: Path) -> None:
    try:
        check_regular(path)
    except ValueError as error:
        raise DataError(str(error)) from None


def explain_missing(spec: DataSetSpec, root: Path) -> DataError | FileNotFoundError:
    """Which files are missing, and what helps."""
    lacking = []
    for door in spec.layouts:
        for place in door.folders:
            missing = [name for name in door.files if not (root / place / name).exists()]
            if len(missing) < len(door.files):
                lacking.append(f"{root / place} lacks {', '.join(missing)}")
    if lacking:
        return DataError(f"{spec.key} is not complete: {'; '.join(lacking)}")
    places = list(dict.fromkeys(place for door in spec.layouts for place in door.folders))
    wanted = " or ".join(", ".join(door.files) for door in spec.layouts)
    message = f"{spec.key} is not in {root}, nor in a folder {' or '.join(filter(None, places))} of it: needs {wanted}"
    if spec.downloads:
        message += f"; download=True (--download) fetches {', '.join(download.url for download in spec.downloads)}"
    for path in (root / place / name for place in places for name in spec.pickles):
        if path.exists():
            message += (
                f". {path} is made of pickles, which run code when they are read, and so never are: "
                f"take {spec.downloads[0].file}"
            )
    return FileNotFoundError(message)


@contextmanager
def convert_errors(name: object, *, otherwise: str = "damaged") -> Iterator[None]:
    """Turn whatever a parser raises over the content of a file into a DataError that names it.

    Failures of the disk stay OSError.

    Args:
        name: Of the file.
        otherwise: What a file is that cannot be read.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if is_disk_error(error):
            raise
        msg = f"{name} is {otherwise}: {' '.join(str(error).split()) or type(error).__name__}"
        raise DataError(msg) from error


def decompress(stream: Readable, name: object, *, most: int) -> bytes:
    """What a compressed file holds, refused beyond a size that the published one does not have."""
    return unpack(stream, most, lambda reason: DataError(f"{name} is not the published one: {reason}"))


def check_md5(content: bytes | memoryview | Path, expected: str, name: object) -> None:
    """Compare a file, or content, with a checksum."""
    if isinstance(content, Path):
        with open(content, "rb") as file:
            found = hashlib.file_digest(file, _md5).hexdigest()
    else:
        found = _md5(content).hexdigest()
    if found != expected:
        msg = f"{name} is damaged or not the published one: expected md5 {expected}, found {found}"
        raise DataError(msg)


def _md5(content: bytes | memoryview = b"") -> hashlib._Hash:
    return hashlib.md5(content, usedforsecurity=False)
