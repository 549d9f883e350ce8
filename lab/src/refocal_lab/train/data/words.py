"""Texts as numbers: documents and parse trees of unequal length, joined end to end, and the words they consist of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

VOCABULARY = 20_000  # the most frequent words, each with its own vector
UNKNOWN = 0  # the number of all other words
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, eq=False)
class Documents:
    """Sequences of words.

    Attributes:
        words: Words of all documents, int32 (W,).
        starts: Where each document starts, and the end, int64 (N + 1,).
    """

    words: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, rows: np.ndarray) -> Documents:
        places, starts = _spans(self.starts, rows)
        return Documents(self.words[places], starts)


@dataclass(frozen=True, eq=False)
class Forest:
    """Binary trees with a label at each node. Nodes come after their children, so the last node of a tree is its root.

    Attributes:
        words: Word of each leaf, int32 (W,); -1 for a node with children.
        left: Left child of each node, counted from the first node of the tree, int32 (W,); -1 for a leaf.
        right: Right child of each node, in the same form.
        heights: Length of the longest path down to a leaf, int32 (W,).
        labels: Class of each node, int64 (W,).
        starts: Where each tree starts, and the end, int64 (N + 1,).
    """

    words: np.ndarray
    left: np.ndarray
    right: np.ndarray
    heights: np.ndarray
    labels: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, rows: np.ndarray) -> Forest:
        nodes, starts = _spans(self.starts, rows)
        words, left, right, heights, labels = (
            column[nodes] for column in (self.words, self.left, self.right, self.heights, self.labels)
        )
        return Forest(words, left, right, heights, labels, starts)


class Lexicon:
    """Numbers words in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        """The number of a word; a new word gets the next number."""
        return self._numbers.setdefault(word, len(self._numbers))

    def words(self) -> tuple[str, ...]:
        """All words, by number."""
        return tuple(self._numbers)


def tokenize(text: str) -> Iterator[str]:
    """Split a text into words: runs of letters and digits, in lower case.

    Example:
        >>> list(tokenize("It's 64 KB, isn't it?"))
        ['it', 's', '64', 'kb', 'isn', 't', 'it']
    """
    return (match[0] for match in _WORD.finditer(text.lower()))


def make_documents(texts: Iterable[str], lexicon: Lexicon) -> Documents:
    """Turn texts into documents, with words numbered by a lexicon."""
    each = [np.array([lexicon.number(word) for word in tokenize(text)], np.int32) for text in texts]
    return Documents(np.concatenate([np.empty(0, np.int32), *each]), np.cumsum([0, *map(len, each)]))


def build_vocabulary(
    training: Documents | Forest, lexicon: Sequence[str], *, size: int = VOCABULARY
) -> tuple[str, ...]:
    """The most frequent words of training texts, in the order of their frequency and, if equal, of the alphabet."""
    counts = np.bincount(training.words[training.words >= 0], minlength=len(lexicon))
    present = np.flatnonzero(counts).tolist()
    order = sorted(present, key=lambda number: (-counts[number], lexicon[number]))
    return tuple(lexicon[number] for number in order[:size])


def renumber(texts: Documents | Forest, lexicon: Sequence[str], vocabulary: Sequence[str]) -> Documents | Forest:
    """Number the words of texts by a vocabulary, from 1; words outside it become `UNKNOWN`."""
    numbers = {word: number for number, word in enumerate(vocabulary, start=1)}
    table = np.array([*(numbers.get(word, UNKNOWN) for word in lexicon), -1], np.int32)  # -1 stays -1
    return replace(texts, words=table[texts.words])


def _spans(starts: np.ndarray, rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """The places of selected texts one after another, and where each then starts."""
    lengths = np.diff(starts)[rows]
    begins = np.concatenate([[0], np.cumsum(lengths)])
    return np.arange(begins[-1]) + np.repeat(starts[:-1][rows] - begins[:-1], lengths), begins
