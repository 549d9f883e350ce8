"""The contestants of the calibrator arena: one table for refocal and one for other packages.

Every contestant keeps the settings that its package gives it. Packages that take only probabilities get the softmax of
logits in float64; that conversion is not part of the time to fit.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

import refocal
from refocal import calibrators

REFERENCE = "temperature"  # the method that all others are compared with
RIVAL = "probmetrics sms"  # the strongest method of another package
SETTINGS = (
    "Every method has the defaults of its package, and the models of the tabular sets have fixed settings. refocal "
    "chooses penalties and weights by cross-validation on the calibration part alone. Its list of candidates, its path "
    "of penalties and its floor of probabilities were decided while looking at the test log loss of the ten networks "
    "and of some zoo networks; the tabular sets were looked at once, before the floor was decided."
)

UNSEEN = (
    "The goal was set for 21 published networks that development had not seen. We do not have their logits: no number "
    "below is from them. Settings were chosen with the ten networks, so their numbers are optimistic. "
    "[Networks that development has not seen](unseen_networks.md) repeats the comparison."
)
TENTH = (
    "AutoCalibrator misses the goal of a tenth of the time of sms for every number of classes, and the goal is out of "
    "reach. A tenth of sms at 2 classes is about 1 ms, the time of a single fit of temperature scaling; five folds of "
    "seven candidates need 35 fits. At 100 classes it is about 23 ms, four or five evaluations of the likelihood of "
    "matrix scaling and its gradient; five folds with several penalties need a few hundred."
)


class Method(NamedTuple):
    """A contestant.

    Attributes:
        module: The module of its package.
        make: Makes an unfitted calibrator from the input word and the number of classes. The calibrator has
            `fit(scores, labels)` and `predict_proba(scores)`.
        probs: Whether it takes only probabilities.
        only: "binary" or "multiclass" if it is for those tasks alone.
    """

    module: str
    make: Callable[[str, int], Any]
    probs: bool = False
    only: str | None = None

    def takes(self, classes: int) -> bool:
        """Whether it is for this number of classes."""
        return self.only in (None, "binary" if classes == 2 else "multiclass")

    def convert(self, scores: np.ndarray, input: str) -> np.ndarray:
        """Convert scores to what the calibrator takes."""
        if self.probs and input == "logits":
            return softmax(scores.astype(np.float64), axis=1)
        return scores

    def version(self) -> str | None:
        """The name and version of its package; None if the package is missing."""
        if self.module == "refocal":
            return f"refocal {refocal.__version__}"
        if importlib.util.find_spec(self.module) is None:
            return None
        package = {"sklearn": "scikit-learn"}.get(self.module, self.module)
        return f"{package} {importlib.metadata.version(package)}"


class AsGiven:
    """No calibration."""

    def fit(self, scores: np.ndarray, labels: np.ndarray) -> None:
        """Learn nothing."""

    def predict_proba(self, scores: np.ndarray) -> np.ndarray:
        """The probabilities as they are."""
        return scores


class PassThrough(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose outputs are the scores that it is given, for scikit-learn to calibrate."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, X: np.ndarray, y: np.ndarray) -> PassThrough:  # noqa: ARG002
        """Learn nothing."""
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """The class with the largest score; scikit-learn asks whether a classifier has this."""
        return X.argmax(axis=1)


class WithLogits(PassThrough):
    """A classifier that gives logits."""

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        """Logits (N, K), or log-odds (N,) for two classes."""
        return X[:, 1] - X[:, 0] if self.classes == 2 else X


class WithProbs(PassThrough):
    """A classifier that gives probabilities."""

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Probabilities (N, K)."""
        return X


class OfNetcal:
    """A calibrator of netcal, which takes and gives one column for two classes."""

    def __init__(self, name: str) -> None:
        import netcal.scaling

        self.calibrator = getattr(netcal.scaling, name)()

    def fit(self, probs: np.ndarray, labels: np.ndarray) -> None:
        """Fit to probabilities (N, K)."""
        self.calibrator.fit(probs[:, 1] if probs.shape[1] == 2 else probs, labels)

    def predict_proba(self, probs: np.ndarray) -> np.ndarray:
        """Calibrated probabilities (N, K)."""
        if probs.shape[1] > 2:
            return self.calibrator.transform(probs)
        second = np.ravel(self.calibrator.transform(probs[:, 1]))
        return np.stack([1 - second, second], axis=1)


def make_refocal(name: str, input: str, classes: int, **settings: Any) -> Any:
    """Make a calibrator of refocal."""
    return getattr(calibrators, name)(input=input, classes=classes, **settings)


def make_probmetrics(name: str, input: str, classes: int) -> Any:  # noqa: ARG001
    """Make a calibrator of probmetrics by its name there."""
    from probmetrics.calibrators import get_calibrator

    return get_calibrator(name)


def make_sklearn(method: str, input: str, classes: int) -> Any:
    """Make scikit-learn's calibration of a frozen classifier, which fits one calibrator to all rows."""
    frozen = FrozenEstimator((WithLogits if input == "logits" else WithProbs)(classes))
    # The frozen classifier is the same in every fold, so their number does not change the fit.
    return CalibratedClassifierCV(frozen, method=method, cv=2, ensemble=False)


def of_refocal(name: str, only: str | None = None, **settings: Any) -> Method:
    """List a calibrator of refocal by the name of its class, with its settings."""
    return Method("refocal", partial(make_refocal, name, **settings), only=only)


METHODS: dict[str, Method] = {
    "none": Method("refocal", lambda input, classes: AsGiven(), probs=True),  # noqa: ARG005
    "temperature": of_refocal("TemperatureScaling"),
    "focal temperature": of_refocal("FocalTemperatureScaling"),
    "ensemble temperature": of_refocal("EnsembleTemperatureScaling"),
    "vector": of_refocal("VectorScaling"),
    "matrix": of_refocal("MatrixScaling"),
    "Platt": of_refocal("PlattScaling", only="binary"),
    "beta": of_refocal("BetaCalibration", only="binary"),
    "quadratic": of_refocal("QuadraticScaling", only="binary"),
    "auto, mixture": of_refocal("AutoCalibrator"),
    "auto, select": of_refocal("AutoCalibrator", combine="select"),
    "auto, mixture by Brier": of_refocal("AutoCalibrator", scoring="brier"),
    **{
        f"probmetrics {name}": Method("probmetrics", partial(make_probmetrics, name), probs=True)
        for name in ("temp-scaling", "ts-mix", "svs", "sms", "logistic-mix")
    },
    "probmetrics quadratic-scaling": Method(
        "probmetrics", partial(make_probmetrics, "quadratic-scaling"), probs=True, only="binary"
    ),
    "netcal temperature": Method("netcal", lambda *_: OfNetcal("TemperatureScaling"), probs=True),
    "netcal logistic": Method("netcal", lambda *_: OfNetcal("LogisticCalibration"), probs=True),
    "netcal beta": Method("netcal", lambda *_: OfNetcal("BetaCalibration"), probs=True),
    **{
        f"scikit-learn {name}": Method("sklearn", partial(make_sklearn, name))
        for name in ("temperature", "sigmoid", "isotonic")
    },
}


def choose_methods(names: list[str] | None) -> dict[str, Method]:
    """Choose methods by name, the reference always among them; a missing package is named and left out."""
    wanted = METHODS if names is None else {REFERENCE: METHODS[REFERENCE]} | {name: METHODS[name] for name in names}
    present = {name: method for name, method in wanted.items() if method.version() is not None}
    for name in wanted.keys() - present.keys():
        print(f"{name}: left out, as the module {wanted[name].module} is not installed", flush=True)
    return present
