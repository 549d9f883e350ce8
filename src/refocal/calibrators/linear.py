"""Linear maps of the logits: vector scaling, matrix scaling and Dirichlet calibration.

All three are one penalized multinomial logistic regression. Its penalty is least for the likeliest temperature and
fades with the number of samples, as a prior does, so that many classes and few samples give temperature scaling, and
many samples the likeliest map. Where the likeliest temperature is 0 or infinite, 1 takes its place.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from refocal import _check
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.fit.logistic import fit_affine
from refocal.calibrators.fit.maximum_likelihood import fit_temperature
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.maps.heads import linear_features, linear_head


class _LinearMap(Calibrator):
    """The fit that all share; without an off-diagonal penalty the map is diagonal."""

    scale_penalty: float
    bias_penalty: float
    weights_: np.ndarray
    bias_: np.ndarray

    _of_log_probs: ClassVar[bool] = False

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        penalties = self._penalties()
        data = LabeledLogits.prepare(logits, labels, weights)
        temperature = fit_temperature(data)
        off_diagonal = penalties.get("off_diagonal_penalty")
        # one thread is as fast for matrices of this size, and many times faster where other programs use the cores
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

    def _penalties(self) -> dict[str, float]:
        names = ("scale_penalty", "bias_penalty", "off_diagonal_penalty")
        return {name: _check.positive(getattr(self, name), name) for name in names if hasattr(self, name)}

    def _check_settings(self, classes: int | None) -> None:
        super()._check_settings(classes)
        self._penalties()

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        arrays = {"weights": self.weights_, "bias": self.bias_}
        return Head(linear_head, arrays, {"of_log_probs": self._of_log_probs})

    def _count_parameters(self) -> int:
        return self.weights_.size + self.bias_.size


class VectorScaling(_LinearMap):
    """softmax(w * z + b): a factor and a bias for each class, z being the logits less their mean.

    Args:
        scale_penalty: Strength of the pull of each w_k toward 1/T, T the likeliest temperature: half of it times
            (w_k T - 1)^2 is added to the NLL, summed over samples.
        bias_penalty: The same for c_k^2, c being the change of scores at the mean of z.
        input: "logits" or "probs".
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

    def __init__(
        self, *, scale_penalty: float = 30.0, bias_penalty: float = 3.0, input: str = "logits", classes: Any = None
    ) -> None:
        self.scale_penalty = scale_penalty
        self.bias_penalty = bias_penalty
        self.input = input
        self.classes = classes


class MatrixScaling(_LinearMap):
    """softmax(W z + b), z being the logits less their mean.

    Args:
        scale_penalty: Strength of the pull of each W_ii toward 1/T, T the likeliest temperature: half of it times
            (W_ii T - 1)^2 is added to the NLL, summed over samples.
        off_diagonal_penalty: The same for (W_ij T)^2.
        bias_penalty: The same for c_i^2, c being the change of scores at the mean of z.
        input: "logits" or "probs".
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: W, (K, K): row i gives the score of class i.
        bias_: b, (K,).

    Reference: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, section 4.2; the penalty of
    off-diagonal and intercept (ODIR): Kull et al., "Beyond temperature scaling", NeurIPS 2019.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "weights_": attributes.coefficients_check(attributes.count_classes, attributes.count_classes),
        "bias_": attributes.coefficients_check(attributes.count_classes),
    }

    def __init__(
        self,
        *,
        scale_penalty: float = 30.0,
        off_diagonal_penalty: float = 1000.0,
        bias_penalty: float = 3.0,
        input: str = "logits",
        classes: Any = None,
    ) -> None:
        self.scale_penalty = scale_penalty
        self.off_diagonal_penalty = off_diagonal_penalty
        self.bias_penalty = bias_penalty
        self.input = input
        self.classes = classes


class DirichletCalibration(MatrixScaling):
    """softmax(W log p + b), p being the softmax of the logits.

    Args:
        scale_penalty: As in `MatrixScaling`.
        off_diagonal_penalty: As in `MatrixScaling`.
        bias_penalty: As in `MatrixScaling`.
        input: "logits" or "probs".
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: W, (K, K): row i gives the score of class i.
        bias_: b, (K,).

    Reference: Kull et al., "Beyond temperature scaling", NeurIPS 2019.
    """

    _of_log_probs: ClassVar[bool] = True
