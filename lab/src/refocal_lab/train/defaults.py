"""Default settings of a training, by kind of data: the values of the papers.

Nothing is imported here, so that the command line can show them at once.
"""

from __future__ import annotations

from typing import Any

TRIALS = 1
ARRAYS: dict[str, Any] = {  # images and vectors
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "epochs": 200,
    "batch_size": 128,
    "keep": "last",
}
DOCUMENTS: dict[str, Any] = {
    "optimizer": "adam",
    "learning_rate": 0.001,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "epochs": 50,
    "batch_size": 128,
    "keep": "best-validation",
    "milestones": (),
    "word_vectors": "glove",
}
TREES: dict[str, Any] = {
    "optimizer": "adagrad",
    "learning_rate": 0.05,
    "momentum": 0.0,
    "weight_decay": 1e-4,
    "epochs": 25,
    "batch_size": 25,
    "keep": "best-validation",
    "milestones": (),
    "word_vectors": "glove",
}
