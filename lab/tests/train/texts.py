"""Made-up messages and trees in the publishers' formats, with records of their numbers."""

from __future__ import annotations

import io
import tarfile

import numpy as np

from refocal_lab.train.data.newsgroups20 import Newsgroups
from refocal_lab.train.data.sst import Treebank

GOOD, BAD, OTHER = ("good", "joy", "Fine"), ("bad", "dull", "Awful"), ("a", "the", "film", "of", ",")


def tree(rng, leaves, sign):
    """A tree in which each node has the sentiment of its words: sign is 1 or -1, or 0 for neutral words."""
    if leaves == 1:
        words = {1: GOOD, -1: BAD, 0: OTHER}[sign]
        return f"({2 + 2 * sign} {rng.choice(words)})"
    first = int(rng.integers(1, leaves))
    signs = (sign, 0) if rng.random() < 0.5 else (0, sign)
    return f"({2 + sign} {tree(rng, first, signs[0])} {tree(rng, leaves - first, signs[1])})"


def trees(*, seed=0, counts=(60, 20, 20)):
    """The contents of the three files, a third of the sentences neutral, and the record of the treebank."""
    rng = np.random.default_rng(seed)
    files = {
        f"{part}.txt": "".join(f"{tree(rng, int(rng.integers(1, 9)), k % 3 - 1)}\n" for k in range(count)).encode()
        for part, count in zip(("train", "dev", "test"), counts, strict=True)
    }
    return files, Treebank(sentences=counts)


def messages(*, seed=0, train=40, test=20):
    """Messages of two groups by path, one without a body and some in Latin-1, and their record."""
    rng = np.random.default_rng(seed)
    files = {}
    for part, count in (("train", train), ("test", test)):
        for k in range(count):
            group, words = (("rec.autos", ("engine", "wheel")), ("sci.space", ("orbit", "moon")))[k % 2]
            body = " ".join(rng.choice([*words, *OTHER], int(rng.integers(4, 60))))
            text = f"From: someone\nSubject: naïve\n\nX wrote:\n> quoted\n{body}\n{' '.join(words)}\n--\nsigned\n"
            encoded = text.encode("latin-1" if k % 3 else "utf-8") if k != 7 else b""
            files[f"20news-bydate-{part}/{group}/{1000 + k}"] = encoded
    return files, Newsgroups(train=train, test=test)


def archive(files, mode):
    """Pack files into a tar archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def write(folder, files):
    """Write files to their paths below a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def vectors(words, *, dimensions=32, seed=0):
    """A file of GloVe's format."""
    rng = np.random.default_rng(seed)
    return "".join(
        f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(scale=0.4, size=dimensions))}\n" for word in words
    ).encode()
