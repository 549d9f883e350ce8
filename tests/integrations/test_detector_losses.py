"""The table of detectors on docs/how-to/which-map.md, checked: where the class losses of transformers settle.

One query stands for a network that can fit anything: it is matched to an object of its class with probability eta, and
the matched boxes have known IoUs. The test finds the logit at which the gradient of the expected loss is zero, with the
code of transformers, and compares it with the formula of the page.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

import refocal

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
loss_utils = pytest.importorskip("transformers.loss.loss_utils")
deformable_detr = pytest.importorskip("transformers.loss.loss_deformable_detr")
deimv2 = pytest.importorskip("transformers.loss.loss_deimv2")
lw_detr = pytest.importorskip("transformers.loss.loss_lw_detr")
rt_detr = pytest.importorskip("transformers.loss.loss_rt_detr")

COPIES = 20  # of the query; eta and the IoUs are multiples of 1 / COPIES
IOUS = np.array([0.5, 0.7, 0.9, 1.0])


def settle(loss, eta, ious):
    """The score at which the gradient of a loss is zero."""
    matched = round(eta * COPIES)
    assert matched % len(ious) == 0
    own = np.tile(ious, matched // len(ious))
    place = [0.5, 0.5, 0.4, 0.4]
    targets = [{"class_labels": torch.tensor([0]), "boxes": torch.tensor([[0.5, 0.5, 0.4 * iou, 0.4]]).double()}
               for iou in own]  # fmt: skip
    targets += [{"class_labels": torch.zeros(0, dtype=torch.long), "boxes": torch.zeros(0, 4).double()}] * (
        COPIES - matched
    )
    one, none = torch.tensor([0]), torch.zeros(0, dtype=torch.long)
    indices = [(one, one)] * matched + [(none, none)] * (COPIES - matched)

    def slope(logit):
        free = torch.tensor(logit, dtype=torch.float64, requires_grad=True)
        logits = torch.stack([free, torch.tensor(-3.0, dtype=torch.float64)]).expand(COPIES, 1, 2)
        outputs = {"logits": logits, "pred_boxes": torch.tensor(place).double().expand(COPIES, 1, 4)}
        (value,) = loss(outputs, targets, indices, 1).values()
        return float(torch.autograd.grad(value, free)[0])

    return 1 / (1 + np.exp(-brentq(slope, -25, 25, xtol=1e-12)))


def sigmoid_focal():
    return deformable_detr.DeformableDetrImageLoss(matcher=None, num_classes=2, focal_alpha=0.25, losses=[]).loss_labels


def varifocal():
    return rt_detr.RTDetrLoss(transformers.RTDetrConfig(num_labels=2)).loss_labels_vfl


def matchability():
    return deimv2.Deimv2Loss(transformers.Deimv2Config(num_labels=2)).loss_labels_mal


def iou_aware():
    return lw_detr.LwDetrImageLoss(matcher=None, num_classes=2, focal_alpha=0.25, losses=[], group_detr=1).loss_labels


def varifocal_odds(p, ious, alpha=0.75, gamma=2):
    return alpha * p ** (gamma + 1) / (np.mean(ious**2) - p * np.mean(ious))


def matchability_odds(p, ious, gamma=2):
    return p ** (gamma + 1) / (np.mean(ious**gamma) - p)


def iou_aware_odds(p, ious, alpha=0.25, gamma=2):
    negative = p**gamma * (p - gamma * (1 - p) * np.log1p(-p))
    return negative / (p**alpha * np.mean(ious ** (1 - alpha)) - p)


@pytest.mark.parametrize("eta", [0.2, 0.4, 0.6, 0.8])
def test_sigmoid_focal_loss_gives_the_posterior_back(eta):
    score = settle(sigmoid_focal(), eta, IOUS)
    logit = np.log(score) - np.log1p(-score)
    assert refocal.sigmoid_posterior(np.array([logit]), gamma=2, alpha=0.25)[0] == pytest.approx(eta, abs=1e-7)
    assert abs(score - eta) > 0.03


@pytest.mark.parametrize("eta", [0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize(
    ("make", "odds"),
    [(varifocal, varifocal_odds), (matchability, matchability_odds), (iou_aware, iou_aware_odds)],
)
@pytest.mark.parametrize("ious", [IOUS, np.array([0.8])], ids=["mixed", "constant"])
def test_losses_whose_targets_are_ious(make, odds, ious, eta):
    score = settle(make(), eta, ious)
    assert odds(score, ious) == pytest.approx(eta / (1 - eta), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (varifocal, np.mean(IOUS**2) / np.mean(IOUS)),
        (matchability, np.mean(IOUS**2)),
        (iou_aware, np.mean(IOUS**0.75) ** (1 / 0.75)),
    ],
)
def test_a_sure_object_scores_a_mean_of_its_iou(make, limit):
    """The largest score: that of an object that is always there and always matched."""
    assert settle(make(), 1.0, IOUS) == pytest.approx(limit, abs=1e-6)


@pytest.mark.parametrize(("make", "odds"), [(varifocal, varifocal_odds), (iou_aware, iou_aware_odds)])
def test_the_score_alone_does_not_tell_the_probability(make, odds):
    """One score, two answers: it depends on how well boxes fit."""
    score = settle(make(), 0.8, np.array([0.7]))
    loose, tight = (odds(score, np.array([iou])) for iou in (0.7, 0.95))
    assert loose / (1 + loose) == pytest.approx(0.8, abs=1e-5)
    assert tight / (1 + tight) < 0.6


def test_which_model_has_which_loss():
    """The rows of the table, as transformers maps models to losses."""
    kinds = {name: loss.__name__ for name, loss in loss_utils.LOSS_MAPPING.items()}
    expected = {
        "DeformableDetr": "DeformableDetrForObjectDetectionLoss",
        "ConditionalDetr": "DeformableDetrForObjectDetectionLoss",
        "DabDetr": "DeformableDetrForObjectDetectionLoss",
        "GroundingDino": "GroundingDinoForObjectDetectionLoss",
        "MMGroundingDino": "GroundingDinoForObjectDetectionLoss",
        "RTDetr": "RTDetrForObjectDetectionLoss",
        "RTDetrV2": "RTDetrForObjectDetectionLoss",
        "DFine": "DFineForObjectDetectionLoss",
        "Deimv2": "Deimv2ForObjectDetectionLoss",
        "LwDetr": "LwDetrForObjectDetectionLoss",
        "RfDetr": "LwDetrForObjectDetectionLoss",
    }
    assert {name: kinds[f"{name}ForObjectDetection"] for name in expected} == expected
    focal = ("DeformableDetr", "ConditionalDetr", "DabDetr", "GroundingDino", "MMGroundingDino", "LwDetr", "RfDetr")
    assert {getattr(transformers, f"{name}Config")().focal_alpha for name in focal} == {0.25}
    varifocal_models = ("RTDetr", "RTDetrV2", "DFine", "Deimv2")
    settings = [getattr(transformers, f"{name}Config")() for name in varifocal_models]
    assert {(each.focal_loss_alpha, each.focal_loss_gamma) for each in settings} == {(0.75, 2.0)}
    assert settings[-1].mal_alpha is None
