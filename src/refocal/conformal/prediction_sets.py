"""Sets of classes that contain the true class with a given probability."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, final, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from refocal import _check
from refocal._arrays import namespace
from refocal._check import Input
from refocal.calibrators import Calibrator, FocalPosterior, files
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Head, check_bool
from refocal.conformal import fitted_values
from refocal.conformal.thresholds import (
    Ranking,
    Rows,
    choose_penalty,
    choose_penalty_after,
    compute_conformity,
    count_needed,
    find_thresholds,
)
from refocal.maps.sets import choose_classes, set_head
from refocal.stats.sample_counts import WeightSums

if TYPE_CHECKING:
    from torch import nn

Method = Literal["lac", "aps", "raps"]

# Streams of random numbers that `seed` begins: one for each use.
_FIT, _PREDICT, _SPLIT = range(3)


@final
class PredictionSets(ClassifierMixin, BaseEstimator):
    """Predict a set of classes that contains the true class with a probability of at least `coverage`.

    Use it if an answer such as "cat or dog" is better than one class that is too often wrong: a clear case gets one
    class, a doubtful case several. The coverage holds for any classifier, on average over rows that are drawn like
    those given to `fit`. Better probabilities do not change it; they make the sets smaller.

    A class is in the set if it conforms to the row at least as well as a threshold. Of n rows in `fit`, the threshold
    is the conformity of the true class with rank floor((n + 1)(1 - coverage)), from the smallest.

    - "lac": conformity is the probability of the class. These sets are the smallest on average.
    - "aps": conformity is 1 minus the total probability of all more probable classes. So a set has the most probable
      classes up to the one with which their total reaches a limit. Doubtful rows get larger sets, clear rows smaller
      ones, so that coverage varies less between easy and hard rows.
    - "raps": as "aps", minus `penalty` for each rank after `penalty_after`. This keeps the sets of many classes small.

    If there are fewer than coverage / (1 - coverage) rows, every set has all classes, and `fit` warns.

    Args:
        method: "lac", "aps" or "raps".
        coverage: The least probability that a set contains the true class, between 0 and 1.
        by_class: Whether this holds for the rows of each class, not only for all rows. Each class then has its own
            threshold; one with too few rows is in every set, and `fit` warns.
        calibrator: What turns scores into probabilities; None for the scores as given. A fitted calibrator is used as
            it is: it must have been fitted to other rows. An unfitted one is copied and fitted to `tuning_share` of the
            rows, and the others give the threshold.
        randomized: For "aps" and "raps": whether conformity is lowered by u times the probability of the class, with a
            random u in [0, 1] for each row. The coverage is then the same for easy and hard rows if the probabilities
            are right, but the sets depend on chance and cannot be exported.
        penalty: For "raps": lambda, at least 0. None to choose the one of 0.001, 0.01, 0.1, 0.2 and 0.5 with the
            smallest sets, on `tuning_share` of the rows.
        penalty_after: For "raps": k_reg, the number of classes without a penalty. None for the number of most probable
            classes that contain the true class with probability `coverage`, on `tuning_share` of the rows.
        allow_empty: Whether a set may be empty. If not, it gets the most probable class, and coverage only grows.
        tuning_share: The share of the rows, chosen at random, for what is fitted or chosen before the threshold. It is
            not used if nothing is.
        seed: Seed of everything random.
        input: "logits" or "probs" if there is no calibrator; None for logits that do not look like probabilities.
        classes: Labels of the columns if there is no calibrator, see `refocal.calibrators.Calibrator`.

    Attributes:
        calibrator_: The calibrator that is used, fitted.
        thresholds_: The conformity that each class must reach, (K,); -inf for a class that is in every set.
        penalty_: The penalty; 0 if there is none.
        penalty_after_: The number of classes without a penalty.
        classes_: Labels of the columns (K,).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.standard_normal((2000, 4))
        >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        >>> sets = PredictionSets(coverage=0.9).fit(logits[:1000], labels[:1000])
        >>> found = sets.predict_set(logits[1000:])
        >>> found.shape
        (1000, 4)
        >>> float(found[np.arange(1000), labels[1000:]].mean().round(2))
        0.9

    Reference: Vovk, Gammerman and Shafer (2005); "lac": Sadinle, Lei and Wasserman (2019); "aps": Romano, Sesia and
    Candès (2020); "raps": Angelopoulos, Bates, Jordan and Malik (2021).
    """

    calibrator_: Calibrator
    thresholds_: np.ndarray
    penalty_: float
    penalty_after_: int
    classes_: np.ndarray
    n_features_in_: int

    _learned: ClassVar[dict[str, Check]] = {
        "calibrator_": fitted_values.check_calibrator,
        "thresholds_": fitted_values.check_thresholds,
        "penalty_": fitted_values.check_penalty,
        "penalty_after_": fitted_values.check_penalty_after,
    }

    def __init__(
        self,
        *,
        method: Method = "lac",
        coverage: float = 0.9,
        by_class: bool = False,
        calibrator: Calibrator | None = None,
        randomized: bool = False,
        penalty: float | None = None,
        penalty_after: int | None = None,
        allow_empty: bool = False,
        tuning_share: float = 0.3,
        seed: int = 0,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.method = method
        self.coverage = coverage
        self.by_class = by_class
        self.calibrator = calibrator
        self.randomized = randomized
        self.penalty = penalty
        self.penalty_after = penalty_after
        self.allow_empty = allow_empty
        self.tuning_share = tuning_share
        self.seed = seed
        self.input = input
        self.classes = classes

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Find the thresholds.

        Args:
            X: Scores (N, K), or (N,) or (N, 1) for two classes, that the classifier was not trained on.
            y: Labels (N,).
            sample_weight: Weights (N,), as for calibrators: whole numbers count repetitions, and others are relative.
                Weights that correct for another distribution give no guarantee, because the weight of a new row would
                have to be known, too.

        Returns:
            The object itself.
        """
        self._check_settings(None)
        ready = self.calibrator is not None and fitted_values.is_fitted(self.calibrator)
        calibrator: Calibrator = self.calibrator if ready else self._copy_calibrator()  # type: ignore[assignment]
        learns = not ready and not fitted_values.needs_no_fit(calibrator)
        logits, labels, weights = calibrator._prepare(X, y, sample_weight, reset=not ready)
        tuning, rest = self._split(len(logits), learns=learns)
        if not ready:
            chosen = tuning if learns else rest
            calibrator._learn_from(logits[chosen], labels[chosen], None if weights is None else weights[chosen])
            logits = calibrator._raise_to_floor(logits)
        self.calibrator_ = calibrator
        self.classes_, self.n_features_in_ = calibrator.classes_, calibrator.n_features_in_
        if hasattr(calibrator, "feature_names_in_"):
            self.feature_names_in_ = calibrator.feature_names_in_
        counts = np.ones(len(logits)) if weights is None else weights
        everything = Rows(
            calibrator._map_logits(logits, log=False),
            labels,
            counts,
            # Relative weights were scaled to the number of samples. Then they are whole only if all are 0 or 1.
            WeightSums.of(counts).whole,
            self._draw(np.random.default_rng([self.seed, _FIT]), len(logits)),
        )
        self._choose_penalties(everything.select(tuning))
        used = everything.select(rest)
        aim = {"coverage": self.coverage, "by_class": bool(self.by_class)}
        self.thresholds_ = find_thresholds(used, self._ranking(), **aim)  # type: ignore[arg-type]
        self._warn(used)
        return self

    def predict_set(self, X: ArrayLike, *, rng: np.random.Generator | None = None) -> np.ndarray:
        """The set of each row as booleans (N, K), in the order of `classes_`.

        Args:
            X: Scores, as for `fit`.
            rng: Source of the random numbers of randomized sets; None to begin anew with `seed`. If rows come in
                several calls, pass the same Generator to all of them: otherwise their random numbers are equal.
        """
        probs = self.predict_proba(X)
        start = np.random.default_rng([self.seed, _PREDICT]) if rng is None else rng
        conformity = compute_conformity(probs, self._ranking(), self._draw(start, len(probs)))
        allow_empty = bool(self.allow_empty)
        found: np.ndarray = choose_classes(
            probs, conformity, self.thresholds_, allow_empty=allow_empty, xp=namespace(probs)
        )
        return found

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """The probabilities (N, K) that the sets are made from."""
        check_is_fitted(self)
        return self.calibrator_.predict_proba(X)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each row (N,)."""
        check_is_fitted(self)
        return self.calibrator_.predict(X)

    @property
    def input_(self) -> Input:
        """What the scores are: "logits" or "probs"."""
        check_is_fitted(self)
        return self.calibrator_.input_

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the fitted sets as JSON; `refocal.conformal.load` reads them.

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        check_is_fitted(self)
        files.save(self, path, _FILE, overwrite=overwrite)

    def to_torch(self, *, axis: int = -1) -> nn.Module:
        """Export a PyTorch module that maps scores (..., K) to sets of booleans. Needs torch.

        Args:
            axis: The axis of the classes: 1 for images (N, K, H, W).
        """
        from refocal.calibrators.torch_export import to_torch

        return to_torch(self._require_export(), axis=axis)

    def to_onnx(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write an ONNX graph that maps float32 scores (batch, K) to boolean "sets". Needs onnx.

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        from refocal.calibrators.onnx_export import to_onnx

        to_onnx(self._require_export(), path, overwrite=overwrite)

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        method: Method = _check.one_of(self.method, "method", get_args(Method))
        _check.share(self.coverage, "coverage")
        _check.share(self.tuning_share, "tuning_share")
        _check.seed(self.seed, "seed")
        for name in ("by_class", "randomized", "allow_empty"):
            check_bool(getattr(self, name), name)
        if method == "lac" and self.randomized:
            msg = "randomized is for method='aps' and method='raps': the sets of 'lac' have nothing to randomize"
            raise ValueError(msg)
        for name in ("penalty", "penalty_after"):
            value = getattr(self, name)
            if value is not None and method != "raps":
                msg = f"{name} is for method='raps', got {value!r:.100} with method={method!r}"
                raise ValueError(msg)
        if self.penalty is not None:
            _check.finite(self.penalty, "penalty", least=0.0)
        if self.penalty_after is not None:
            _check.count(self.penalty_after, "penalty_after", least=0)
        self._check_given_calibrator()

    def _check_given_calibrator(self) -> None:
        if self.calibrator is None:
            return
        if not fitted_values.is_usable(self.calibrator):
            msg = f"calibrator must be a calibrator for mutually exclusive classes, got {self.calibrator!r:.100}"
            raise ValueError(msg)
        for name in ("input", "classes"):
            if getattr(self, name) is not None:
                msg = f"{name} is for scores without a calibrator: pass {name} to the calibrator"
                raise ValueError(msg)

    def _copy_calibrator(self) -> Calibrator:
        if self.calibrator is None:
            return FocalPosterior(gamma=0.0, input=self.input, classes=self.classes)
        copy: Calibrator = clone(self.calibrator)
        return copy

    def _split(self, rows: int, *, learns: bool) -> tuple[np.ndarray, np.ndarray]:
        """Divide the rows into those that something is fitted to or chosen on, and those that give the threshold."""
        chooses = self.method == "raps" and (self.penalty is None or self.penalty_after is None)
        if not (learns or chooses):
            return np.arange(0), np.arange(rows)
        if rows < 2:
            msg = f"X must have at least 2 rows, to fit or choose something on a part of them, got {rows}"
            raise ValueError(msg)
        size = min(max(1, round(self.tuning_share * rows)), rows - 1)
        order = np.random.default_rng([self.seed, _SPLIT]).permutation(rows)
        return np.sort(order[:size]), np.sort(order[size:])

    def _choose_penalties(self, rows: Rows) -> None:
        self.penalty_, self.penalty_after_ = 0.0, 0
        if self.method != "raps":
            return
        given = self.penalty_after
        found = choose_penalty_after(rows, coverage=self.coverage) if given is None else int(given)
        self.penalty_after_ = min(found, len(self.classes_))
        if self.penalty is not None:
            self.penalty_ = float(self.penalty)
            return
        self.penalty_ = choose_penalty(
            rows,
            self.penalty_after_,
            coverage=self.coverage,
            by_class=bool(self.by_class),
            allow_empty=bool(self.allow_empty),
        )

    def _ranking(self) -> Ranking:
        return Ranking(self.method != "lac", self.penalty_, self.penalty_after_)

    def _draw(self, rng: np.random.Generator, rows: int) -> np.ndarray | None:
        return rng.random((rows, 1)) if self.randomized else None

    def _warn(self, rows: Rows) -> None:
        """Warn if there are too few rows."""
        full = np.isneginf(self.thresholds_)
        if not full.any():
            return
        least = f"a coverage of {self.coverage:g} needs at least {count_needed(self.coverage):,}"
        if self.by_class:
            text = f"{full.sum()} of {len(full)} classes have too few rows, {least} of each: they are in every set"
        else:
            text = f"{rows.scale_weights().sum():.6g} rows are too few, {least}: every set has all classes"
        warnings.warn(text, UserWarning, stacklevel=3)

    def _require_export(self) -> Any:
        check_is_fitted(self)
        if self.randomized:
            msg = "randomized sets cannot be exported, because they need random numbers: fit with randomized=False"
            raise ValueError(msg)
        return self

    def _export_head(self) -> tuple[Head, int]:
        part, columns = self.calibrator_._export_head()
        settings = {
            "part": (part.function, part.settings),
            "allow_empty": bool(self.allow_empty),
            "ranking": self._ranking()._asdict(),
        }
        arrays = {**part.arrays, "thresholds": self.thresholds_}
        return Head(set_head, arrays, settings, wide=True, sets=True, floor=part.floor), columns


def load(path: str | Path) -> PredictionSets:
    """Load prediction sets from a JSON file that their `save` method wrote.

    Args:
        path: The file.

    Raises:
        ValueError: If the file holds no prediction sets, is damaged, or was written by a newer version of refocal.

    Example:
        >>> import tempfile, numpy as np
        >>> from refocal.conformal import PredictionSets, load
        >>> sets = PredictionSets(coverage=0.5).fit(np.array([[4.0, 0.0], [0.0, 4.0], [1.0, 0.0]]), [0, 1, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sets.save(folder + "/sets.json")
        ...     same = load(folder + "/sets.json")
        >>> bool((same.thresholds_ == sets.thresholds_).all())
        True
    """
    found: PredictionSets = files.read(path, _FILE)
    return found


_FILE = files.FileKind("prediction-sets", lambda: {"PredictionSets": PredictionSets})
