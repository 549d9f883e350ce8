"""Fitting a calibrator to a data set of many files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.base import clone

from refocal._check import Input
from refocal.calibrators import Calibrator, FocalPosterior, FocalTemperatureScaling, TemperatureScaling
from refocal.calibrators.objectives import reject_weights
from refocal.predictions import ColumnChoice
from refocal.scale.engines import Engine, EngineName, Folder, Progress, open_engine
from refocal.scale.likelihood import MOST_PASSES, NO_ROWS, PartitionedLikelihood, Sums, cell_bins, cell_nlls
from refocal.scale.parts import Block, FileSource, Paths, RowReader, find_files, require_form, unchanged
from refocal.stats.binning import BINS, Bins

C = TypeVar("C", bound=Calibrator)


def calibrate(
    calibrator: C,
    paths: Paths,
    *,
    split: str | None = None,
    columns: ColumnChoice | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    progress: Progress | None = None,
) -> C:
    """Fit a calibrator to a data set of many files, which may be larger than memory.

    `TemperatureScaling` and `FocalTemperatureScaling` are fitted by Newton's method. Each evaluation of value, gradient
    and Hessian takes one pass over the data, and there are at most ten passes. `FocalTemperatureScaling(search="grid")`
    takes one pass for all cells of its grid. `FocalPosterior` has nothing to fit. On a cluster, the rows are read once
    and stay in the object store if it has room for them. A file that changes between two passes is an error.

    Args:
        calibrator: The calibrator to fit; it is not changed. Its `input` must be the kind of scores in the files.
        paths: Names or patterns of files with labels, as for `evaluate`.
        split: Fit only to the rows of this split.
        columns: The columns of labels and scores, as for `evaluate`.
        engine: "local" or "ray", as for `evaluate`.
        address: Address of the cluster, as for `evaluate`.
        progress: Called with a `ProgressUpdate` after each block or task.

    Returns:
        A fitted copy of the calibrator.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from refocal import scale
        >>> from refocal.calibrators import TemperatureScaling
        >>> from refocal.predictions import Predictions
        >>> rng = np.random.default_rng(0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in range(2):
        ...         logits = rng.standard_normal((5000, 3))
        ...         labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        ...         Predictions(3 * logits, input="logits", labels=labels).write(f"{folder}/{part}.npz")
        ...     abs(scale.calibrate(TemperatureScaling(), f"{folder}/*.npz").temperature_ - 3) < 0.2
        True

    Reference: Komisarenko and Kull (2024), Secs. 4.2 and 5.
    """
    _check_supported(calibrator)
    files = find_files(paths)
    rows = RowReader(require_form(files, columns), split=split, finite=True)
    with open_engine(engine, address, progress) as running:
        return fit(running, calibrator, files, rows)


def fit(engine: Engine, calibrator: C, files: Sequence[Path], rows: RowReader) -> C:
    """Fit a copy of a calibrator."""
    _check_supported(calibrator)
    form = rows.form
    result: C = clone(calibrator)
    form.check_input(result)
    result.n_features_in_, result.classes_ = form.columns, np.arange(form.classes)
    if isinstance(result, FocalTemperatureScaling) and result.search == "grid":
        with unchanged(files):
            _fit_grid(engine, result, files, rows)
    elif isinstance(result, TemperatureScaling | FocalTemperatureScaling):
        held = engine.hold(FileSource.of(files, rows.read, steady=True))
        learn_by_passes(engine, held, result, input=form.input, files=len(files))
    return result


def learn_by_passes(
    engine: Folder,
    source: Any,
    calibrator: TemperatureScaling | FocalTemperatureScaling,
    *,
    input: Input,
    files: int,
    most_passes: int = MOST_PASSES,
) -> None:
    """Fit by Newton's method, with one pass over the source for each evaluation; see `PartitionedLikelihood`."""
    likelihood = PartitionedLikelihood(engine, source, input=input, files=files, most_passes=most_passes)
    if likelihood.floor is not None:
        calibrator.floor_ = likelihood.floor
    calibrator.learn(likelihood)


def _fit_grid(engine: Engine, calibrator: FocalTemperatureScaling, files: Sequence[Path], rows: RowReader) -> None:
    cells, input = calibrator.grid_cells(), rows.form.input
    floor = None
    if input == "probs":
        floor = PartitionedLikelihood(engine, FileSource.of(files, rows.read), input=input, files=len(files)).floor
        assert floor is not None
        calibrator.floor_ = floor
    run: Callable[[Block], Sums]
    if calibrator.objective == "nll":
        run, read = partial(cell_nlls, input=input, floor=floor, cells=cells), rows.read
    else:
        run, read = (
            partial(cell_bins, input=input, floor=floor, cells=cells, bins=BINS),
            partial(_read_unweighted, rows),
        )
    found = engine.fold(FileSource.of(files, read), run, Sums.merge, what=f"fitting {len(cells)} cells")
    if found is None:
        raise ValueError(NO_ROWS)
    values = found.means
    if calibrator.objective != "nll":
        values = np.array([Bins(*cell).expected_calibration_error for cell in found.values])
    calibrator.learn_from_grid(cells, values)


def _read_unweighted(rows: RowReader, path: Path) -> Iterator[Block]:
    for block in rows.read(path):
        reject_weights(block.sample_weight, "ece")
        yield block


def _check_supported(calibrator: Calibrator) -> None:
    """Reject calibrators that cannot be fitted from row sums."""
    if isinstance(calibrator, TemperatureScaling):
        supported = calibrator.check_objective() == "nll"
    elif isinstance(calibrator, FocalTemperatureScaling):
        search = calibrator.check_search()
        supported = search == "newton" or (search == "grid" and calibrator.objective in ("nll", "ece"))
    else:
        supported = isinstance(calibrator, FocalPosterior)
    if not supported or calibrator.classes is not None:
        msg = (
            "for many files, calibrator must be TemperatureScaling by NLL, FocalTemperatureScaling by Newton's method "
            f"or by a grid of NLL or ECE, or FocalPosterior, each with classes=None, got {calibrator!r}"
        )
        raise ValueError(msg)
