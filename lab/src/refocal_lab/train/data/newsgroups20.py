"""20 Newsgroups, the edition by date: an archive or a folder of messages, with one subfolder per group."""

from __future__ import annotations

import gzip
import io
import lzma
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from refocal_lab.train.data import splits
from refocal_lab.train.data.data_set import Part
from refocal_lab.train.data.sources import DataError, DataSetSpec, FileLayout, PublishedData, convert_errors, decompress
from refocal_lab.train.data.words import Lexicon, make_documents

_UNPACK: dict[str, Callable[[Path], Any]] = {
    "20news-bydate.tar.gz": gzip.GzipFile,
    "20news-bydate.tar.xz": lzma.LZMAFile,
}
_MOST = 1 << 28  # bytes of all messages, which have about 40 million
_PARTS = ("20news-bydate-train", "20news-bydate-test")
_QUOTE = re.compile(r"(writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>)")
_SHARES = (900 / 19_997, 3_999 / 19_997)  # of validation and test in Mukhoti et al. (2020), Appendix C
_Message = tuple[str, str, str]  # part, group and text
LeftOut = Literal["nothing", "headers", "headers, quotes and signatures"]


@dataclass(frozen=True)
class Newsgroups:
    """The messages of the edition by date.

    Attributes:
        train: Number of messages in the publisher's training folder.
        test: Number of messages in the test folder.
    """

    train: int
    test: int

    def spec(self, *, by_date: bool, left_out: LeftOut = "nothing") -> DataSetSpec:
        """How the data set is found and divided.

        Args:
            by_date: Test on the publisher's later messages; else on messages drawn from all (Mukhoti et al., 2020).
            left_out: What is left out of each message. The code of Mukhoti et al. (2020) leaves out the headers.
        """
        read = partial(self._read, by_date=by_date, left_out=left_out)
        places = ("newsgroups20", "20news-bydate", "")
        archives = (FileLayout(places, (name,), partial(read, archive=name)) for name in _UNPACK)
        trained = self.train if by_date else self.train + self.test - self._drawn_test()
        share = _SHARES[0] / (1 - _SHARES[1])
        return DataSetSpec(
            layouts=(*archives, FileLayout(places, _PARTS, partial(read, archive=None))),
            held_out=round(share * trained),
            key="newsgroups20-bydate" if by_date else "newsgroups20",
        )

    def _drawn_test(self) -> int:
        return round(_SHARES[1] * (self.train + self.test))

    def _read(self, folder: Path, *, archive: str | None, by_date: bool, left_out: LeftOut) -> PublishedData:
        """Read all messages, in the order of their parts, groups and names."""
        messages = list(_read_archive(folder / archive) if archive else _read_folder(folder))
        counts = tuple(sum(part == name for part, _, _ in messages) for name in _PARTS)
        if counts != (self.train, self.test):
            msg = (
                f"{folder / (archive or '')} has {counts[0]} + {counts[1]} messages, "
                f"the published edition {self.train} + {self.test}"
            )
            raise DataError(msg)
        groups = tuple(sorted({group for _, group, _ in messages}))
        numbers = {group: number for number, group in enumerate(groups)}
        lexicon = Lexicon()
        prepare = _PREPARE[left_out]
        texts = make_documents((prepare(text) for _, _, text in messages), lexicon)
        labels = np.array([numbers[group] for _, group, _ in messages], np.int64)
        every = Part(texts, labels, np.arange(len(labels)))
        if by_date:
            test = every.indices[self.train :]
        else:
            test = splits.draw(every.indices, self._drawn_test(), key="newsgroups20/test", seed=0)
        treatment = "messages whole" if left_out == "nothing" else f"{left_out} left out"
        source = f"the publisher's messages by date, counted; {treatment}"
        train = np.setdiff1d(every.indices, test)
        return PublishedData(every.take(train), every.take(test), groups, source, lexicon=lexicon.words())


def _read_archive(path: Path) -> Iterator[_Message]:
    members = {}
    with convert_errors(path):
        with _UNPACK[path.name](path) as packed:
            # read to the end, where the checksum is; tarfile would not get that far
            content = decompress(packed, path, most=_MOST)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                place = PurePosixPath(member.name).parts[-3:]
                stream = archive.extractfile(member) if len(place) == 3 and place[0] in _PARTS else None
                if stream is not None:
                    members[place] = _decode(stream.read())
    for place in sorted(members, key=_order):
        yield place[0], place[1], members[place]


def _read_folder(folder: Path) -> Iterator[_Message]:
    places = [path.parts[-3:] for part in _PARTS for path in (folder / part).glob("*/*") if path.is_file()]
    for place in sorted(places, key=_order):
        yield place[0], place[1], _decode(folder.joinpath(*place).read_bytes())


def _order(place: tuple[str, ...]) -> tuple[int, str, str]:
    return _PARTS.index(place[0]), place[1], place[2]


def _decode(content: bytes) -> str:
    """Decode a message as UTF-8 if possible, else as Latin-1, which knows every byte."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _body(message: str) -> str:
    """Remove the header, which ends at the first blank line."""
    lines_end = "\n" if "\n" in message.strip() else "\t"  # some copies join lines by tabs
    return message.replace("\r", "").replace(lines_end, "\n").partition("\n\n")[2]


def _strip(message: str) -> str:
    """Remove the header, quoted lines, and the signature after the last rule or blank line of a message."""
    lines = [line for line in _body(message).strip().split("\n") if not _QUOTE.search(line)]
    for number in range(len(lines) - 1, 0, -1):
        if not lines[number].strip().strip("-"):
            return "\n".join(lines[:number])
    return "\n".join(lines)


_PREPARE: dict[LeftOut, Callable[[str], str]] = {
    "nothing": str,
    "headers": _body,
    "headers, quotes and signatures": _strip,
}
NEWSGROUPS20 = Newsgroups(train=11_314, test=7_532)
