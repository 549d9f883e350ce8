"""Every setting of a loss has an effect, and a value out of range is rejected by the setting's name."""

from __future__ import annotations

import functools
import math
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from refocal import _check  # noqa: E402
from refocal import losses as L  # noqa: E402


def rows(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(6, 4, generator=generator, dtype=torch.double)
    return logits, torch.randint(4, (6,), generator=generator)


def test_a_layer_without_a_bias_has_the_norms_of_its_weights():
    logits, target = rows()
    features = torch.randn(6, 3, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    layer = torch.nn.Linear(3, 4, bias=False).double()
    norms = L.last_layer_gradient_norms(L.BrierLoss(reduction="none"), features, layer(features), target, bias=False)
    for index in range(6):
        loss = L.brier_loss(layer(features[index : index + 1]), target[index : index + 1])
        (slope,) = torch.autograd.grad(loss.sum(), layer.weight)
        torch.testing.assert_close(norms[index], slope.norm())
    with_bias = L.last_layer_gradient_norms(L.brier_loss, features, logits, target)
    assert (with_bias > L.last_layer_gradient_norms(L.brier_loss, features, logits, target, bias=False)).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_norms_need_a_loss_of_each_sample(reduction):
    logits, target = rows()
    wanted = r"loss must give one value per sample, shape \(6,\), got \(\): use reduction='none'"
    with pytest.raises(ValueError, match=wanted):
        L.last_layer_gradient_norms(L.FocalLoss(2.0, reduction=reduction), logits, logits, target)


def test_dual_focal_loss_counts_its_weights():
    logits, target = rows()
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.double)
    plain = L.dual_focal_loss(logits, target, gamma=2.0)
    expected = plain * weight[target]
    torch.testing.assert_close(L.dual_focal_loss(logits, target, gamma=2.0, weight=weight), expected)
    mean = L.DualFocalLoss(2.0, weight=weight)(logits, target)
    torch.testing.assert_close(mean, expected.sum() / weight[target].sum())


def test_the_gradient_of_dual_focal_loss_flows_through_the_runner_up():
    # The runner-up lies below the class, so it counts. No two scores are equal, so finite differences exist.
    logits = torch.tensor([[2.0, 1.0, -1.0], [0.3, 1.5, 0.1]], dtype=torch.double, requires_grad=True)
    target = torch.tensor([0, 1])

    def by_hand(z):
        p = torch.softmax(z, dim=1)
        runner_up = torch.stack([p[0, 1], p[1, 0]])
        p = p[torch.arange(2), target]
        return -((1 - p + runner_up) ** 3) * torch.log(p)

    found = torch.autograd.grad(L.dual_focal_loss(logits, target, gamma=3.0).sum(), logits)
    expected = torch.autograd.grad(by_hand(logits).sum(), logits)
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lambda z: L.dual_focal_loss(z, target, gamma=3.0), (logits,))


@pytest.mark.parametrize("ignored", [-1, 7])
def test_sigmoid_focal_loss_ignores_the_index_it_is_told(ignored):
    x = torch.linspace(-2, 2, 6).reshape(2, 3)
    kept = torch.tensor([[1, 0, 1], [0, 1, 1]])
    target = kept.clone()
    target[0, 2] = target[1, 0] = ignored
    expected = L.sigmoid_focal_loss(x, kept)
    expected[0, 2] = expected[1, 0] = 0
    torch.testing.assert_close(L.sigmoid_focal_loss(x, target, ignore_index=ignored), expected)
    for reduction, total in (("none", expected), ("sum", expected.sum()), ("mean", expected.sum() / 4)):
        module = L.SigmoidFocalLoss(ignore_index=ignored, reduction=reduction)
        torch.testing.assert_close(module(x, target), total)


@pytest.mark.parametrize("width", [0, -0.4, math.nan, math.inf])
def test_a_width_of_the_kernel_is_positive(width):
    refused = pytest.raises(ValueError, match=f"kernel_width must be positive and finite, got {float(width)}")
    with refused:
        L.MMCELoss(2.0, kernel_width=width)
    with refused:
        L.mmce_loss(*rows(), kernel_width=width)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: L.MMCELoss("2"), TypeError, "factor must be a number, got '2'"),
        (lambda: L.MMCELoss(math.nan), ValueError, "factor must be at least 0 and finite, got nan"),
        (lambda: L.MMCELoss(-1.0), ValueError, "factor must be at least 0 and finite, got -1.0"),
        (lambda: L.MMCELoss(1.0, kernel_width="a"), TypeError, "kernel_width must be a number"),
        (lambda: L.AdaFocal(rate=math.nan), ValueError, "rate must be positive and finite, got nan"),
        (lambda: L.AdaFocal(rate="1"), TypeError, "rate must be a number"),
        (lambda: L.AdaFocal(bins=1.5), TypeError, "bins must be a whole number, at least 1, got 1.5"),
        (lambda: L.AdaFocal(switch=math.nan), ValueError, "switch must be finite, got nan"),
        (lambda: L.AdaFocal(initial_gamma="1"), TypeError, "initial_gamma must be a number"),
        (lambda: L.AdaFocal(gamma_max=math.inf), ValueError, "gamma_max must be finite, got inf"),
        (lambda: L.AdaFocal(gamma_min=-math.inf), ValueError, "gamma_min must be finite, got -inf"),
        (lambda: L.SampleWise((math.nan,), (1.0, 2.0)), ValueError, "edges must be finite, got nan"),
        (lambda: L.SampleWise(("0.2",), (1.0, 2.0)), TypeError, "edges must be a number"),
        (lambda: L.SampleWise((0.2,), (1.0, "2")), TypeError, "gamma must be a number"),
        (lambda: L.SampleWise((0.2,), (1.0, math.nan)), ValueError, "gamma must be at least 0 and finite, got nan"),
        (lambda: L.Scheduled((1.5,), (1.0, 2.0)), TypeError, "milestones must be a whole number, got 1.5"),
        (lambda: L.Scheduled((1,), (1.0, "2")), TypeError, "gamma must be a number"),
        (lambda: L.FocalLoss("2"), TypeError, "gamma must be a number"),
        (lambda: L.FocalLoss(2.0, label_smoothing="a"), TypeError, "label_smoothing must be a number"),
        (lambda: L.FocalLoss(2.0, label_smoothing=math.nan), ValueError, r"label_smoothing must lie in \[0, 1\]"),
        (lambda: L.DualFocalLoss(math.nan), ValueError, "gamma must be at least 0 and finite, got nan"),
        (lambda: L.InverseFocalLoss(math.inf), ValueError, "gamma must be at least 0 and finite, got inf"),
        (lambda: L.ProperFocalLoss("2"), TypeError, "gamma must be a number"),
        (lambda: L.SigmoidFocalLoss(alpha=math.nan), ValueError, "alpha must lie strictly between 0 and 1"),
        (lambda: L.SigmoidFocalLoss("2"), TypeError, "gamma must be a number"),
    ],
)
def test_a_hyper_parameter_is_refused_by_its_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


ARRAY = np.zeros((2, 3), np.float32)
LABELS = np.zeros(2, np.int64)
TENSOR, TARGET = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
LOSSES = (
    L.FocalLoss(2.0),
    L.FocalLoss(L.FLSD53),
    L.DualFocalLoss(2.0),
    L.InverseFocalLoss(1.0),
    L.BrierLoss(),
    L.ProperFocalLoss(1.0),
    L.MMCELoss(2.0),
)


@pytest.mark.parametrize("criterion", LOSSES, ids=lambda each: type(each).__name__)
def test_arrays_are_refused_in_the_words_of_cross_entropy(criterion):
    for given in ((ARRAY, LABELS), (ARRAY, TARGET), (TENSOR, LABELS)):
        with pytest.raises(TypeError) as expected:
            torch.nn.CrossEntropyLoss()(*given)
        with pytest.raises(TypeError, match=re.escape(str(expected.value))):
            criterion(*given)


def test_arrays_are_refused_where_cross_entropy_has_no_say():
    calls = [
        ("logits", lambda: L.SigmoidFocalLoss()(ARRAY, ARRAY)),
        ("target", lambda: L.SigmoidFocalLoss(reduction="none")(TENSOR, ARRAY)),
        ("logits", lambda: L.sigmoid_focal_loss(ARRAY, ARRAY)),
        ("probs", lambda: L.AdaFocal().step_epoch(ARRAY, LABELS)),
        ("labels", lambda: L.AdaFocal().step_epoch(TENSOR, LABELS)),
        ("p", lambda: L.AdaFocal()(ARRAY)),
        ("p", lambda: L.FLSD53(ARRAY)),
        ("features", lambda: L.last_layer_gradient_norms(L.brier_loss, ARRAY, TENSOR, TARGET)),
        ("logits", lambda: L.last_layer_gradient_norms(L.brier_loss, TENSOR, ARRAY, TARGET)),
        ("logits", lambda: L.SigmoidFocalLoss().posterior(ARRAY)),
        *(("logits", lambda each=each: each(ARRAY)) for each in (L.FocalLoss(2.0).posterior, L.BrierLoss().posterior)),
        ("logits", lambda: L.InverseFocalLoss(1.0).posterior(ARRAY)),
    ]
    for name, call in calls:
        with pytest.raises(TypeError, match=f"^{name} must be a PyTorch tensor, got ndarray: torch.as_tensor"):
            call()


@pytest.mark.parametrize("weight", [[1.0, 2.0], np.ones(2)], ids=["list", "array"])
@pytest.mark.parametrize("make", [lambda w: L.FocalLoss(2.0, weight=w), lambda w: L.MMCELoss(factor=1.0, weight=w)])
def test_class_weights_are_a_tensor(make, weight):
    with pytest.raises(TypeError, match=r"weight must be a PyTorch tensor, got \w+: torch.as_tensor turns arrays"):
        make(weight)


def test_an_empty_gamma_is_rejected():
    with pytest.raises(ValueError, match="gamma must be a number or one value per class, got 0 values"):
        L.FocalLoss([])


def test_adafocal_learns_from_class_indices():
    with pytest.raises(TypeError, match=r"labels must be class indices of an integer dtype, got torch\.float32"):
        L.AdaFocal().step_epoch(torch.full((3, 2), 0.5), torch.tensor([0.0, 1.0, 0.5]))


def test_a_call_does_not_check_one_value_per_class_again(monkeypatch):
    """With many classes this would take longer than the loss."""
    logits, target = rows()
    gammas, alphas, one_hot = [0.0, 1.0, 2.0, 3.0], [0.1, 0.2, 0.3, 0.4], F.one_hot(target, 4)
    calls = [
        functools.partial(L.FocalLoss(gammas), logits, target),
        functools.partial(L.LinearFocalLoss(gammas), logits, torch.eye(4, dtype=torch.double), target),
        functools.partial(L.SigmoidFocalLoss(gammas, alpha=alphas), logits, one_hot),
    ]
    expected = [call() for call in calls]
    monkeypatch.setattr(_check, "gamma", None)
    monkeypatch.setattr(_check, "alpha", None)
    torch.testing.assert_close([call() for call in calls], expected)


def test_gammas_of_another_number_of_classes_are_rejected():
    logits, target = rows()
    message = "gamma must be a number or one value for each of 4 classes, got 3 values"
    for criterion, inputs in (
        (L.FocalLoss, (logits,)),
        (L.LinearFocalLoss, (logits, torch.eye(4, dtype=torch.double))),
    ):
        with pytest.raises(ValueError, match=message):
            criterion([0.0, 1.0, 2.0])(*inputs, target)
