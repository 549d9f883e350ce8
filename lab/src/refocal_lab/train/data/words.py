"""Texts as numbers: documents and parse trees of unequal length, one after another, and the words they are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

VOCABULARY = 20_000  # the most frequent words that have a vector of their own
UNKNOWN = 0  # what all other words are
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, eq=False)
class Documents:
    """Sequences of words.

    Attributes:
        words: int32 (W,), the words of all documents.
        starts: int64 (N + 1,), where each begins, and the end.
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
    """Binary trees, a label at each node; nodes come after their children, so that the last of a tree is its root.

    Attributes:
        words: int32 (W,), the word of a leaf; -1 for a node with children.
        left: int32 (W,), its left child, counted from the first node of the tree; -1 for a leaf.
        right: int32 (W,), the right one.
        heights: int32 (W,), the longest way down to a leaf.
        labels: int64 (W,), class of each node.
        starts: int64 (N + 1,), where each tree begins, and the end.
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
    """Numbers words as they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        """The number of a word, a new one where it has none."""
        return self._numbers.setdefault(word, len(self._numbers))

    def words(self) -> tuple[str, ...]:
        """All words, by number."""
        return tuple(self._numbers)


def tokenize(text: str) -> Iterator[str]:
    """Letters and digits between anything else, in lower case.

    Example:
        >>> list(tokenize("It's 64 KB, isn't it?"))
        ['it', 's', '64', 'kb', 'isn', 't', 'it']
    """
    return (match[0] for match in _WORD.finditer(text.lower()))


def make_documents(texts: Iterable[str], lexicon: Lexicon) -> Documents:
    """Texts as documents of the lexicon's numbers."""
    each = [np.array([lexicon.number(word) for word in tokenize(text)], np.int32) for text in texts]
    return Documents(np.concatenate([np.empty(0, np.int32), *each]), np.cumsum([0, *map(len, each)]))


def build_vocabulary(
    training: Documents | Forest, lexicon: Sequence[str], *, size: int = VOCABULARY
) -> tuple[str, ...]:
    """The most frequent words of training texts, most frequent first, words of one frequency by alphabet."""
    counts = np.bincount(training.words[training.words >= 0], minlength=len(lexicon))
    present = np.flatnonzero(counts).tolist()
    order = sorted(present, key=lambda number: (-counts[number], lexicon[number]))
    return tuple(lexicon[number] for number in order[:size])


def renumber(texts: Documents | Forest, lexicon: Sequence[str], vocabulary: Sequence[str]) -> Documents | Forest:
    """Texts with the numbers of a vocabulary, counted from 1; words outside it are `UNKNOWN`."""
    numbers = {word: number for number, word in enumerate(vocabulary, start=1)}
    table = np.array([*(numbers.get(word, UNKNOWN) for word in lexicon), -1], np.int32)  # -1 stays -1
    return replace(texts, words=table[texts.words])


def _spans(starts: np.ndarray, rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """The places of chosen texts one after another, and where each begins then."""
    lengths = np.diff(starts)[rows]
    begins = np.concatenate([[0], np.cumsum(lengths)])
    return np.arange(begins[-1]) + np.repeat(starts[:-1][rows] - begins[:-1], lengths), begins
