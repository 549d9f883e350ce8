"""GloVe's word vectors: the publisher's text files (one word and its numbers per line), or a .npz file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from refocal._documents import check_regular
from refocal_lab.train.data.sources import DataError, convert_errors

_MOST = 1 << 33  # bytes of words and vectors; GloVe's largest file has fewer
_FILES = ("glove.6B.100d.txt", "glove.6B.100d-subset.npz")


def find_file(given: str, root: Path) -> Path | None:
    """The file for a setting: None for "learned", GloVe's 6B with 100 dimensions for "glove", else the path itself."""
    if given == "learned":
        return None
    if given != "glove":
        return Path(given)
    places = [root / place / name for place in ("glove", "") for name in _FILES]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        msg = (
            f"word_vectors 'glove' needs {' or '.join(_FILES)} in {root} or in its subfolder glove; "
            "'learned' needs no file, and the path of any file in GloVe's format is accepted"
        )
        raise FileNotFoundError(msg)
    return path


def read(path: Path, vocabulary: Sequence[str]) -> tuple[np.ndarray, int]:
    """Read the vectors of a vocabulary. Words without a vector, and the unknown word, get zeros.

    Args:
        path: A text file, or a .npz file with the arrays `words` and `vectors`.
        vocabulary: The V words.

    Returns:
        Vectors, float32 (1 + V, D), the first one for unknown words, and the number of words found.

    Raises:
        DataError: The file does not have this format, or it has none of the words. The message names the line.
    """
    with convert_errors(path, otherwise="not a file of word vectors"):
        check_regular(path)
    rows = {word: row for row, word in enumerate(vocabulary, start=1)}
    places, vectors = (_read_arrays if path.suffix == ".npz" else _read_text)(path, rows)
    if not places:
        msg = f"{path} has a vector for none of the {len(vocabulary):,} words of the training part"
        raise DataError(msg)
    if not np.isfinite(vectors).all():
        msg = f"{path} has numbers that are not finite"
        raise DataError(msg)
    every = np.zeros((1 + len(vocabulary), vectors.shape[1]), np.float32)
    every[places] = vectors
    return every, len(places)


def _read_arrays(path: Path, rows: dict[str, int]) -> tuple[list[int], np.ndarray]:
    damaged = convert_errors(path, otherwise="damaged or without the arrays words and vectors")
    with damaged, open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        size = sum(member.file_size for member in arrays.zip.infolist())
        if size > _MOST:
            msg = f"{path} unpacks to {size:,} bytes, more than {_MOST:,}"
            raise DataError(msg)
        words, vectors = arrays["words"], arrays["vectors"]
    if vectors.ndim != 2 or words.shape != vectors.shape[:1]:
        msg = f"{path} must have a row of vectors for each word, got shapes {words.shape} and {vectors.shape}"
        raise DataError(msg)
    held = [place for place, word in enumerate(words.tolist()) if word in rows]
    return [rows[words[place]] for place in held], vectors[held].astype(np.float32)


def _read_text(path: Path, rows: dict[str, int]) -> tuple[list[int], np.ndarray]:
    found: dict[int, np.ndarray] = {}
    dimensions = 0
    with convert_errors(path), open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            word, *values = line.rstrip("\n").split(" ")
            dimensions = dimensions or len(values)
            try:
                if len(values) != dimensions or not values:
                    msg = f"expected a word and {dimensions or 'its'} numbers, got {len(values)}"
                    raise ValueError(msg)
                if word in rows:
                    found[rows[word]] = np.array(values, np.float32)
            except ValueError as error:
                msg = f"{path}, line {number}: {error}"
                raise DataError(msg) from None
    if not dimensions:
        msg = f"{path} is empty"
        raise DataError(msg)
    return list(found), np.array(list(found.values()), np.float32).reshape(-1, dimensions)
