"""Simulated situations with a known posterior: calibrated ones, and ones that are wrong in a known way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit, softmax

from refocal import minimizer

RIGHT = frozenset({"calibrated", "unclear"})
WRONG = frozenset({"overconfident", "underconfident", "miscalibrated", "too high", "too low"})

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Situation:
    """Scores with a known posterior.

    Attributes:
        name: What is wrong, or that nothing is.
        samples: Number of samples.
        draw: Function that draws the probabilities as given and the true ones: (N, K) each, or (N,) for P(y = 1).
            Rows of a multi-label situation do not sum to 1.
        true: The regimes that would be true.
        culprits: Classes of which a verdict that something is wrong must name one.
        multilabel: Whether each class is a task of its own.
    """

    name: str
    samples: int
    draw: Draw
    true: frozenset[str]
    culprits: frozenset[int] = frozenset()
    multilabel: bool = False


def tempered(probs: np.ndarray, temperature: float) -> np.ndarray:
    """The probabilities at another temperature."""
    if probs.ndim == 1:
        return expit(logit(probs) / temperature)
    return softmax(np.log(probs) / temperature, axis=1)


def scaled(probs: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Each class times a factor, normalized: another prior."""
    changed = probs * factors
    return changed / changed.sum(axis=1, keepdims=True)


def posterior(classes: int, spread: float = 3.0) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Posteriors of so many classes."""
    return lambda rng, n: softmax(spread * rng.standard_normal((n, classes)), axis=1)


def given(truth: Callable[..., np.ndarray], change: Callable[[np.ndarray], np.ndarray] = lambda p: p) -> Draw:
    """Scores that are a function of the true posterior."""

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        eta = truth(rng, n)
        return change(eta), eta

    return draw


def truth_of(scores: Callable[..., np.ndarray], change: Callable[[np.ndarray], np.ndarray]) -> Draw:
    """Posteriors that are a function of the scores."""

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        probs = scores(rng, n)
        return probs, change(probs)

    return draw


def beta(a: float, b: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """P(y = 1) from a beta distribution."""
    return lambda rng, n: np.clip(rng.beta(a, b, n), 1e-9, 1 - 1e-9)


def constant(probs: np.ndarray) -> Callable[[np.random.Generator, int], np.ndarray]:
    """The same probabilities for every sample."""
    return lambda _, n: np.broadcast_to(probs, (n, *probs.shape)).copy()


def groups(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores right on average, although two groups that they do not tell apart differ."""
    probs = posterior(3)(rng, n)
    lean = np.where(rng.random(n) < 0.5, 0.3, -0.3)[:, None]
    return probs, probs + lean * probs * (np.eye(3)[0] - probs[:, :1])


def times(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    """Probabilities times a factor."""
    return lambda probs: np.minimum(factor * probs, 1.0)


def partly_certain(probs: np.ndarray) -> np.ndarray:
    """Half of the rows exactly 0 and 1."""
    certain = np.eye(probs.shape[1])[np.argmax(probs, axis=1)] if probs.ndim == 2 else np.round(probs)
    half = np.arange(len(probs)) % 2 == 0
    return np.where(half[:, None] if probs.ndim == 2 else half, certain, probs)


def rounded(probs: np.ndarray) -> np.ndarray:
    """Two decimals, so that small probabilities become exactly 0; rows sum to 1 again."""
    kept = np.round(probs, 2)
    return kept if probs.ndim == 1 else kept / kept.sum(axis=1, keepdims=True)


def decided(probs: np.ndarray) -> np.ndarray:
    """Certainty in the most probable class."""
    return np.eye(probs.shape[1])[np.argmax(probs, axis=1)]


def noisy(share: float) -> Callable[[np.ndarray], np.ndarray]:
    """Labels of which a share is replaced at random."""
    return lambda probs: (1 - share) * probs + share / probs.shape[1]


def by_predicted(probs: np.ndarray) -> np.ndarray:
    """Too sure where an even class is predicted, not sure enough where an odd one is."""
    even = (np.argmax(probs, axis=1) % 2 == 0)[:, None]
    return np.where(even, tempered(probs, 0.7), tempered(probs, 1.4))


def labels_of(classes: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    """P(y = 1) of independent classes, from common to rare ones."""
    return lambda rng, n: expit(1.5 * rng.standard_normal((n, classes)) + np.linspace(0.0, -4.0, classes))


def one_label(index: int, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Change the probabilities of one class."""

    def change_one(probs: np.ndarray) -> np.ndarray:
        return np.where(np.arange(probs.shape[1]) == index, change(probs), probs)

    return change_one


def one_class(classes: int, index: int, factor: float) -> np.ndarray:
    """Factors of which one is not 1."""
    return np.where(np.arange(classes) == index, factor, 1.0)


def rare(probs: np.ndarray) -> np.ndarray:
    """One class has 98% of the samples."""
    return scaled(probs, np.array([98.0, 1.0, 1.0]))


OVER, UNDER = frozenset({"overconfident"}), frozenset({"underconfident"})
HIGH, LOW = frozenset({"too high"}), frozenset({"too low"})
three, ten, hundred, thousand = (posterior(classes) for classes in (3, 10, 100, 1000))
SITUATIONS = (
    Situation("calibrated, 3 classes", 2_000, given(three), RIGHT),
    Situation("calibrated, 10 classes", 10_000, given(ten), RIGHT),
    Situation("calibrated, 10 classes, few samples", 200, given(ten), RIGHT),
    Situation("calibrated, 10 classes, many samples", 50_000, given(ten), RIGHT),
    Situation("calibrated, 100 classes", 10_000, given(hundred), RIGHT),
    Situation("calibrated, 1,000 classes", 5_000, given(thousand), RIGHT),
    Situation("calibrated, 98% in one class", 10_000, given(lambda rng, n: rare(three(rng, n))), RIGHT),
    Situation("calibrated, nearly always sure", 10_000, given(posterior(10, 12.0)), RIGHT),
    Situation("calibrated, knows of its label noise", 10_000, given(lambda rng, n: noisy(0.2)(ten(rng, n))), RIGHT),
    Situation("calibrated, groups that differ", 10_000, groups, RIGHT),
    Situation("calibrated, half exactly 0 and 1", 5_000, given(lambda rng, n: partly_certain(ten(rng, n))), RIGHT),
    Situation("calibrated, knows nothing", 5_000, given(constant(np.full(10, 0.1))), RIGHT),
    Situation("binary, calibrated", 5_000, given(beta(1, 1)), RIGHT),
    Situation("binary, calibrated, few samples", 200, given(beta(1, 1)), RIGHT),
    Situation("binary, calibrated, 2% positive", 20_000, given(beta(0.3, 13)), RIGHT),
    Situation("binary, calibrated, 1% positive, few", 1_000, given(beta(0.3, 30)), RIGHT),
    Situation("binary, calibrated, 0.06% positive, few", 1_000, given(beta(0.3, 500)), RIGHT),
    Situation(
        "binary, calibrated, half exactly 0 and 1",
        5_000,
        given(lambda rng, n: partly_certain(beta(1, 1)(rng, n))),
        RIGHT,
    ),
    Situation("binary, calibrated, one score", 5_000, given(constant(np.array(0.3))), RIGHT),
    Situation("binary, calibrated, two decimals", 10_000, given(beta(2, 2), rounded), RIGHT),
    Situation("overconfident, T = 0.5", 5_000, given(ten, lambda p: tempered(p, 0.5)), OVER),
    Situation("overconfident, T = 0.85", 20_000, given(ten, lambda p: tempered(p, 0.85)), OVER),
    Situation("overconfident, T = 0.5, few samples", 300, given(ten, lambda p: tempered(p, 0.5)), OVER | {"unclear"}),
    Situation("overconfident, 100 classes", 5_000, given(hundred, lambda p: tempered(p, 0.6)), OVER),
    Situation("overconfident, 1,000 classes", 5_000, given(thousand, lambda p: tempered(p, 0.6)), OVER),
    Situation("decisions only: exactly 0 and 1", 2_000, given(ten, decided), OVER),
    Situation("small probabilities rounded to 0, 10 classes", 5_000, given(ten, rounded), frozenset({"miscalibrated"})),
    Situation(
        "binary, small probabilities rounded to 0",
        20_000,
        given(beta(0.3, 13), rounded),
        LOW | {"miscalibrated"},
    ),
    Situation("overconfident, T = 0.5, two decimals", 5_000, given(ten, lambda p: rounded(tempered(p, 0.5))), OVER),
    Situation("label noise that the scores ignore", 5_000, truth_of(ten, noisy(0.1)), OVER),
    Situation("underconfident, T = 1.5", 5_000, given(ten, lambda p: tempered(p, 1.5)), UNDER),
    Situation("underconfident, T = 1.15", 20_000, given(ten, lambda p: tempered(p, 1.15)), UNDER),
    Situation("underconfident, at most 0.8", 10_000, given(ten, noisy(0.22)), UNDER),
    Situation("focal loss, gamma = 3", 10_000, given(ten, lambda p: minimizer(p, gamma=3.0)), UNDER),
    Situation(
        "prior shift, 3 classes",
        2_000,
        truth_of(three, lambda p: scaled(p, np.array([0.6, 0.9, 1.6]))),
        WRONG,
        frozenset({0, 2}),
    ),
    Situation(
        "prior shift, 3 classes, few samples",
        300,
        truth_of(three, lambda p: scaled(p, np.array([0.6, 0.9, 1.6]))),
        WRONG | {"unclear"},
    ),
    Situation(
        "prior shift, 10 classes",
        10_000,
        truth_of(ten, lambda p: scaled(p, np.linspace(0.5, 1.5, 10))),
        WRONG,
        frozenset(range(10)),
    ),
    Situation(
        "prior shift, 1,000 classes",
        10_000,
        truth_of(thousand, lambda p: scaled(p, np.repeat([1.0, 4.0], [990, 10]))),
        WRONG,
        frozenset(range(990, 1000)),
    ),
    Situation(
        "one bad class of 10", 10_000, truth_of(ten, lambda p: scaled(p, one_class(10, 3, 0.5))), WRONG, frozenset({3})
    ),
    Situation(
        "one bad class of 100",
        20_000,
        truth_of(hundred, lambda p: scaled(p, one_class(100, 3, 0.3))),
        WRONG,
        frozenset({3}),
    ),
    Situation(
        "two classes exchanged", 2_000, given(ten, lambda p: p[:, [1, 0, *range(2, 10)]]), WRONG, frozenset({0, 1})
    ),
    Situation("too sure of even classes, not of odd ones", 20_000, given(ten, by_predicted), WRONG),
    Situation(
        "98% in one class, the others 3 times too high",
        10_000,
        given(lambda rng, n: rare(three(rng, n)), lambda p: scaled(p, np.array([1.0, 3.0, 3.0]))),
        WRONG,
        frozenset({0, 1, 2}),
    ),
    Situation("binary, 10.7 points too high", 2_000, truth_of(beta(2, 2), lambda p: np.clip(p - 0.107, 0, 1)), HIGH),
    Situation("binary, 5 points too high", 10_000, truth_of(beta(2, 2), lambda p: np.clip(p - 0.05, 0, 1)), HIGH),
    Situation(
        "binary, 5 points too high, few samples",
        200,
        truth_of(beta(2, 2), lambda p: np.clip(p - 0.05, 0, 1)),
        HIGH | {"unclear"},
    ),
    Situation(
        "binary, fraud 3.6 times too high", 5_000, given(beta(0.3, 13), lambda p: np.minimum(3.6 * p, 0.99)), HIGH
    ),
    Situation("binary, fraud half as high", 20_000, given(beta(0.3, 13), lambda p: p / 2), LOW),
    Situation("binary, 1% predicted, 2 times as frequent", 1_000, truth_of(beta(0.3, 30), times(2)), LOW | {"unclear"}),
    Situation(
        "binary, 0.06% predicted, 5 times as frequent", 1_000, truth_of(beta(0.3, 500), times(5)), LOW | {"unclear"}
    ),
    Situation(
        "binary, 0.06% predicted, 10 times as frequent", 300, truth_of(beta(0.3, 500), times(10)), LOW | {"unclear"}
    ),
    Situation(
        "binary, 0.02% predicted, 5 times as frequent", 3_000, truth_of(beta(0.3, 1500), times(5)), LOW | {"unclear"}
    ),
    Situation(
        "binary, 99% predicted, y = 0 3 times as frequent",
        2_000,
        truth_of(beta(30, 0.3), lambda p: 1 - times(3)(1 - p)),
        HIGH | {"unclear"},
    ),
    Situation(
        "binary, trained on balanced classes", 5_000, given(beta(0.5, 9), lambda p: expit(logit(p) + np.log(19))), HIGH
    ),
    Situation("binary, too extreme", 3_000, given(beta(2, 2), lambda p: tempered(p, 0.5)), OVER),
    Situation("binary, not extreme enough", 3_000, given(beta(1, 1), lambda p: tempered(p, 2.0)), UNDER),
    Situation(
        "binary, waves of 8 points",
        10_000,
        truth_of(beta(1, 1), lambda p: np.clip(p + 0.08 * np.sin(4 * np.pi * p), 0, 1)),
        WRONG,
    ),
    Situation(
        "binary, 6 points up and down from bin to bin",
        10_000,
        truth_of(beta(1, 1), lambda p: np.clip(p + 0.06 * np.where(np.floor(15 * p) % 2, 1, -1), 0, 1)),
        WRONG,
    ),
    Situation("binary, wrong above 0.9 only", 10_000, truth_of(beta(1, 1), lambda p: np.where(p > 0.9, 0.8, p)), WRONG),
    Situation("multi-label, calibrated, 20 classes", 4_000, given(labels_of(20)), RIGHT, multilabel=True),
    Situation("multi-label, calibrated, 5 classes, many samples", 20_000, given(labels_of(5)), RIGHT, multilabel=True),
    Situation("multi-label, calibrated, 20 classes, few samples", 200, given(labels_of(20)), RIGHT, multilabel=True),
    Situation(
        "multi-label, 1 of 20 classes too high",
        4_000,
        given(labels_of(20), one_label(7, lambda p: expit(logit(p) + 0.8))),
        HIGH,
        frozenset({7}),
        multilabel=True,
    ),
    Situation(
        "multi-label, 1 of 20 classes too extreme",
        4_000,
        given(labels_of(20), one_label(0, lambda p: expit(logit(p) / 0.4))),
        OVER,
        frozenset({0}),
        multilabel=True,
    ),
    Situation(
        "multi-label, the rarest of 20 classes 3 times too high",
        4_000,
        given(labels_of(20), one_label(19, lambda p: expit(logit(p) + 1.2))),
        HIGH,
        frozenset({19}),
        multilabel=True,
    ),
)
