"""Refinement: the loss that remains after post-hoc calibration, and its use for early stopping."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from labeled_logits import draw_calibrated, mean_nll
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold

from refocal import metrics
from refocal.calibrators import (
    FocalPosterior,
    TemperatureScaling,
    VectorScaling,
    refinement,
)
from refocal.losses import FocalLoss


def test_against_a_loop():
    logits, labels = draw_calibrated(300, 4)
    logits = 2 * logits
    values = np.empty(300)
    for train, test in KFold(3, shuffle=True, random_state=7).split(logits):
        log_probs = TemperatureScaling().fit(logits[train], labels[train]).predict_log_proba(logits[test])
        values[test] = [-row[label] for row, label in zip(log_probs, labels[test], strict=True)]
    found = refinement(logits, labels, cv=3, random_state=7)
    assert found.refinement == pytest.approx(values.mean())
    assert found.total == pytest.approx(mean_nll(FocalPosterior(gamma=0), logits, labels))
    assert found.calibration == pytest.approx(found.total - found.refinement)
    assert found.refinement_error == pytest.approx(values.std() / np.sqrt(300))
    given = -FocalPosterior(gamma=0).predict_log_proba(logits)[np.arange(300), labels]
    assert found.total_error == pytest.approx(given.std() / np.sqrt(300))
    assert found.calibration_error == pytest.approx((given - values).std() / np.sqrt(300))
    assert (found.score, found.method) == ("nll", "TemperatureScaling")


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_scale_is_miscalibration_and_no_more(score):
    logits, labels = draw_calibrated(4000, 5)
    parts = [refinement(scale * logits, labels, score=score) for scale in (0.4, 1.0, 4.0)]
    assert np.ptp([part.refinement for part in parts]) < 2e-3
    assert parts[1].calibration < 2 * parts[1].calibration_error + 1e-3
    for part in (parts[0], parts[2]):
        assert part.calibration > 5 * part.calibration_error
    measure = metrics.nll if score == "nll" else metrics.brier
    assert parts[2].total == pytest.approx(measure(4 * logits, labels, input="logits"))


def test_calibrated_scores_have_nothing_to_remove():
    logits, labels = draw_calibrated(200, 3, seed=3)
    best = TemperatureScaling().fit(logits, labels).temperature_
    found = refinement(logits / best, labels)
    assert (found.calibration, found.method, found.calibration_error) == (0.0, "none", 0.0)
    assert found.refinement == found.total


def test_two_classes_may_use_a_bias():
    rng = np.random.default_rng(0)
    log_odds = 2 * rng.standard_normal(3000)
    labels = rng.random(3000) < 1 / (1 + np.exp(-(log_odds - 2)))
    found = refinement(log_odds, labels)
    assert found.method == "PlattScaling"
    alone = refinement(log_odds, labels, calibrators=[TemperatureScaling()])
    assert alone.refinement > found.refinement + 0.1
    both = np.stack([np.zeros(3000), log_odds], axis=1)
    assert refinement(both, labels.astype(int)).refinement == pytest.approx(found.refinement, rel=1e-6)
    probs = 1 / (1 + np.exp(-log_odds))
    assert refinement(probs, labels, input="probs").total == pytest.approx(found.total)


def test_own_calibrators_weights_and_names():
    logits, labels = draw_calibrated(2000, 3)
    shifted = logits + np.array([0.0, 1.0, -1.0])
    names = np.array(["a", "b", "c"])[labels]
    found = refinement(shifted, names, calibrators=[TemperatureScaling(), VectorScaling()])
    assert found.method == "VectorScaling"
    weights = np.where(labels == 0, 0.0, 2.0)
    weighted = refinement(shifted, labels, sample_weight=weights)
    kept = labels != 0
    plain = refinement(shifted[kept], labels[kept])
    assert weighted.total == pytest.approx(plain.total)
    assert weighted.refinement == pytest.approx(plain.refinement)


def test_errors():
    logits, labels = draw_calibrated(20, 3)
    with pytest.raises(ValueError, match="score must be one of 'nll', 'brier', got 'ece'"):
        refinement(logits, labels, score="ece")
    with pytest.raises(ValueError, match="cv must be at least 2, got 1"):
        refinement(logits, labels, cv=1)
    with pytest.raises(ValueError, match="cv must be at most 20, the number of samples with"):
        refinement(logits, labels, cv=21)
    probs = FocalPosterior(gamma=0).predict_proba(logits)
    with pytest.raises(ValueError, match="probabilities"):
        refinement(probs, labels)
    assert refinement(probs, labels, input="probs").total == pytest.approx(refinement(logits, labels).total)


def train_on_digits(seed, epochs=40):
    """Train an MLP with focal loss on 300 digits, a fifth of them with random labels; yield each epoch.

    An epoch is its focal loss on clean validation data, and its logits there and on test data.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    features, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(features / 16, dtype=torch.float32), torch.tensor(labels)
    train, val, test = torch.tensor(rng.permutation(len(labels))).split([300, 500, 997])
    random = torch.tensor(rng.random(len(labels)) < 0.2)
    noisy = torch.where(random, torch.tensor(rng.integers(10, size=len(labels))), y)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    criterion = FocalLoss(gamma=5)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in train[torch.tensor(rng.permutation(len(train)))].split(50):
            optimizer.zero_grad()
            criterion(network(x[batch]), noisy[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            logits = network(x)
            loss = float(criterion(logits[val], y[val]))
        yield loss, (logits[val].numpy(), labels[val]), (logits[test].numpy(), labels[test])


def test_focal_loss_on_validation_data_keeps_a_worse_epoch_than_refinement():
    """The network goes on to memorize random labels, but grows more confident: its focal loss still falls."""
    kept_nll = {"focal loss": [], "refinement": []}
    for seed in range(3):
        epochs = list(train_on_digits(seed))
        by_loss = int(np.argmin([loss for loss, _, _ in epochs]))
        by_refinement = int(np.argmin([refinement(*val).refinement for _, val, _ in epochs]))
        assert by_refinement < by_loss
        for name, kept in (("focal loss", by_loss), ("refinement", by_refinement)):
            _, val, test = epochs[kept]
            kept_nll[name].append(mean_nll(TemperatureScaling().fit(*val), *test))
    # docs/how-to/calibrators.md has these numbers
    assert np.mean(kept_nll["focal loss"]) == pytest.approx(0.44, abs=0.03)
    assert np.mean(kept_nll["refinement"]) == pytest.approx(0.36, abs=0.03)
