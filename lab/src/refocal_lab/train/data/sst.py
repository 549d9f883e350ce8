"""The binary Stanford Sentiment Treebank: trees of sentences that are not neutral, with a label at each node."""

from __future__ import annotations

import io
import lzma
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from refocal_lab.train.data.data_set import Part
from refocal_lab.train.data.sources import DataError, DataSetSpec, FileLayout, PublishedData, convert_errors, decompress
from refocal_lab.train.data.trees import read_forest
from refocal_lab.train.data.words import Forest, Lexicon

_ARCHIVE = "trainDevTestTrees_PTB.zip"
_MOST = 1 << 26  # bytes of a part; the largest has about 2 million
_PARTS = ("train", "dev", "test")
_CLASSES = ("negative", "neutral", "positive")
_SCORED = (0, 2)
_OF_FIVE = np.array([0, 0, 1, 2, 2])  # the publisher's 0 to 4: very negative ... very positive


@dataclass(frozen=True)
class Treebank:
    """The files of the treebank.

    Attributes:
        sentences: Number of sentences in the publisher's train.txt, dev.txt and test.txt.
    """

    sentences: tuple[int, int, int]

    def spec(self) -> DataSetSpec:
        """How the data set is found."""
        names = [f"{part}.txt" for part in _PARTS]
        packed = tuple(f"{name}.xz" for name in names)
        places = ("sst", "sst/trees", "trees", "")
        return DataSetSpec(
            layouts=(
                FileLayout(("sst", ""), (_ARCHIVE,), partial(self._read, unpack=_read_archive)),
                FileLayout(places, tuple(names), partial(self._read, unpack=_read_plain)),
                FileLayout(places, packed, partial(self._read, unpack=_read_xz)),
            ),
            held_out=0,
            key="sst",
        )

    def _read(self, folder: Path, *, unpack: Callable[[Path, str], tuple[Path, bytes]]) -> PublishedData:
        lexicon = Lexicon()
        parts = []
        for part, expected in zip(_PARTS, self.sentences, strict=True):
            path, content = unpack(folder, f"{part}.txt")
            try:
                lines = io.StringIO(content.decode("utf-8"))
            except UnicodeDecodeError as error:
                line = content.count(b"\n", 0, error.start) + 1
                msg = f"{path}, line {line}: not UTF-8 ({error.reason})"
                raise DataError(msg) from None
            forest = read_forest(lines, lexicon, name=path)
            if len(forest) != expected:
                msg = f"{path} has {len(forest)} trees, the published file has {expected}"
                raise DataError(msg)
            parts.append(_binary(forest))
        train, val, test = parts
        return PublishedData(
            *(train, test, _CLASSES, "the publisher's trees, counted"), val=val, lexicon=lexicon.words(), scored=_SCORED
        )


def _binary(forest: Forest) -> Part:
    """Keep the sentences whose root is not neutral; the label is the position among the scored classes."""
    classes = _OF_FIVE[forest.labels]
    roots = classes[forest.starts[1:] - 1]
    kept = np.flatnonzero(np.isin(roots, _SCORED))
    return Part(replace(forest, labels=classes)[kept], np.searchsorted(_SCORED, roots[kept]), kept)


def _read_plain(folder: Path, name: str) -> tuple[Path, bytes]:
    return folder / name, (folder / name).read_bytes()


def _read_xz(folder: Path, name: str) -> tuple[Path, bytes]:
    path = folder / f"{name}.xz"
    with convert_errors(path), lzma.open(path) as stream:
        return path, decompress(stream, path, most=_MOST)


def _read_archive(folder: Path, name: str) -> tuple[Path, bytes]:
    path = folder / _ARCHIVE
    place = path / f"trees/{name}"
    damaged = convert_errors(path, otherwise="damaged or not the published one")
    with damaged, zipfile.ZipFile(path) as archive, archive.open(f"trees/{name}") as stream:
        return place, decompress(stream, place, most=_MOST)


SST = Treebank(sentences=(8_544, 1_101, 2_210))
