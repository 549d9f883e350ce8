"""docs/how-to/which-map.md, checked: each public focal loss is minimized numerically and the documented call undoes it.

A row of free logits stands for a network that can fit anything. The test minimizes its expected loss under a known
posterior eta. The code block of the page must then return eta, and a plausible wrong call must not. Packages that are
not installed are skipped. Losses whose code is hard to install (mmcv, the gists, XGBoost) are rewritten from their
formulas.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import refocal

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = [
    # pytorch-toolbelt decorates its losses with a form of autocast that PyTorch has deprecated.
    pytest.mark.filterwarnings("ignore:.torch.cuda.amp.autocast:FutureWarning"),
    # fvcore scripts its losses on import.
    pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning"),
]

ABSENT = "other packages are not installed: `make test-peers` runs them"
PAGE = Path(__file__).parents[2] / "docs/how-to/which-map.md"

EXACT = 1e-5
FLOAT32 = 1e-3  # for losses that cast their input to float32
MISS = 0.01  # the least error of a wrong call

SOFTMAX_WEIGHT = "probs = refocal.posterior_from_logits(logits, gamma=gamma, weight=weight)"
SIGMOID = "probs = refocal.sigmoid_posterior(logits, gamma=gamma, alpha=alpha)"
SIGMOID_ALPHA_OFF = "probs = refocal.sigmoid_posterior(logits, gamma=gamma, alpha=None if alpha < 0 else alpha)"
EXCLUSIVE = "probs = refocal.sigmoid_posterior(logits, gamma=gamma, alpha=alpha, normalize=True)"

# heading of the page -> name -> code block under it
CALLS = {
    "torchvision `sigmoid_focal_loss`": {"alpha": SIGMOID_ALPHA_OFF},
    "fvcore and detectron2 `sigmoid_focal_loss`": {
        "alpha": SIGMOID_ALPHA_OFF,
        "star": "probs = refocal.sigmoid_posterior(gamma * logits, gamma=0, alpha=None if alpha < 0 else alpha)",
    },
    "kornia `focal_loss`": {
        "plain": SOFTMAX_WEIGHT,
        "alpha": """\
background_first = np.array([1 - alpha] + [alpha] * (logits.shape[-1] - 1))
probs = refocal.posterior_from_logits(logits, gamma=gamma, weight=background_first * weight)""",
    },
    "kornia `binary_focal_loss_with_logits`": {
        "alpha": SIGMOID,
        "pos_weight": """\
positive = alpha * pos_weight
probs = refocal.sigmoid_posterior(logits, gamma=gamma, alpha=positive / (positive + 1 - alpha))""",
    },
    "MONAI `FocalLoss(use_softmax=True)`": {
        "weight": SOFTMAX_WEIGHT,
        "alpha": """\
background_first = np.array([1 - alpha] + [alpha] * (logits.shape[-1] - 1))
probs = refocal.posterior_from_logits(logits, gamma=gamma, weight=background_first * weight)""",
        "foreground": "probs = refocal.posterior_from_logits(logits[..., 1:], gamma=gamma, weight=weight)",
    },
    "MONAI `FocalLoss(use_softmax=False)`": {
        "alpha": SIGMOID,
        "sequence": """\
alpha = np.asarray(alpha)
probs = refocal.sigmoid_posterior(logits, gamma=gamma, alpha=alpha / (1 + alpha))""",
    },
    "segmentation-models-pytorch `FocalLoss`": {"binary": SIGMOID, "multiclass": EXCLUSIVE},
    "timm `AsymmetricLossMultiLabel`": {
        "no clip": """\
two = np.stack([np.zeros_like(logits), logits], axis=-1)
probs = refocal.posterior_from_logits(two, gamma=[gamma_neg, gamma_pos], detached=detached)[..., 1]""",
        "clip": """\
p = 1 / (1 + np.exp(-logits))
n = 1 - np.maximum(p - clip, 0)
odds = p / refocal.phi(p, gamma=gamma_pos) * refocal.phi(n, gamma=gamma_neg) / n
probs = odds / (1 + odds)""",
        "clip, detached": """\
p = 1 / (1 + np.exp(-logits))
n = 1 - np.maximum(p - clip, 0)
odds = p / (1 - p) ** gamma_pos * (1 - n) ** gamma_neg / n
probs = odds / (1 + odds)""",
    },
    "timm `AsymmetricLossSingleLabel`": {
        "no eps": "probs = refocal.posterior_from_logits(logits, gamma=gamma_pos)",
    },
    "keras `CategoricalFocalCrossentropy`": {
        "logits": """\
probs = refocal.posterior_from_logits(logits, gamma=gamma, weight=weight, label_smoothing=label_smoothing)""",
        "softmax": """\
probs = refocal.posterior(softmax, gamma=gamma, weight=weight, label_smoothing=label_smoothing)""",
    },
    "keras `BinaryFocalCrossentropy`": {
        "logits": """\
alpha = alpha if apply_class_balancing else None
probs = refocal.sigmoid_posterior(logits, gamma=gamma, alpha=alpha)""",
    },
    "mmcv `softmax_focal_loss`": {"weight": SOFTMAX_WEIGHT},
    "mmcv and mmdetection `sigmoid_focal_loss`": {
        "alpha": SIGMOID,
        "weight": """\
probs = refocal.sigmoid_posterior(logits, gamma=gamma, alpha=alpha) / weight
probs = probs / probs.sum(axis=-1, keepdims=True)""",
    },
    "pytorch-toolbelt": {"sigmoid": SIGMOID},
    "Detached factor: clcarwin/focal_loss_pytorch and its copies": {
        "list": "probs = refocal.posterior_from_logits(logits, gamma=gamma, weight=weight, detached=True)",
        "number": """\
probs = refocal.posterior_from_logits(logits, gamma=gamma, weight=[alpha, 1 - alpha], detached=True)""",
    },
    "torch-uncertainty `FocalLoss`": {
        "alpha": "probs = refocal.posterior_from_logits(logits, gamma=gamma, weight=alpha)"
    },
    "LightGBM and XGBoost": {"margin": "probs = refocal.sigmoid_posterior(margin, gamma=gamma, alpha=alpha)"},
}


def documented(heading, name, **variables):
    """The result of a code block of the page, given its variables."""
    scope = {"np": np, "refocal": refocal, **variables}
    exec(CALLS[heading][name], scope)
    return scope["probs"]


def test_the_page_shows_exactly_these_calls():
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    shown = {}
    for section in sections:
        blocks = re.findall(r"^```python\n(.*?)\n```$", section, flags=re.MULTILINE | re.DOTALL)
        if blocks:
            shown[section.splitlines()[0]] = blocks
    assert shown == {heading: list(calls.values()) for heading, calls in CALLS.items()}


# ---------------------------------------------------------------------------------------------------- tools


def load(name, **stubs):
    """Import a module without the `__init__` of its parents, which need torchvision, OpenCV and the like."""
    root = name.partition(".")[0]
    found = importlib.util.find_spec(root)
    if found is None:
        pytest.skip(ABSENT)
    if root in sys.modules:  # imported in full by something else
        return importlib.import_module(name)
    folder = Path(found.submodule_search_locations[0])
    parents = name.split(".")[:-1]
    for depth, part in enumerate(parents):
        folder = folder / part if depth else folder
        parent = types.ModuleType(".".join(parents[: depth + 1]))
        parent.__path__ = [str(folder)]
        sys.modules[parent.__name__] = parent
    for stub, members in stubs.items():
        module = types.ModuleType(f"{root}.{stub}")
        vars(module).update(members)
        sys.modules[module.__name__] = module
    try:
        return importlib.import_module(name)
    finally:
        for key in [key for key in sys.modules if key.partition(".")[0] == root]:
            del sys.modules[key]


def posteriors(classes):
    """Rows of known class posteriors, none below 0.1 / classes."""
    rows = np.random.default_rng(classes).dirichlet(np.full(classes, 0.7), 6)
    return torch.tensor(0.9 * rows + 0.1 / classes)


def class_weights(classes):
    return np.linspace(0.5, 2.0, classes)


# One posterior per row in a single column: every sigmoid loss accepts the shape (N, 1).
POSITIVE = torch.tensor([[0.02], [0.1], [0.3], [0.5], [0.7], [0.9], [0.97]], dtype=torch.float64)


def softmax_risk(loss, eta):
    """The expected loss of logits (N, K), summed over rows; `loss` takes labels (N,) and returns N values."""
    rows, classes = eta.shape
    labels = torch.arange(classes).repeat(rows)

    def risk(logits):
        return (eta * loss(logits.repeat_interleave(classes, dim=0), labels).reshape(rows, classes)).sum()

    return risk


def sigmoid_risk(loss, eta):
    """The expected loss of logits, summed; `loss` takes targets of the same shape and returns a value for each."""

    def risk(logits):
        return (eta * loss(logits, torch.ones_like(eta)) + (1 - eta) * loss(logits, torch.zeros_like(eta))).sum()

    return risk


def each_row(loss):
    """The values of a loss that always reduces, one row at a time."""

    def values(logits, target):
        rows = [loss(logits[i : i + 1], target[i : i + 1]) for i in range(len(logits))]
        return torch.stack(rows).reshape(target.shape)

    return values


def newton_step(risk, logits):
    """The Newton step of every row; if the factor is detached, it is taken as a constant."""
    leaf = logits.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(risk(leaf), leaf, create_graph=True)
    columns = [torch.autograd.grad(gradient[:, k].sum(), leaf, retain_graph=True)[0] for k in range(leaf.shape[1])]
    inverse = torch.linalg.pinv(torch.stack(columns, dim=1), rtol=1e-9, hermitian=True)
    return (inverse @ gradient.detach().unsqueeze(-1)).squeeze(-1)


def minimize(risk, shape, *, polish=True):
    """The logits that minimize a risk, from zero; `polish` is for losses computed in float64."""
    logits = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logits],
        max_iter=500,
        history_size=30,
        tolerance_grad=1e-9,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        value = risk(logits)
        value.backward()
        return value

    optimizer.step(closure)
    result = logits.detach()
    for _ in range(2 if polish else 0):
        result = result - newton_step(risk, result)
    return result.numpy()


def settle(risk, shape, *, damping=0.3, steps=150):
    """Where training stops if a factor is detached: the gradient is zero, but the loss has no minimum there."""
    logits = torch.zeros(shape, dtype=torch.float64)
    for _ in range(steps):
        step = newton_step(risk, logits)
        logits = logits - damping * step
    assert step.abs().max() < 1e-9
    return logits.numpy()


def miss(probs, eta):
    return np.abs(np.asarray(probs) - np.asarray(eta)).max()


def softmax_focal(gamma, weight=None, *, detached=False):
    """The textbook softmax loss, for packages that cannot be installed."""

    def loss(logits, labels):
        log_p = F.log_softmax(logits, dim=-1).gather(1, labels[:, None])[:, 0]
        p = log_p.detach().exp() if detached else log_p.exp()
        scale = 1.0 if weight is None else torch.as_tensor(weight)[labels]
        return -scale * (1 - p) ** gamma * log_p

    return loss


def sigmoid_focal(gamma, alpha=None):
    """The textbook sigmoid loss, for packages that cannot be installed."""

    def loss(logits, target):
        positive = -(torch.sigmoid(-logits) ** gamma) * F.logsigmoid(logits)
        negative = -(torch.sigmoid(logits) ** gamma) * F.logsigmoid(-logits)
        if alpha is not None:
            positive, negative = alpha * positive, (1 - alpha) * negative
        return target * positive + (1 - target) * negative

    return loss


each_k = pytest.mark.parametrize("classes", [2, 3, 10])
each_gamma = pytest.mark.parametrize("gamma", [1, 2, 3])


# ---------------------------------------------------------------------------------------------------- sigmoid losses


@each_gamma
@pytest.mark.parametrize("alpha", [-1, 0.25])
@pytest.mark.parametrize("code", ["formula", "package"])
def test_torchvision(gamma, alpha, code):
    heading = "torchvision `sigmoid_focal_loss`"
    loss = sigmoid_focal(gamma, None if alpha < 0 else alpha)
    if code == "package":
        module = load("torchvision.ops.focal_loss", utils={"_log_api_usage_once": lambda _: None})
        loss = functools.partial(module.sigmoid_focal_loss, gamma=gamma, alpha=alpha)
    logits = minimize(sigmoid_risk(loss, POSITIVE), POSITIVE.shape)
    assert miss(documented(heading, "alpha", logits=logits, gamma=gamma, alpha=alpha), POSITIVE) < EXACT
    assert miss(1 / (1 + np.exp(-logits)), POSITIVE) > MISS
    if alpha > 0:
        assert miss(refocal.sigmoid_posterior(logits, gamma=gamma), POSITIVE) > MISS
        assert miss(refocal.sigmoid_posterior(logits, gamma=gamma, alpha=1 - alpha), POSITIVE) > MISS


@each_gamma
@pytest.mark.parametrize("alpha", [-1, 0.25])
def test_fvcore(gamma, alpha):
    heading = "fvcore and detectron2 `sigmoid_focal_loss`"
    focal = load("fvcore.nn.focal_loss")
    variables = {"gamma": gamma, "alpha": alpha}

    def plain(logits, target):
        return focal.sigmoid_focal_loss(logits, target, **variables)

    logits = minimize(sigmoid_risk(plain, POSITIVE), POSITIVE.shape, polish=False)
    assert miss(documented(heading, "alpha", logits=logits, **variables), POSITIVE) < FLOAT32
    assert miss(1 / (1 + np.exp(-logits)), POSITIVE) > MISS

    def star(logits, target):
        return focal.sigmoid_focal_loss_star(logits, target, **variables)

    logits = minimize(sigmoid_risk(star, POSITIVE), POSITIVE.shape, polish=False)
    assert miss(documented(heading, "star", logits=logits, **variables), POSITIVE) < FLOAT32
    assert miss(documented(heading, "alpha", logits=logits, **variables), POSITIVE) > MISS


@each_gamma
def test_kornia_binary(gamma):
    heading = "kornia `binary_focal_loss_with_logits`"
    losses = pytest.importorskip("kornia.losses", reason=ABSENT)
    alpha = 0.25
    eta = posteriors(3)

    def loss(logits, target):
        return losses.binary_focal_loss_with_logits(logits, target, alpha=alpha, gamma=gamma)

    logits = minimize(sigmoid_risk(loss, eta), eta.shape)
    assert miss(documented(heading, "alpha", logits=logits, gamma=gamma, alpha=alpha), eta) < EXACT
    assert miss(refocal.sigmoid_posterior(logits, gamma=gamma), eta) > MISS

    pos_weight = np.array([0.5, 2.0, 8.0])
    weight = torch.tensor([3.0, 1.0, 0.2], dtype=torch.float64)  # scales a channel: no influence

    def weighted(logits, target):
        return losses.binary_focal_loss_with_logits(
            logits, target, alpha=alpha, gamma=gamma, pos_weight=torch.tensor(pos_weight), weight=weight
        )

    logits = minimize(sigmoid_risk(weighted, eta), eta.shape)
    variables = {"logits": logits, "gamma": gamma, "alpha": alpha, "pos_weight": pos_weight}
    assert miss(documented(heading, "pos_weight", **variables), eta) < EXACT
    assert miss(documented(heading, "alpha", **variables), eta) > MISS

    alpha = None  # read by the loss above; the page says to put 0.5 into the call
    logits = minimize(sigmoid_risk(weighted, eta), eta.shape)
    assert miss(documented(heading, "pos_weight", **variables | {"logits": logits, "alpha": 0.5}), eta) < EXACT


@each_gamma
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_monai_sigmoid(gamma, alpha):
    heading = "MONAI `FocalLoss(use_softmax=False)`"
    losses = pytest.importorskip("monai.losses", reason=ABSENT)
    eta = posteriors(3)
    loss = losses.FocalLoss(gamma=gamma, alpha=alpha, weight=[3.0, 1.0, 0.2], reduction="none")
    logits = minimize(sigmoid_risk(loss, eta), eta.shape, polish=False)
    assert miss(documented(heading, "alpha", logits=logits, gamma=gamma, alpha=alpha), eta) < FLOAT32
    assert miss(refocal.posterior_from_logits(logits, gamma=gamma), eta) > MISS


@each_gamma
def test_monai_sigmoid_with_one_alpha_a_class(gamma):
    heading = "MONAI `FocalLoss(use_softmax=False)`"
    losses = pytest.importorskip("monai.losses", reason=ABSENT)
    eta = posteriors(3)
    alpha = [0.2, 0.5, 0.8]
    loss = losses.FocalLoss(gamma=gamma, alpha=alpha, reduction="none")
    logits = minimize(sigmoid_risk(loss, eta), eta.shape, polish=False)
    assert miss(documented(heading, "sequence", logits=logits, gamma=gamma, alpha=alpha), eta) < FLOAT32
    assert miss(documented(heading, "alpha", logits=logits, gamma=gamma, alpha=alpha), eta) > MISS


def test_monai_sigmoid_without_background():
    heading = "MONAI `FocalLoss(use_softmax=False)`"
    losses = pytest.importorskip("monai.losses", reason=ABSENT)
    eta = posteriors(3)
    loss = losses.FocalLoss(include_background=False, alpha=0.25, reduction="none")
    risk = sigmoid_risk(lambda x, y: F.pad(loss(x, y), (1, 0)), eta)
    logits = minimize(risk, eta.shape, polish=False)
    foreground = documented(heading, "alpha", logits=logits, gamma=2, alpha=0.25)[:, 1:]
    assert miss(foreground, eta[:, 1:]) < FLOAT32
    assert np.all(logits[:, 0] == 0)  # the background's logit is not trained


@each_gamma
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_smp_binary(gamma, alpha):
    heading = "segmentation-models-pytorch `FocalLoss`"
    loss = load("segmentation_models_pytorch.losses.focal").FocalLoss("binary", alpha=alpha, gamma=gamma)
    logits = minimize(sigmoid_risk(each_row(loss), POSITIVE), POSITIVE.shape)
    assert miss(documented(heading, "binary", logits=logits, gamma=gamma, alpha=alpha), POSITIVE) < EXACT
    assert miss(1 / (1 + np.exp(-logits)), POSITIVE) > MISS


@each_gamma
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_smp_multilabel(gamma, alpha):
    heading = "segmentation-models-pytorch `FocalLoss`"
    focal = load("segmentation_models_pytorch.losses.focal")
    loss = focal.FocalLoss("multilabel", alpha=alpha, gamma=gamma, class_weights=[3.0])
    logits = minimize(sigmoid_risk(each_row(loss), POSITIVE), POSITIVE.shape)
    assert miss(documented(heading, "binary", logits=logits, gamma=gamma, alpha=alpha), POSITIVE) < EXACT


@each_k
@pytest.mark.parametrize(("gamma", "alpha", "weighted"), [(1, None, False), (2, 0.25, True), (3, None, True)])
def test_smp_multiclass(classes, gamma, alpha, weighted):
    heading = "segmentation-models-pytorch `FocalLoss`"
    focal = load("segmentation_models_pytorch.losses.focal")
    weights = list(class_weights(classes)) if weighted else None
    loss = focal.FocalLoss("multiclass", alpha=alpha, gamma=gamma, class_weights=weights)
    eta = posteriors(classes)[:3]  # few rows: the loss is called once per row and class
    logits = minimize(softmax_risk(each_row(loss), eta), eta.shape)
    assert miss(documented(heading, "multiclass", logits=logits, gamma=gamma, alpha=alpha), eta) < EXACT
    assert miss(refocal.posterior_from_logits(logits, gamma=gamma), eta) > MISS
    if weighted:  # class_weights scale a whole channel
        assert miss(refocal.posterior_from_logits(logits, gamma=gamma, weight=weights), eta) > MISS


@pytest.mark.parametrize(("option", "off"), [({"normalized": True}, 0.13), ({"reduced_threshold": 0.5}, 0.20)])
def test_smp_options_without_a_map(option, off):
    focal = load("segmentation_models_pytorch.losses.focal")
    loss = focal.FocalLoss("binary", reduction="sum", **option)
    # One batch with 100 pixels for each posterior, of which the share eta is positive.
    target = (torch.arange(100) < torch.round(100 * POSITIVE)).double()
    logits = minimize(lambda x: loss(x.expand(-1, 100), target), POSITIVE.shape, polish=False)
    assert miss(refocal.sigmoid_posterior(logits, gamma=2), POSITIVE) == pytest.approx(off, abs=0.005)


@each_gamma
@pytest.mark.parametrize("apply_class_balancing", [False, True])
def test_keras_binary(keras, gamma, apply_class_balancing):
    heading = "keras `BinaryFocalCrossentropy`"
    settings = {"gamma": gamma, "alpha": 0.25, "apply_class_balancing": apply_class_balancing}

    def loss(logits, target):
        return keras.losses.binary_focal_crossentropy(target, logits, from_logits=True, **settings)[:, None]

    logits = minimize(sigmoid_risk(loss, POSITIVE), POSITIVE.shape)
    assert miss(documented(heading, "logits", logits=logits, **settings), POSITIVE) < EXACT
    wrong = None if apply_class_balancing else 0.25  # alpha is ignored unless balancing is on
    assert miss(refocal.sigmoid_posterior(logits, gamma=gamma, alpha=wrong), POSITIVE) > MISS


def test_keras_binary_label_smoothing_has_no_map(keras):
    def loss(logits, target):
        return keras.losses.binary_focal_crossentropy(target, logits, from_logits=True, label_smoothing=0.2)[:, None]

    logits = minimize(sigmoid_risk(loss, POSITIVE), POSITIVE.shape)
    two = np.concatenate([np.zeros_like(logits), logits], axis=-1)
    assert miss(refocal.posterior_from_logits(two, gamma=2, label_smoothing=0.2)[:, 1:], POSITIVE) == pytest.approx(
        0.086, abs=0.002
    )
    assert miss(refocal.sigmoid_posterior(logits, gamma=2), POSITIVE) > MISS


@each_k
@each_gamma
def test_mmcv_sigmoid(classes, gamma):
    heading = "mmcv and mmdetection `sigmoid_focal_loss`"
    alpha = 0.25
    eta = posteriors(classes)
    weight = class_weights(classes)
    focal = sigmoid_focal(gamma, alpha)

    def plain(logits, labels):
        return focal(logits, F.one_hot(labels, classes)).sum(dim=-1)

    logits = minimize(softmax_risk(plain, eta), eta.shape)
    assert miss(documented(heading, "alpha", logits=logits, gamma=gamma, alpha=alpha), eta) < EXACT
    assert miss(refocal.posterior_from_logits(logits, gamma=gamma), eta) > MISS

    def weighted(logits, labels):  # the weight of the true class scales the whole row
        return torch.tensor(weight)[labels] * plain(logits, labels)

    logits = minimize(softmax_risk(weighted, eta), eta.shape)
    variables = {"logits": logits, "gamma": gamma, "alpha": alpha, "weight": weight}
    assert miss(documented(heading, "weight", **variables), eta) < EXACT
    assert miss(documented(heading, "alpha", **variables), eta) > MISS


@each_gamma
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_toolbelt_binary(toolbelt, gamma, alpha):
    loss = toolbelt.BinaryFocalLoss(alpha=alpha, gamma=gamma, reduction="none", class_weights=[3.0, 1.0, 0.2])
    eta = posteriors(3)
    logits = minimize(sigmoid_risk(loss, eta), eta.shape, polish=False)
    assert miss(documented("pytorch-toolbelt", "sigmoid", logits=logits, gamma=gamma, alpha=alpha), eta) < FLOAT32
    assert miss(1 / (1 + np.exp(-logits)), eta) > MISS


@each_k
@each_gamma
def test_toolbelt_cross_entropy_has_no_map(toolbelt, classes, gamma):
    loss = toolbelt.CrossEntropyFocalLoss(gamma=gamma, reduction="none")
    eta = posteriors(classes)
    logits = minimize(softmax_risk(lambda x, y: loss(x, y).double(), eta), eta.shape, polish=False)
    assert 0.05 < miss(refocal.posterior_from_logits(logits, gamma=gamma), eta) < 0.31
    assert 0.045 < miss(refocal.sigmoid_posterior(logits, gamma=gamma, normalize=True), eta) < 0.545


@each_k
@each_gamma
def test_toolbelt_binary_with_softmax_has_no_map(toolbelt, classes, gamma):
    loss = toolbelt.BinaryFocalLoss(gamma=gamma, reduction="none", activation="softmax", softmax_dim=1)
    eta = posteriors(classes)
    logits = minimize(softmax_risk(lambda x, y: loss(x, y).sum(dim=1), eta), eta.shape, polish=False)
    assert miss(refocal.posterior_from_logits(logits, gamma=gamma), eta) > MISS
    assert miss(refocal.sigmoid_posterior(logits, gamma=gamma, normalize=True), eta) > MISS


@each_gamma
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_boosting(gamma, alpha):
    """Newton boosting of a margin with one leaf per row, by the gradient and a positive bound on the curvature."""
    loss = sigmoid_focal(gamma, alpha)
    margin = torch.zeros_like(POSITIVE)
    for _ in range(500):
        leaf = margin.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(sigmoid_risk(loss, POSITIVE)(leaf), leaf, create_graph=True)
        (curvature,) = torch.autograd.grad(gradient.sum(), leaf)
        margin = leaf.detach() - 0.1 * gradient.detach() / curvature.abs().clamp(min=1e-3)
    margin = margin.numpy()
    probs = documented("LightGBM and XGBoost", "margin", margin=margin, gamma=gamma, alpha=alpha)
    assert miss(probs, POSITIVE) < EXACT
    assert miss(1 / (1 + np.exp(-margin)), POSITIVE) > MISS


@pytest.mark.parametrize("alpha", [None, 0.25])
def test_lightgbm(alpha):
    """LightGBM itself; it keeps gradients in float32."""
    lightgbm = pytest.importorskip("lightgbm", reason=ABSENT)
    loss = sigmoid_focal(2, alpha)
    labels = (torch.arange(100) < torch.round(100 * POSITIVE)).double().flatten()
    features = np.repeat(np.arange(len(POSITIVE)), 100)[:, None].astype(float)

    def objective(margin, _):
        leaf = torch.tensor(margin, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss(leaf, labels).sum(), leaf, create_graph=True)
        (curvature,) = torch.autograd.grad(gradient.sum(), leaf)
        return gradient.detach().numpy(), curvature.abs().clamp(min=1e-3).numpy()

    options = {"objective": objective, "min_sum_hessian_in_leaf": 0, "verbosity": -1, "num_threads": 1}
    booster = lightgbm.train(options, lightgbm.Dataset(features, labels.numpy()), num_boost_round=400)
    margin = booster.predict(features[::100], raw_score=True)[:, None]
    probs = documented("LightGBM and XGBoost", "margin", margin=margin, gamma=2, alpha=alpha)
    assert miss(probs, POSITIVE) < FLOAT32
    assert miss(1 / (1 + np.exp(-margin)), POSITIVE) > MISS


# ---------------------------------------------------------------------------------------------------- softmax losses


@each_k
@each_gamma
def test_kornia(classes, gamma):
    heading = "kornia `focal_loss`"
    losses = pytest.importorskip("kornia.losses", reason=ABSENT)
    eta = posteriors(classes)
    weight = class_weights(classes)

    def loss(alpha):
        return lambda logits, labels: losses.focal_loss(
            logits, labels, alpha=alpha, gamma=gamma, weight=torch.tensor(weight)
        ).sum(dim=1)

    variables = {"gamma": gamma, "weight": weight}
    logits = minimize(softmax_risk(loss(None), eta), eta.shape)
    assert miss(documented(heading, "plain", logits=logits, **variables), eta) < EXACT
    assert miss(refocal.posterior_from_logits(logits, gamma=gamma), eta) > MISS

    logits = minimize(softmax_risk(loss(0.25), eta), eta.shape)
    assert miss(documented(heading, "alpha", logits=logits, alpha=0.25, **variables), eta) < EXACT
    assert miss(documented(heading, "alpha", logits=logits, alpha=0.75, **variables), eta) > MISS
    assert miss(documented(heading, "plain", logits=logits, **variables), eta) > MISS


@each_k
@each_gamma
def test_monai_softmax(classes, gamma):
    heading = "MONAI `FocalLoss(use_softmax=True)`"
    losses = pytest.importorskip("monai.losses", reason=ABSENT)
    eta = posteriors(classes)
    weight = class_weights(classes)
    settings = {"use_softmax": True, "gamma": gamma, "reduction": "none"}

    def solve(**options):
        loss = losses.FocalLoss(**settings, **options)
        return minimize(
            softmax_risk(lambda x, y: loss(x, F.one_hot(y, classes)).sum(dim=1), eta), eta.shape, polish=False
        )

    for options in ({"weight": weight}, {"alpha": list(weight)}):
        logits = solve(**options)
        assert miss(documented(heading, "weight", logits=logits, gamma=gamma, weight=weight), eta) < FLOAT32
        assert miss(refocal.posterior_from_logits(logits, gamma=gamma), eta) > MISS

    logits = solve(alpha=0.25, weight=weight)
    variables = {"logits": logits, "gamma": gamma, "alpha": 0.25, "weight": weight}
    assert miss(documented(heading, "alpha", **variables), eta) < FLOAT32
    assert miss(documented(heading, "weight", **variables), eta) > MISS

    if classes > 2:
        weight = weight[1:]
        logits = solve(weight=weight, include_background=False)
        foreground = eta[:, 1:] / eta[:, 1:].sum(dim=1, keepdim=True)
        variables = {"logits": logits, "gamma": gamma, "weight": weight}
        assert miss(documented(heading, "foreground", **variables), foreground) < FLOAT32
        assert miss(refocal.posterior_from_logits(logits, gamma=gamma), eta) > MISS


@each_k
@each_gamma
def test_keras_categorical(keras, classes, gamma):
    heading = "keras `CategoricalFocalCrossentropy`"
    eta = posteriors(classes)
    weight = class_weights(classes)
    cases = ((0.25, None, 0.0), (weight, weight, 0.0), (weight, weight, 0.05), (weight, weight, 0.1))
    for alpha, weights, label_smoothing in cases:
        settings = {"alpha": torch.tensor(alpha), "gamma": gamma, "label_smoothing": label_smoothing}

        def loss(logits, labels, settings=settings):
            target = F.one_hot(labels, classes).double()
            return keras.losses.categorical_focal_crossentropy(target, logits, from_logits=True, **settings)

        logits = minimize(softmax_risk(loss, eta), eta.shape)
        softmax = torch.softmax(torch.tensor(logits), dim=-1).numpy()
        variables = {"gamma": gamma, "weight": weights, "label_smoothing": label_smoothing}
        assert miss(refocal.posterior_from_logits(logits, **variables, smoothing_edge="exact"), eta) < EXACT
        near_edge = ((1 - label_smoothing) * eta < label_smoothing / classes).any()  # smoothed, below 2 smoothing / K
        most = 1e-3 if near_edge else EXACT
        assert miss(documented(heading, "logits", logits=logits, **variables), eta) < most
        assert miss(documented(heading, "softmax", softmax=softmax, **variables), eta) < most
        assert miss(softmax, eta) > MISS
        if label_smoothing:
            assert miss(refocal.posterior_from_logits(logits, gamma=gamma, weight=weights), eta) > MISS


@each_k
@each_gamma
def test_mmcv_softmax(classes, gamma):
    heading = "mmcv `softmax_focal_loss`"
    eta = posteriors(classes)
    weight = class_weights(classes)
    alpha = 0.25  # one number for all classes
    logits = minimize(softmax_risk(softmax_focal(gamma, alpha * weight), eta), eta.shape)
    assert miss(documented(heading, "weight", logits=logits, gamma=gamma, weight=weight), eta) < EXACT
    assert miss(refocal.posterior_from_logits(logits, gamma=gamma), eta) > MISS


@each_k
@each_gamma
def test_detached(classes, gamma):
    heading = "Detached factor: clcarwin/focal_loss_pytorch and its copies"
    eta = posteriors(classes)
    weight = class_weights(classes)
    logits = settle(softmax_risk(softmax_focal(gamma, weight, detached=True), eta), eta.shape)
    variables = {"logits": logits, "gamma": gamma, "weight": weight}
    assert miss(documented(heading, "list", **variables), eta) < EXACT
    assert miss(refocal.posterior_from_logits(**variables), eta) > MISS
    if classes == 2:
        alpha = 0.25
        logits = settle(softmax_risk(softmax_focal(gamma, [alpha, 1 - alpha], detached=True), eta), eta.shape)
        assert miss(documented(heading, "number", logits=logits, gamma=gamma, alpha=alpha), eta) < EXACT
        assert miss(documented(heading, "number", logits=logits, gamma=gamma, alpha=1 - alpha), eta) > MISS


@each_k
@each_gamma
def test_torch_uncertainty(classes, gamma):
    heading = "torch-uncertainty `FocalLoss`"
    losses = load("torch_uncertainty.losses.classification")
    eta = posteriors(classes)
    alpha = class_weights(classes)
    loss = losses.FocalLoss(gamma=gamma, alpha=torch.tensor(alpha), reduction="none")
    logits = minimize(softmax_risk(loss, eta), eta.shape)
    assert miss(documented(heading, "alpha", logits=logits, gamma=gamma, alpha=alpha), eta) < EXACT
    assert miss(refocal.posterior_from_logits(logits, gamma=gamma), eta) > MISS


# ---------------------------------------------------------------------------------------------------- asymmetric losses


@pytest.mark.parametrize(("gamma_pos", "gamma_neg"), [(1, 4), (0, 4), (2, 2), (3, 1)])
@pytest.mark.parametrize("clip", [0, 0.05])
@pytest.mark.parametrize("detached", [False, True])
def test_timm_multi_label(gamma_pos, gamma_neg, clip, detached):
    heading = "timm `AsymmetricLossMultiLabel`"
    settings = {"gamma_pos": gamma_pos, "gamma_neg": gamma_neg, "clip": clip}
    asymmetric = load("timm.loss.asymmetric_loss")
    loss = asymmetric.AsymmetricLossMultiLabel(**settings, disable_torch_grad_focal_loss=detached)
    eta = POSITIVE if gamma_pos else POSITIVE[:-1]  # see the test below
    logits = (settle if detached else minimize)(sigmoid_risk(each_row(loss), eta), eta.shape)
    unclipped = documented(heading, "no clip", logits=logits, detached=detached, **settings)
    clipped = documented(heading, "clip, detached" if detached else "clip", logits=logits, **settings)
    assert miss(clipped, eta) < EXACT
    if clip:
        assert miss(unclipped, eta) > MISS
        if (gamma_pos, gamma_neg, detached) == (1, 4, False):  # the defaults; row 3 has a posterior of 0.5
            assert unclipped[3, 0] == pytest.approx(0.6, abs=0.005)
    else:
        assert miss(unclipped, eta) < EXACT
    assert miss(1 / (1 + np.exp(-logits)), eta) > MISS


def test_timm_multi_label_clip_hides_high_posteriors():
    """With gamma_pos = 0 a clipped negative costs too little: above a bound every posterior drives the score to 1."""
    asymmetric = load("timm.loss.asymmetric_loss")
    loss = asymmetric.AsymmetricLossMultiLabel(gamma_pos=0, gamma_neg=4, clip=0.05)
    odds = float(refocal.phi(np.array(0.05), gamma=4)) / 0.05
    bound = odds / (1 + odds)
    assert round(bound, 4) == 0.9637
    logits = torch.full((1,), 15.0, dtype=torch.float64, requires_grad=True)
    for eta, pushed_up in ((bound - 1e-3, False), (bound + 1e-3, True), (0.999, True)):
        risk = sigmoid_risk(loss, torch.tensor([eta], dtype=torch.float64))(logits)
        (gradient,) = torch.autograd.grad(risk, logits)
        assert bool(gradient < 0) is pushed_up


def test_timm_multi_label_clip_hides_low_posteriors():
    """With gamma_neg = 0 the slope of a negative jumps at the clip: below a bound every posterior ends there."""
    asymmetric = load("timm.loss.asymmetric_loss")
    loss = asymmetric.AsymmetricLossMultiLabel(gamma_pos=1, gamma_neg=0, clip=0.05)
    odds = 0.05 / float(refocal.phi(np.array(0.05), gamma=1))
    bound = odds / (1 + odds)
    for eta, falls in ((bound + 1e-3, False), (bound - 1e-3, True), (0.001, True)):
        for side, negative in ((1e-6, not falls), (-1e-6, True)):
            p = 0.05 + side
            logits = torch.logit(torch.tensor([p], dtype=torch.float64)).requires_grad_()
            risk = sigmoid_risk(loss, torch.tensor([eta], dtype=torch.float64))(logits)
            (gradient,) = torch.autograd.grad(risk, logits)
            assert bool(gradient < 0) is negative


@each_k
@pytest.mark.parametrize(("gamma_pos", "gamma_neg"), [(1, 4), (2, 4), (3, 1)])
def test_timm_single_label(classes, gamma_pos, gamma_neg):
    heading = "timm `AsymmetricLossSingleLabel`"
    asymmetric = load("timm.loss.asymmetric_loss")
    eta = posteriors(classes)

    def solve(eps):
        loss = asymmetric.AsymmetricLossSingleLabel(gamma_pos, gamma_neg, eps=eps, reduction="none")
        return minimize(softmax_risk(loss, eta), eta.shape)

    logits = solve(eps=0.0)
    assert miss(documented(heading, "no eps", logits=logits, gamma_pos=gamma_pos), eta) < EXACT
    assert miss(refocal.posterior_from_logits(logits, gamma=gamma_neg), eta) > MISS


@each_k
def test_timm_single_label_default_smoothing(classes):
    """With eps > 0 the map is an approximation; undoing label smoothing makes it worse."""
    heading = "timm `AsymmetricLossSingleLabel`"
    asymmetric = load("timm.loss.asymmetric_loss")
    eta = posteriors(classes)
    loss = asymmetric.AsymmetricLossSingleLabel(reduction="none")
    logits = minimize(softmax_risk(loss, eta), eta.shape)
    error = miss(documented(heading, "no eps", logits=logits, gamma_pos=1), eta)
    assert 0.0002 < error < 0.00075
    assert 0.035 < miss(refocal.posterior_from_logits(logits, gamma=1, label_smoothing=0.1), eta) < 0.065


# ---------------------------------------------------------------------------------------------------- fixtures


@pytest.fixture(scope="module")
def keras():
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason=ABSENT)
    if keras.backend.backend() != "torch":
        pytest.skip("keras runs on another backend")
    return keras


@pytest.fixture(scope="module")
def toolbelt():
    return load("pytorch_toolbelt.losses.focal", utils={"pytorch_toolbelt_deprecated": lambda _: lambda loss: loss})
