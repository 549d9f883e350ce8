"""Invalid arguments of the public functions are rejected, with messages that name the argument and the row."""

from __future__ import annotations

import numpy as np
import pytest

import refocal
from arrays import spoil

LOGITS = np.array([[1.0, 0.0, -1.0], [0.0, 0.0, 0.0], [2.0, 1.0, 0.0]])
PROBS = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])


BAD_LOGITS = [
    (np.array([[1, 2, 3]]), TypeError, "logits must have a floating-point dtype, got int64"),
    ("abc", TypeError, "logits must be an array"),
    (np.array(1.0), ValueError, r"logits must have shape \(..., classes\)"),
    (np.zeros((4, 1)), ValueError, r"logits must have at least 2 classes.*\(4, 1\)"),
    (np.zeros((4, 0)), ValueError, "at least 2 classes"),
    (spoil(LOGITS, (1, 2), np.nan), ValueError, "logits must be finite.*got nan in row 1"),
    (spoil(LOGITS, (2, 0), np.inf), ValueError, "got inf in row 2"),
    (spoil(LOGITS, (0, slice(None)), -np.inf), ValueError, "got -inf in row 0"),
    (spoil(LOGITS, (1, 2), np.nan).reshape(1, 3, 3), ValueError, r"in row \(0, 1\)"),
]
BAD_PROBS = [
    (np.array([[1, 0]]), TypeError, "must have a floating-point dtype"),
    (np.array([[1.0]]), ValueError, "at least 2 classes"),
    (spoil(PROBS, (1, 0), np.nan), ValueError, "non-negative and not NaN, got nan in row 1"),
    (spoil(PROBS, (0, 1), -0.1), ValueError, "non-negative and not NaN, got -0.1 in row 0"),
    (spoil(PROBS, (1, 0), 0.3), ValueError, "rows of .* must sum to 1.*got 1.1 in row 1"),
]
BAD_SETTINGS = [
    ({"gamma": -1}, ValueError, "gamma must be greater than -1 and finite, got -1.0"),
    ({"gamma": np.nan}, ValueError, "gamma must be greater than -1"),
    ({"gamma": np.inf}, ValueError, "and finite"),
    ({"gamma": "two"}, TypeError, "gamma must be a number"),
    ({"gamma": "123"}, TypeError, "gamma must be a number"),
    ({"gamma": {1: 2}}, TypeError, "gamma must be a number"),
    ({"gamma": [1, 2]}, ValueError, "one value for each of 3 classes, got 2 values"),
    ({"gamma": [1, -2, 3]}, ValueError, "gamma must be greater than -1 and finite, got -2.0"),
    (
        {"gamma": 1, "weight": [1, 2]},
        ValueError,
        "weight must be .* for each of 3 classes, got 2 values",
    ),
    ({"gamma": 1, "weight": 2.0}, ValueError, "weight must have one value for each of 3 classes, got a number"),
    ({"gamma": 1, "weight": [1, 0, 2]}, ValueError, "weight must be positive and finite, got 0.0 for class 1"),
    ({"gamma": 1, "weight": [1, 2, np.nan]}, ValueError, "got nan for class 2"),
    ({"gamma": 1, "label_smoothing": 1.0}, ValueError, r"label_smoothing must lie in \[0, 1\), got 1.0"),
    ({"gamma": 1, "label_smoothing": [0.1]}, ValueError, "label_smoothing must be a single number"),
]


@pytest.mark.parametrize(("logits", "error", "message"), BAD_LOGITS)
def test_bad_logits(logits, error, message):
    with pytest.raises(error, match=message):
        refocal.posterior_from_logits(logits, gamma=1)


@pytest.mark.parametrize("function", [refocal.posterior, refocal.minimizer, refocal.confidence_regime])
@pytest.mark.parametrize(("probs", "error", "message"), BAD_PROBS)
def test_bad_probabilities(function, probs, error, message):
    with pytest.raises(error, match=message):
        function(probs, gamma=1)


@pytest.mark.parametrize(("settings", "error", "message"), BAD_SETTINGS)
def test_bad_settings(settings, error, message):
    for function, rows in (
        (refocal.posterior, PROBS),
        (refocal.posterior_from_logits, LOGITS),
        (refocal.minimizer, PROBS),
    ):
        if function is refocal.minimizer:
            message = message.replace("greater than -1", "at least 0")
        with pytest.raises(error, match=message):
            function(rows, **settings)


@pytest.mark.parametrize("temperature", [0, -1, np.nan, np.inf])
def test_bad_temperature(temperature):
    with pytest.raises(ValueError, match="temperature must be positive and finite"):
        refocal.posterior_from_logits(LOGITS, gamma=1, temperature=temperature)


def test_inverse_needs_nonnegative_gamma():
    with pytest.raises(ValueError, match=r"gamma must be at least 0 and finite, got -0.5"):
        refocal.minimizer(PROBS, gamma=-0.5)
    with pytest.raises(ValueError, match=r"gamma must be at least 0"):
        refocal.sigmoid_minimizer(np.array([0.5]), gamma=-0.5)
    with pytest.raises(ValueError, match="gamma must be greater than 0"):
        refocal.thresholds(0)
    with pytest.raises(TypeError, match="gamma must be a number, got 'a'"):
        refocal.thresholds("a")
    with pytest.raises(ValueError, match="gamma must be a single number, got 2 values"):
        refocal.thresholds([1, 2])


def test_bad_alpha_and_scores():
    with pytest.raises(ValueError, match="alpha must lie strictly between 0 and 1"):
        refocal.sigmoid_posterior(LOGITS, gamma=1, alpha=1.0)
    with pytest.raises(ValueError, match="alpha must be a number or one value for each of 3 classes, got 2 values"):
        refocal.sigmoid_posterior(LOGITS, gamma=1, alpha=[0.1, 0.2])
    with pytest.raises(ValueError, match=r"logits must not be NaN, got nan in row \(1, 2\)"):
        refocal.sigmoid_posterior(spoil(LOGITS, (1, 2), np.nan), gamma=1)
    with pytest.raises(ValueError, match=r"posterior must lie in \[0, 1\], got 1.5 in row 1"):
        refocal.sigmoid_minimizer(np.array([0.5, 1.5]), gamma=1)
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\], got -0.5"):
        refocal.phi(np.array(-0.5), gamma=1)


def test_bad_labels():
    for labels, error, message in (
        (np.array([0.0, 1.0]), TypeError, "labels must have an integer dtype, got float64"),
        (np.array([0]), ValueError, r"labels must have shape \(2,\), one label per row, got \(1,\)"),
        (np.array([0, 3]), ValueError, r"labels must be from 0 to 2, got 3 in row 1"),
        (np.array([-1, 0]), ValueError, r"got -1 in row 0"),
        (None, TypeError, "labels must be a list or an array of the same library"),
    ):
        with pytest.raises(error, match=message):
            refocal.proper_focal_partial(PROBS, labels, gamma=1)


def test_labels_of_any_integer_type():
    torch = pytest.importorskip("torch")
    expected = refocal.proper_focal_partial(PROBS, [0, 2], gamma=1)
    for dtype in (torch.int32, torch.uint8, torch.int64):
        labels = torch.tensor([0, 2], dtype=dtype)
        loss = refocal.proper_focal_partial(torch.tensor(PROBS), labels, gamma=1)
        np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-14)
    with pytest.raises(TypeError, match="labels must be a list or an array of the same library"):
        refocal.proper_focal_partial(PROBS, torch.tensor([0, 2]), gamma=1)


def test_other_invalid_arguments():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="gamma must be a constant: pass a number or a tensor"):
        refocal.posterior(PROBS, gamma=torch.tensor(1.0, requires_grad=True))
    with pytest.raises(TypeError, match=r"probs must be an array .* got rows of different lengths"):
        refocal.posterior([[0.5, 0.5], [1.0]], gamma=1)
    with pytest.raises(ValueError, match="rows of probs must sum to 1"):
        refocal.posterior(np.array([0.5, 0.6], dtype=np.longdouble), gamma=1)
    with pytest.raises(ValueError, match="value above -inf in each row if normalize=True, got -inf in row 0"):
        refocal.sigmoid_posterior(np.array([[-np.inf, -np.inf]]), gamma=2, normalize=True)
    with pytest.raises(ValueError, match="log_p must be log-probabilities, <= 0, got nan"):
        refocal.focal_partial(np.array([np.nan]), np.array([-1.0]), gamma=1)
    with pytest.raises(TypeError, match="logit_range must be a number or a pair of numbers, got 'a'"):
        refocal.closest_temperature(1, classes=2, logit_range="a")


def test_partial_loss_shapes():
    with pytest.raises(ValueError, match=r"log_p and log_q must have the same shape, got \(2,\) and \(3,\)"):
        refocal.focal_partial(np.zeros(2), np.zeros(3), gamma=1)


def test_values_are_not_read_while_tracing_but_shapes_are():
    torch = pytest.importorskip("torch")
    rows = torch.tensor([[1.0, float("nan")]])
    traced = torch.compile(lambda x: refocal.posterior_from_logits(x, gamma=1.0), backend="aot_eager", fullgraph=True)
    assert torch.isnan(traced(rows)).all()
    with pytest.raises(ValueError, match="got nan in row 0"):
        refocal.posterior_from_logits(rows, gamma=1.0)


def test_softmax_rows_of_every_precision_pass():
    torch = pytest.importorskip("torch")
    logits = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        refocal.posterior(torch.softmax(logits.to(dtype), -1), gamma=2.0)
