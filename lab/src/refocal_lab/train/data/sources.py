"""Where data sets come from: which files hold one, where these may be, and which function reads them."""

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
    """A file that does not hold the whole data set as it was published. The message names the file and the problem."""


@dataclass(frozen=True, eq=False)
class PublishedData:
    """The samples that a publisher provides, before a validation part is taken out.

    Attributes:
        train: Samples to train on.
        test: Samples to test on.
        classes: Names of the classes.
        source: The files they came from, and how they were verified.
        val: The validation part, if the publisher has one.
        lexicon: For texts, all words by number.
        scored: The classes that samples can have; labels are positions in this tuple. None for all classes.
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
    """One set of files that holds a data set.

    Attributes:
        folders: Subfolders of the user's folder in which the files may be.
        files: Names of the files or folders, all of which must be there.
        read: Function that reads a folder with these files.
    """

    folders: tuple[str, ...]
    files: tuple[str, ...]
    read: Callable[[Path], PublishedData]


@dataclass(frozen=True)
class Download:
    """A file on its publisher's server, with its checksum."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class DataSetSpec:
    """How a data set is found, read and divided.

    Attributes:
        layouts: Files that may hold it, the best ones first.
        held_out: Number of training samples that become the validation part.
        key: Name of the split. Data sets with the same key have the same validation part.
        downloads: Files to fetch if none of the layouts is found.
        pickles: Names of files that hold the data set as pickles, which are never read.
        share: Share of each class that is kept for training.
    """

    layouts: tuple[FileLayout, ...]
    held_out: int
    key: str
    downloads: tuple[Download, ...] = ()
    pickles: tuple[str, ...] = ()
    share: float = 1.0


def make_part(inputs: np.ndarray, labels: np.ndarray) -> Part:
    """The part of all samples of a file, in its order."""
    return Part(np.ascontiguousarray(inputs), labels.astype(np.int64), np.arange(len(labels)))


def find_layout(spec: DataSetSpec, root: Path) -> Callable[[], PublishedData] | None:
    """The function that reads the first layout whose files are all there; None if no layout is complete."""
    for layout in spec.layouts:
        for place in layout.folders:
            if all((root / place / name).exists() for name in layout.files):
                for name in layout.files:
                    _check_regular(root / place / name)
                return partial(layout.read, root / place)
    return None


def _check_regular(path: Path) -> None:
    try:
        check_regular(path)
    except ValueError as error:
        raise DataError(str(error)) from None


def explain_missing(spec: DataSetSpec, root: Path) -> DataError | FileNotFoundError:
    """The error that says which files are missing, and what helps."""
    lacking = []
    for layout in spec.layouts:
        for place in layout.folders:
            missing = [name for name in layout.files if not (root / place / name).exists()]
            if len(missing) < len(layout.files):
                lacking.append(f"{root / place} lacks {', '.join(missing)}")
    if lacking:
        return DataError(f"{spec.key} is not complete: {'; '.join(lacking)}")
    places = list(dict.fromkeys(place for layout in spec.layouts for place in layout.folders))
    wanted = " or ".join(", ".join(layout.files) for layout in spec.layouts)
    message = f"{spec.key} is not in {root} or its subfolder {' or '.join(filter(None, places))}: it needs {wanted}"
    if spec.downloads:
        message += f"; download=True (--download) fetches {', '.join(download.url for download in spec.downloads)}"
    for path in (root / place / name for place in places for name in spec.pickles):
        if path.exists():
            message += (
                f". {path} is made of pickles, which are never read here, because reading them runs code: "
                f"use {spec.downloads[0].file}"
            )
    return FileNotFoundError(message)


@contextmanager
def convert_errors(name: object, *, otherwise: str = "damaged") -> Iterator[None]:
    """Turn any exception about the content of a file into a DataError that names the file.

    Failures of the disk stay OSError.

    Args:
        name: Name of the file.
        otherwise: Description of a file that cannot be read.
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
    """The content of a compressed file; rejects one that is larger than the published file can be."""
    return unpack(stream, most, lambda reason: DataError(f"{name} is not the published one: {reason}"))


def check_md5(content: bytes | memoryview | Path, expected: str, name: object) -> None:
    """Compare the checksum of a file or of its content with the published one."""
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
