"""What the commands do differently with multi-label predictions, whose classes are yes-or-no questions."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

SIGMOID = "sigmoid-focal"
_ONE_CLASS = "or name the columns of one class, as in --label label_cat --prob prob_cat"


def reject_options(options: Namespace, excess: str | None = None) -> None:
    """Reject, before any work, what multi-label predictions do not support.

    Args:
        options: The options of the command.
        excess: Why the files cannot be held within --memory; None if they can.
    """
    reject_classes(options)
    for name in ("slice", "costs", "sets"):
        if getattr(options, name):
            msg = f"--{name} does not work with multi-label predictions: leave it out, {_ONE_CLASS}"
            raise ValueError(msg)
    if options.engine is not None:
        msg = "--engine does not work with multi-label predictions, which must be in memory: leave it out"
        raise ValueError(msg)
    if excess is not None:
        msg = f"multi-label predictions must be in memory, but {excess}: raise it, or give fewer rows or classes"
        raise ValueError(msg)


def reject_classes(options: Namespace) -> None:
    """Reject --classes, which names the labels of a column that holds one class per row."""
    if options.classes is not None:
        msg = "--classes does not work with multi-label predictions, whose columns name the classes: leave it out"
        raise ValueError(msg)


def read_loss(options: Namespace) -> dict[str, Any]:
    """Read the settings of the training loss, from --loss, --gamma and --alpha."""
    from refocal import _check

    if options.loss is None and options.gamma is None:
        return {}
    if options.loss != SIGMOID:
        given = "--gamma alone" if options.loss is None else f"--loss {options.loss:.50}"
        msg = (
            f"{given} is about a softmax, but each class of multi-label predictions has its own sigmoid: use "
            f"--loss {SIGMOID} with --gamma and --alpha"
        )
        raise ValueError(msg)
    return {"gamma": options.gamma, "alpha": _check.share(options.alpha, "alpha")}


def check_loss(options: Namespace, columns: int) -> None:
    """Reject a loss of one sigmoid for scores of several columns and one class per row."""
    if options.loss == SIGMOID and columns > 1:
        msg = (
            f"--loss {SIGMOID} is for scores of one column, the log-odds or the probability of class 1, or for "
            f"multi-label predictions, got {columns} columns and one class per row"
        )
        raise ValueError(msg)
