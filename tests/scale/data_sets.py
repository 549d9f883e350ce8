"""Data sets of several files of different sizes, one of which has no rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from refocal.predictions import Predictions

SIZES = (1000, 1, 0, 2511, 300)
CLASSES = 5


def predictions(rows, seed, *, dtype=np.float32, weighted=False, input="logits"):
    """Draw overconfident scores, and labels from softmax(logits / 2)."""
    rng = np.random.default_rng(seed)
    logits = (4 * rng.standard_normal((rows, CLASSES))).astype(dtype)
    labels = np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1)
    scores = logits
    if input == "probs":
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    weights = rng.choice([0.0, 1.0, 2.5], rows) if weighted else None
    return Predictions(scores, input=input, labels=labels, sample_weight=weights)


def write(folder, **form):
    """Write the files of a data set and return all rows. The third file has a header and no rows."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = predictions(sum(SIZES), 0, **form)
    start = 0
    for number, rows in enumerate(SIZES):
        path = folder / f"part-{number}.parquet"
        some = slice(start, start + max(rows, 1))
        weights = None if whole.sample_weight is None else whole.sample_weight[some]
        Predictions(whole.scores[some], input=whole.input, labels=whole.labels[some], sample_weight=weights).write(path)
        if not rows:
            pq.write_table(pq.read_table(path).slice(0, 0), path)
        start += rows
    return whole


def summarize(report, method=None):
    """The numbers of a report's method, by default of the scores as given, as a `CalibrationSummary` names them."""
    measures = (method or report.given).measures
    return {"samples": report.total_weight, **{name: estimate.value for name, estimate in measures.items()}}


def spoil(path, row):
    """Write a file with an invalid score in one row, and return the error message that reading it gives."""
    good = predictions(200, 7)
    Predictions(good.scores, input="logits", labels=good.labels).write(path, overwrite=True)
    table = pq.read_table(path)
    scores = good.scores.tolist()
    scores[row][1] = np.nan
    column = table.schema.get_field_index("logits")
    field = table.schema.field(column)
    pq.write_table(table.set_column(column, field, pa.array(scores, field.type)), path)
    return rf"{path.name}, logits, class 1, row {row}: must be finite or -inf \(masked\), got nan"
