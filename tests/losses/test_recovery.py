"""The test that a wrong map cannot pass: minimize the expected loss and recover the posterior."""

from __future__ import annotations

import pytest
from scipy.optimize import minimize, root

torch = pytest.importorskip("torch")

from refocal import losses as L  # noqa: E402
from refocal.losses import FocalLoss  # noqa: E402


def posteriors(classes, rows=4):
    generator = torch.Generator().manual_seed(classes)
    spread = torch.tensor([0.3, 1.0, 2.0, 0.1], dtype=torch.double)[:rows, None]
    return torch.softmax(spread * torch.randn(rows, classes, generator=generator, dtype=torch.double), dim=1)


def risk_and_gradient(criterion, eta, free):
    """The expected loss, averaged over labels drawn from eta as in training; the last logit is 0."""
    leaf = torch.from_numpy(free).requires_grad_()
    logits = torch.cat([leaf, torch.zeros(1, dtype=torch.double)])
    risk = (eta * criterion(logits.expand(len(eta), -1), torch.arange(len(eta)))).sum()
    (gradient,) = torch.autograd.grad(risk, leaf)
    return risk.item(), gradient.numpy()


def where_training_ends(criterion, eta):
    """Logits that minimize the expected loss; if the factor is detached, logits at which the gradient vanishes."""

    def field(free):
        return risk_and_gradient(criterion, eta, free)

    start = least = 0.5 * (torch.log(eta[:-1]) - torch.log(eta[-1])).numpy()
    has_least = not getattr(criterion, "detached", False)
    if has_least:
        least = minimize(field, start, jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-8}).x
        assert field(least)[0] < field(start)[0]
    # SciPy's root search, with its own finite differences, gives the last digits.
    found = root(lambda free: field(free)[1], least, tol=1e-13)
    assert abs(field(found.x)[1]).max() < 1e-10, found.message
    assert not has_least or field(found.x)[0] < field(least)[0] + 1e-14
    return torch.cat([torch.from_numpy(found.x), torch.zeros(1, dtype=torch.double)])


def settings(classes):
    weight = torch.linspace(0.5, 2.0, classes, dtype=torch.double)
    gammas = torch.linspace(0.0, 2.0, classes).tolist()
    return {
        "focal": FocalLoss(2.0, reduction="none"),
        "focal below 1": FocalLoss(0.5, reduction="none"),
        "weights": FocalLoss(2.0, weight=weight, reduction="none"),
        "smoothing": FocalLoss(2.0, label_smoothing=0.1, smoothing_edge="exact", reduction="none"),
        "per class": FocalLoss(gammas, reduction="none"),
        "everything": FocalLoss(gammas, weight=weight, label_smoothing=0.05, smoothing_edge="exact", reduction="none"),
        "detached": FocalLoss(2.0, detached=True, reduction="none"),
        "detached weights": FocalLoss(1.0, weight=weight, detached=True, reduction="none"),
        "brier": L.BrierLoss(reduction="none"),
        "inverse focal": L.InverseFocalLoss(0.7, weight=weight, reduction="none"),
        "inverse focal of 1": L.InverseFocalLoss(1.0, reduction="none"),
        "cross-entropy": FocalLoss(0.0, reduction="none"),
        "cross-entropy, weights": FocalLoss(0.0, weight=weight, reduction="none"),
        "proper part": L.ProperFocalLoss(2.0, reduction="none"),
        "proper part, everything": L.ProperFocalLoss(gammas, weight=weight, reduction="none"),
    }


PROPER = ("brier", "cross-entropy", "proper part")


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("name", list(settings(2)))
@pytest.mark.thorough
def test_softmax_losses(classes, name):
    criterion = settings(classes)[name]
    eta = posteriors(classes, rows=1 if classes == 100 else 4)
    logits = torch.stack([where_training_ends(criterion, row) for row in eta])
    torch.testing.assert_close(criterion.posterior(logits), eta, rtol=0, atol=1e-6)
    if name not in PROPER:
        assert (torch.softmax(logits, dim=1) - eta).abs().max() > 1e-4, (
            "the softmax is the posterior: nothing is tested"
        )


@pytest.mark.parametrize("alpha", [None, 0.25, [0.1, 0.5, 0.9]])
@pytest.mark.parametrize("gamma", [0.5, 2.0, [0.0, 1.0, 3.0]])
def test_sigmoid_losses_with_hard_and_soft_targets(alpha, gamma):
    eta = torch.tensor([0.02, 0.5, 0.9], dtype=torch.double)
    criterion = L.SigmoidFocalLoss(gamma, alpha=alpha, reduction="none")

    def by_labels(x):
        return (eta * criterion(x, torch.ones_like(x)) + (1 - eta) * criterion(x, torch.zeros_like(x))).sum()

    def by_soft_targets(x):
        return criterion(x, eta).sum()

    for risk in (by_labels, by_soft_targets):
        x = torch.zeros(3, dtype=torch.double)
        for _ in range(100):
            leaf = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(risk(leaf), leaf, create_graph=True)
            (curvature,) = torch.autograd.grad(slope.sum(), leaf)
            x = x - (slope.detach() / curvature.abs().clamp(min=1e-3)).clamp(-1, 1)
        assert slope.abs().max() < 1e-10
        torch.testing.assert_close(criterion.posterior(x), eta, rtol=0, atol=1e-6)


def batch_at_the_truth(eta):
    """A hundred labels in the proportions of eta, all with the same scores."""
    return torch.repeat_interleave(torch.arange(len(eta)), (100 * eta).round().long())


@pytest.mark.parametrize("weight", [None, torch.full((3,), 2.0, dtype=torch.double)])
def test_mmce_added_to_cross_entropy_leaves_the_softmax(weight):
    eta = torch.tensor([0.6, 0.3, 0.1], dtype=torch.double)
    labels = batch_at_the_truth(eta)
    criterion = L.MMCELoss(2.0, weight=weight)

    def risk(logits):
        return float(criterion(torch.as_tensor(logits).expand(100, 3), labels))

    # MMCE is 0 at the minimum and has a kink there, so no gradient vanishes.
    found = minimize(risk, [1.0, 0.5, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    torch.testing.assert_close(criterion.posterior(torch.from_numpy(found.x)), eta, rtol=0, atol=1e-6)


def test_mmce_with_class_weights_or_in_its_weighted_form_has_its_minimum_elsewhere():
    eta, weight = torch.tensor([0.6, 0.3, 0.1], dtype=torch.double), torch.tensor([0.5, 1.0, 3.0], dtype=torch.double)
    for criterion, at, reason in (
        (L.MMCELoss(2.0, weight=weight), weight * eta, "class weights move the minimum of cross-entropy"),
        (L.MMCELoss(2.0, weighted=True), eta, "its weighted form is not 0 at the true posterior"),
    ):
        of_cross_entropy = torch.log(at).requires_grad_()
        (pull,) = torch.autograd.grad(
            criterion(of_cross_entropy.expand(100, 3), batch_at_the_truth(eta)), of_cross_entropy
        )
        assert pull.abs().max() > 0.1
        with pytest.raises(L.NoPosteriorError, match=rf"{reason}.*fit refocal.*FocalTemperature"):
            criterion.posterior(of_cross_entropy[None])
