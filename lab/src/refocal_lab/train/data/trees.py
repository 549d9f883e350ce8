"""Parse trees in brackets, `(3 (2 an) (4 (2 odd) (4 delight)))`: each node has a label and a word or two nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from refocal_lab.train.data.sources import DataError
from refocal_lab.train.data.words import Forest, Lexicon

_TOKEN = re.compile(r"[()]|[^ \t\r\n()]+")  # a word may contain a non-breaking space
_LABELS = ("0", "1", "2", "3", "4")
_ESCAPES = {"-lrb-": "(", "-rrb-": ")", "-lcb-": "{", "-rcb-": "}", "-lsb-": "[", "-rsb-": "]"}
_Node = tuple[int, int, int, int, int]  # word, left, right, height, label


def read_forest(lines: Iterable[str], lexicon: Lexicon, *, name: object) -> Forest:
    """Read one tree per line, with labels 0 to 4; empty lines are skipped.

    Args:
        lines: The lines of the file.
        lexicon: Numbers the words, in lower case.
        name: Name of the file, for messages.

    Raises:
        DataError: A line is not such a tree; the message names file and line.

    Example:
        >>> forest = read_forest(["(3 (2 an) (4 (2 odd) (4 delight)))"], Lexicon(), name="example")
        >>> forest.labels, forest.heights
        (array([2, 2, 4, 4, 3]), array([0, 0, 0, 1, 2], dtype=int32))
    """
    trees = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                trees.append(_nodes(line, lexicon))
            except ValueError as error:
                msg = f"{name}, line {number}: {error}"
                raise DataError(msg) from None
    table = np.array([node for tree in trees for node in tree], np.int32).reshape(-1, 5)
    words, left, right, heights, labels = np.ascontiguousarray(table.T)
    return Forest(words, left, right, heights, labels.astype(np.int64), np.cumsum([0, *map(len, trees)]))


def _nodes(line: str, lexicon: Lexicon) -> list[_Node]:
    """The nodes of one tree, children first."""
    nodes: list[_Node] = []
    open_: list[tuple[int, list[int], list[str]]] = []  # label, children and words of each open bracket
    pieces = iter(_TOKEN.findall(line))
    for piece in pieces:
        if nodes and not open_:
            msg = f"brackets do not balance: {piece!r} follows the end of the tree"
            raise ValueError(msg)
        if piece == "(":
            label = next(pieces, "the end of the line")
            if label not in _LABELS:
                msg = f"a node must have a label 0, 1, 2, 3 or 4, got {label!r}"
                raise ValueError(msg)
            open_.append((int(label), [], []))
        elif not open_:
            msg = f"a tree must begin with '(', got {piece!r}"
            raise ValueError(msg)
        elif piece == ")":
            nodes.append(_close(*open_.pop(), nodes, lexicon))
            if open_:
                open_[-1][1].append(len(nodes) - 1)
        else:
            open_[-1][2].append(piece)
    if open_:
        msg = f"brackets do not balance: {len(open_)} still open at the end of the line"
        raise ValueError(msg)
    return nodes


def _close(label: int, children: list[int], words: list[str], nodes: list[_Node], lexicon: Lexicon) -> _Node:
    match children, words:
        case [left, right], []:
            return -1, left, right, 1 + max(nodes[left][3], nodes[right][3]), label
        case [], [word]:
            word = word.lower().replace("\\/", "/")
            return lexicon.number(_ESCAPES.get(word, word)), -1, -1, 0, label
    msg = f"a node must hold one word or two nodes, got {len(words)} words and {len(children)} nodes"
    raise ValueError(msg)
