"""Linear maps of log-probabilities: vector scaling, matrix scaling and Dirichlet calibration.

All three correct the log-probabilities of a base by penalized maximum likelihood, see
`refocal.calibrators.fit.structured`. The base is temperature scaling or focal temperature scaling, whichever predicts
held-out rows better, mixed with 1 / (n + 1) of the uniform distribution: from n samples nobody can tell a smaller
probability from 0, and no feature is an outlier. The penalty is chosen by cross-validation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import ThreadpoolController

from refocal import _check
from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.fit.held_out import Fold
from refocal.calibrators.folded import FoldedLogits
from refocal.calibrators.folds import split_rows
from refocal.calibrators.penalty_path import PENALTIES, Form, Path, Trial
from refocal.maps.heads import structured_head
from refocal.maps.posterior import MapSettings


@cache
def _find_blas() -> ThreadpoolController:
    """Find the libraries of matrix products once, because the search takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


class _LinearMap(Calibrator):
    """The fit that all linear maps share."""

    penalty: float | None
    cv: Any
    random_state: int
    weights_: np.ndarray
    bias_: np.ndarray
    gamma_: float
    temperature_: float
    uniform_: float
    penalty_: float
    penalty_scores_: np.ndarray
    effective_parameters_: float

    _form: ClassVar[Form]

    _learned: ClassVar[dict[str, Check]] = {
        "gamma_": attributes.check_gamma,
        "temperature_": attributes.check_positive,
        "uniform_": attributes.check_share,
        "penalty_": attributes.check_positive,
        "penalty_scores_": attributes.curve_check(len(PENALTIES)),
        "effective_parameters_": attributes.check_standard_error,
        "bias_": attributes.coefficients_check(attributes.count_classes),
    }

    def __init__(
        self,
        *,
        penalty: float | None = None,
        cv: Any = 5,
        random_state: int = 0,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.penalty = penalty
        self.cv = cv
        self.random_state = random_state
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        self._learn(FoldedLogits(logits, labels, weights, self._split(logits, labels, weights)))

    def _fit_and_hold_out(self, folded: FoldedLogits) -> Iterator[np.ndarray]:
        """As for every calibrator, but with the same folds for the choice of the penalty, so that none is fitted twice.

        The base and the penalty were chosen on the same held-out rows; the bias is small.
        """
        self._number_classes(folded.logits)
        return self._learn(folded).predict()

    def _learn(self, folded: FoldedLogits) -> Path:
        """Choose the base and the penalty by folds, and fit to all rows."""
        self._check_settings(None)
        # One thread is as fast for matrices of this size, and many times faster if other programs use the cores.
        with _find_blas().limit(limits=1):
            focal = folded.focal_is_better
            problem = self._form.prepare(folded, focal=focal)
            trials = [
                Trial.prepare(self._form, folded, fold, focal=focal, axes=problem.axes)
                for fold in range(len(folded.folds))
            ]
            path = Path.follow(trials, self.penalty)
            correction = path.finish(problem)
            self.effective_parameters_ = problem.count_effective(correction, path.penalty) + 1 + focal
        self.gamma_, self.temperature_, self.uniform_ = folded.base(focal=focal)
        self.penalty_, self.penalty_scores_ = path.penalty, path.scores
        self.weights_, self.bias_ = problem.join(correction)
        return path

    def _split(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> list[Fold]:
        """The folds that choose base and penalty, not more than rows; none if there is a single row."""
        cv = self.cv
        if isinstance(cv, int | np.integer):
            cv = min(_check.count(cv, "cv", least=2), len(logits))
        return split_rows(cv, self.random_state, logits, labels, weights) if len(logits) > 1 else []

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        if self.penalty is not None:
            _check.positive(self.penalty, "penalty")

    def _head(self, classes: int) -> Head:
        settings = MapSettings.check(self.gamma_, None, 0.0, False, classes=classes)
        return Head(
            structured_head,
            {"weights": self.weights_, "bias": self.bias_},
            {
                "temperature": self.temperature_,
                "settings": settings,
                "uniform": self.uniform_,
                "centered": self._form.centered,
            },
        )

    def _count_parameters(self) -> int:
        return self.weights_.size + self.bias_.size

    def _count_effective(self) -> float:
        return self.effective_parameters_


@final
class VectorScaling(_LinearMap):
    """Calibrate each class with its own factor and bias.

    Choose it if you have thousands of held-out samples and the classes are miscalibrated in different ways. Predicted
    classes may change.

    The map is softmax(w * x + b), where x are the log-probabilities of a base: temperature scaling or focal temperature
    scaling, mixed with 1 / (n + 1) of the uniform distribution.

    Args:
        penalty: Strength of the pull toward the base, relative to the number of classes K. The fit adds half of
            penalty * K * (|w - 1|^2 + |c|^2 / 2) to the NLL of all n samples, where c is the change of the scores at
            the mean of x. None to choose it by cross-validation from 64, 16, 4, 1 and 1/4. A value far below these may
            have no optimum within reach if the classes can be separated; `fit` then raises RuntimeError.
        cv: The number of folds for that choice and for the choice of the base, or a scikit-learn splitter. Of millions
            of scores, only the first folds are used.
        random_state: Seed that shuffles rows into folds if `cv` is a number.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: w, (K,).
        bias_: b, (K,).
        gamma_, temperature_, uniform_: The base: Psi^gamma(softmax(logits / T)), and its share of the uniform
            distribution. With gamma 0 it is temperature scaling.
        penalty_: The penalty of the fit.
        penalty_scores_: The cross-validated NLL of each penalty, from the strongest to the second after the best, or to
            the first after it if the second is clearly worse in the first folds; empty if the penalty was given.
        effective_parameters_: How many parameters the data determine; the penalty determines the others.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.standard_normal((5000, 3))
        >>> labels = np.argmax(logits + [0.0, 0.0, 1.0] + rng.gumbel(size=logits.shape), axis=1)
        >>> calibrator = VectorScaling().fit(logits, labels)
        >>> bool(calibrator.bias_[2] - calibrator.bias_[0] > 0.9)
        True

    Reference: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, section 4.2; the penalties: Berta,
    Holzmüller, Jordan and Bach, "Structured matrix scaling for multi-class calibration", 2025.
    """

    _learned: ClassVar[dict[str, Check]] = {
        **_LinearMap._learned,
        "weights_": attributes.coefficients_check(attributes.count_classes),
    }
    _form: ClassVar[Form] = Form(centered=False, matrix=False)


class _MatrixMap(_LinearMap):
    """What linear maps with a full matrix share."""

    _learned: ClassVar[dict[str, Check]] = {
        **_LinearMap._learned,
        "weights_": attributes.coefficients_check(attributes.count_classes, attributes.count_classes),
    }


@final
class MatrixScaling(_MatrixMap):
    """Calibrate with a matrix, which can also correct confusions between pairs of classes.

    Choose it if you have thousands of held-out samples. Predicted classes may change.

    The map is softmax(W x + b), where x are the log-probabilities of the base of `VectorScaling`, minus their mean over
    the classes.

    Args:
        penalty: Strength of the pull toward the base, relative to the number of classes K. The fit adds half of
            penalty * K * (|d|^2 + 4 |A|^2 + |c|^2 / 2) to the NLL of all samples, where W = 1 + diag(d) + A, and c is
            as in `VectorScaling`. None to choose it by cross-validation from 64, 16, 4, 1 and 1/4. With more than 128
            classes, A acts on the 128 directions in which x varies most.
        cv: As in `VectorScaling`.
        random_state: As in `VectorScaling`.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: W, (K, K): row i gives the score of class i.
        bias_: b, (K,).
        gamma_, temperature_, uniform_: The base, see `VectorScaling`.
        penalty_, penalty_scores_, effective_parameters_: As in `VectorScaling`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.standard_normal((5000, 3))
        >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        >>> calibrator = MatrixScaling().fit(3 * logits, labels)  # an overconfident network
        >>> round(calibrator.temperature_)
        3

    Reference: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, section 4.2; the penalty of
    off-diagonal and intercept: Kull et al., "Beyond temperature scaling", NeurIPS 2019; penalties by the number of
    classes: Berta, Holzmüller, Jordan and Bach, "Structured matrix scaling for multi-class calibration", 2025.
    """

    _form: ClassVar[Form] = Form(centered=True, matrix=True)


@final
class DirichletCalibration(_MatrixMap):
    """Calibrate with a matrix that acts on log-probabilities.

    Choose it as `MatrixScaling`, if the scores are probabilities. Predicted classes may change.

    The map is softmax(W x + b), where x are the log-probabilities of the base of `VectorScaling`. Unlike in
    `MatrixScaling`, they are not centered, so W can tell rows with one probable class from rows with several.

    Args:
        penalty: As in `MatrixScaling`.
        cv: As in `VectorScaling`.
        random_state: As in `VectorScaling`.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: W, (K, K): row i gives the score of class i.
        bias_: b, (K,).
        gamma_, temperature_, uniform_: The base, see `VectorScaling`.
        penalty_, penalty_scores_, effective_parameters_: As in `VectorScaling`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> probs = rng.dirichlet(np.ones(3), 5000)
        >>> labels = np.array([rng.choice(3, p=row) for row in probs])
        >>> calibrator = DirichletCalibration(input="probs").fit(probs, labels)
        >>> bool(np.abs(calibrator.predict_proba(probs) - probs).max() < 0.1)  # calibrated probabilities stay
        True

    Reference: Kull et al., "Beyond temperature scaling", NeurIPS 2019.
    """

    _form: ClassVar[Form] = Form(centered=False, matrix=True)
