"""Linear maps of the logits: vector scaling, matrix scaling and Dirichlet calibration.

All three are a penalized multinomial logistic regression. The penalty is smallest at the maximum-likelihood temperature
and, like a prior, fades as samples are added. So many classes and few samples give temperature scaling, and many
samples give the maximum-likelihood map. If the maximum-likelihood temperature is 0 or infinite, 1 is used instead.
"""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from refocal import _check
from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.fit.logistic import fit_affine
from refocal.calibrators.fit.maximum_likelihood import fit_temperature
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.maps.heads import linear_features, linear_head


class _LinearMap(Calibrator):
    """The fit that all linear maps share."""

    scale_penalty: float
    bias_penalty: float
    weights_: np.ndarray
    bias_: np.ndarray

    _of_log_probs: ClassVar[bool]  # whether the map is of log-probabilities instead of centered logits
    _penalty_names: ClassVar[tuple[str, ...]]

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        penalties = self._check_penalties()
        data = LabeledLogits.prepare(logits, labels, weights)
        temperature = fit_temperature(data)
        off_diagonal = penalties.get("off_diagonal_penalty")
        # One thread is as fast for matrices of this size, and many times faster if other programs use the cores.
        with threadpool_limits(1, "blas"):
            self.weights_, self.bias_ = fit_affine(
                linear_features(logits.astype(np.float64, copy=False), of_log_probs=self._of_log_probs, xp=np),
                labels,
                data.share,
                1.0 if temperature.at_bound else temperature.beta,
                diagonal=penalties["scale_penalty"] / data.samples,
                off_diagonal=None if off_diagonal is None else off_diagonal / data.samples,
                bias=penalties["bias_penalty"] / data.samples,
            )

    def _check_penalties(self) -> dict[str, float]:
        return {name: _check.positive(getattr(self, name), name) for name in self._penalty_names}

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        self._check_penalties()

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        arrays = {"weights": self.weights_, "bias": self.bias_}
        return Head(linear_head, arrays, {"of_log_probs": self._of_log_probs})

    def _count_parameters(self) -> int:
        return self.weights_.size + self.bias_.size


@final
class VectorScaling(_LinearMap):
    """Calibrate each class with its own factor and bias.

    Choose it if you have thousands of held-out samples and the classes are miscalibrated in different ways. Predicted
    classes may change.

    The map is softmax(w * z + b), where z are the logits minus their mean over the classes.

    Args:
        scale_penalty: Strength of the pull of each w_k toward 1/T, where T is the maximum-likelihood temperature. The
            fit adds half of it times (w_k T - 1)^2, summed over k, to the NLL of all samples.
        bias_penalty: The same for c_k^2, where c is the change of the scores at the mean of z.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: w, (K,).
        bias_: b, (K,).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.standard_normal((5000, 3))
        >>> labels = np.argmax(logits + [0.0, 0.0, 1.0] + rng.gumbel(size=logits.shape), axis=1)
        >>> calibrator = VectorScaling().fit(logits, labels)
        >>> bool(calibrator.bias_[2] - calibrator.bias_[0] > 0.9)
        True

    Reference: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, section 4.2.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "weights_": attributes.coefficients_check(attributes.count_classes),
        "bias_": attributes.coefficients_check(attributes.count_classes),
    }
    _of_log_probs: ClassVar[bool] = False
    _penalty_names: ClassVar[tuple[str, ...]] = ("scale_penalty", "bias_penalty")

    def __init__(
        self,
        *,
        scale_penalty: float = 30.0,
        bias_penalty: float = 3.0,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.scale_penalty = scale_penalty
        self.bias_penalty = bias_penalty
        self.input = input
        self.classes = classes


class _MatrixMap(_LinearMap):
    """The settings that linear maps with a full matrix share."""

    _learned: ClassVar[dict[str, Check]] = {
        "weights_": attributes.coefficients_check(attributes.count_classes, attributes.count_classes),
        "bias_": attributes.coefficients_check(attributes.count_classes),
    }
    _penalty_names: ClassVar[tuple[str, ...]] = ("scale_penalty", "off_diagonal_penalty", "bias_penalty")

    def __init__(
        self,
        *,
        scale_penalty: float = 30.0,
        off_diagonal_penalty: float = 1000.0,
        bias_penalty: float = 3.0,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.scale_penalty = scale_penalty
        self.off_diagonal_penalty = off_diagonal_penalty
        self.bias_penalty = bias_penalty
        self.input = input
        self.classes = classes


@final
class MatrixScaling(_MatrixMap):
    """Calibrate with a matrix, which can also correct confusions between pairs of classes.

    Choose it if you have many thousands of held-out samples and few classes. Predicted classes may change.

    The map is softmax(W z + b), where z are the logits minus their mean over the classes.

    Args:
        scale_penalty: Strength of the pull of each W_ii toward 1/T, where T is the maximum-likelihood temperature. The
            fit adds half of it times (W_ii T - 1)^2, summed over i, to the NLL of all samples.
        off_diagonal_penalty: The same for (W_ij T)^2.
        bias_penalty: The same for c_i^2, where c is the change of the scores at the mean of z.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: W, (K, K): row i gives the score of class i.
        bias_: b, (K,).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.standard_normal((20_000, 3))
        >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        >>> calibrator = MatrixScaling().fit(3 * logits, labels)  # an overconfident network
        >>> calibrator.weights_.diagonal().round(1).tolist()
        [0.3, 0.3, 0.3]

    Reference: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, section 4.2; the penalty of
    off-diagonal and intercept (ODIR): Kull et al., "Beyond temperature scaling", NeurIPS 2019.
    """

    _of_log_probs: ClassVar[bool] = False


@final
class DirichletCalibration(_MatrixMap):
    """Calibrate with a matrix that acts on log-probabilities.

    Choose it as `MatrixScaling`, if the scores are probabilities or the scale of the logits has no meaning. Predicted
    classes may change.

    The map is softmax(W log p + b), where p is the softmax of the logits.

    Args:
        scale_penalty: As in `MatrixScaling`.
        off_diagonal_penalty: As in `MatrixScaling`.
        bias_penalty: As in `MatrixScaling`.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: W, (K, K): row i gives the score of class i.
        bias_: b, (K,).

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

    _of_log_probs: ClassVar[bool] = True
