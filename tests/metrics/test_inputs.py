"""Accepted arrays, dtypes and shapes, and the errors for everything else."""

from __future__ import annotations

import numpy as np
import pytest

from arrays import draw_calibrated, random_simplex, sharpen, spoil
from reference import loop_ece
from refocal import metrics
from refocal.metrics import inputs

PROBS = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
LABELS = np.array([0, 2, 1])
MEASURES = [
    metrics.ece,
    metrics.adaptive_ece,
    metrics.mce,
    metrics.classwise_ece,
    metrics.thresholded_ece,
    metrics.smooth_ece,
    metrics.kernel_calibration_error,
    metrics.nll,
    metrics.brier,
    metrics.error,
    metrics.auroc,
    metrics.aurc,
]


@pytest.mark.parametrize("measure", MEASURES)
def test_every_library_and_precision_gives_the_float64_value(measure, xp):
    rng = np.random.default_rng(0)
    probs, labels = draw_calibrated(rng, (200, 4))
    exact = measure(probs.astype(np.float32).astype(np.float64), labels)
    kinds = [xp.float32, xp.float64]
    for kind in kinds:
        given = xp.asarray(probs.astype(np.float32), dtype=kind)
        result = measure(given, xp.asarray(labels))
        assert isinstance(result, float)
        assert result == pytest.approx(exact, rel=1e-6, abs=1e-9)


def test_long_doubles_are_not_read_as_float32():
    probs, labels = draw_calibrated(np.random.default_rng(5), (300, 3))
    for measure in MEASURES:
        assert measure(probs.astype(np.longdouble), labels) == measure(probs, labels)


def test_float16_is_read_exactly():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    probs, labels = draw_calibrated(rng, (500, 5))
    for given in (torch.tensor(probs).half(), torch.tensor(probs).to(torch.bfloat16)):
        wide = given.double().numpy()
        confidence, correct = wide.max(axis=1), wide.argmax(axis=1) == labels
        assert metrics.ece(given, torch.tensor(labels)) == pytest.approx(loop_ece(confidence, correct), rel=1e-9)
    half = probs.astype(np.float16)
    assert metrics.ece(half, labels) == metrics.ece(torch.tensor(half), torch.tensor(labels))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.uint64])
@pytest.mark.parametrize("measure", [metrics.ece, metrics.classwise_ece, metrics.brier, metrics.nll])
def test_labels_of_every_integer_dtype(measure, dtype):
    probs, labels = draw_calibrated(np.random.default_rng(2), (300, 20))  # 19 x 15 bins do not fit into uint8
    assert measure(probs, labels.astype(dtype)) == measure(probs, labels)


@pytest.mark.parametrize("classes", [3, 40])
def test_a_probability_above_one_by_rounding_is_one(classes):
    probs = np.zeros((40, classes), dtype=np.float32)
    probs[:, 0] = 1.00005
    labels = np.arange(40) % 2
    for measure in (metrics.ece, metrics.adaptive_ece, metrics.smooth_ece):
        assert measure(probs, labels) == pytest.approx(0.5, abs=1e-6)
    assert metrics.classwise_ece(probs, labels) == pytest.approx(1 / classes, abs=1e-4)
    assert metrics.calibration_test(probs, labels).p_value < 0.01
    accumulator = metrics.CalibrationAccumulator()
    accumulator.update(probs, labels)
    assert accumulator.compute().ece == pytest.approx(0.5, abs=1e-9)


def test_tensors_with_gradients_and_lists_are_accepted():
    torch = pytest.importorskip("torch")
    probs = torch.tensor(PROBS, requires_grad=True)
    assert metrics.nll(probs, torch.tensor(LABELS)) == metrics.nll(PROBS.tolist(), LABELS.tolist())


@pytest.mark.parametrize(
    ("probs", "labels", "error", "message"),
    [
        (
            spoil(PROBS, (1, 0), np.nan),
            LABELS,
            ValueError,
            r"scores must be non-negative and not NaN \(for logits, pass input='logits'\), got nan in row 1",
        ),
        (spoil(PROBS, (2, 0), -0.1), LABELS, ValueError, "non-negative and not NaN .*got -0.1 in row 2"),
        (spoil(PROBS, (1, 0), 0.45), LABELS, ValueError, r"rows of scores must sum to 1 .*got 1\.25 in row 1"),
        (spoil(PROBS, (1, 0), np.inf), LABELS, ValueError, "rows of scores must sum to 1 .*got inf in row 1"),
        (PROBS, [0, 3, 1], ValueError, r"labels must be from 0 to 2, got 3 in row 1"),
        (PROBS, [0, 1, -1], ValueError, r"labels must be from 0 to 2, got -1 in row 2"),
        (PROBS, [0.0, 1.5, 2.0], ValueError, "labels must be class indices, whole numbers .*2, got 1.5 in row 1"),
        (PROBS, [0.0, 1.0, np.inf], ValueError, "labels must be class indices, whole numbers .*, got inf in row 2"),
        (PROBS, [0.0, 1.0, 3.0], ValueError, "labels must be from 0 to 2, got 3 in row 2"),
        (PROBS, [0j, 1, 2], TypeError, "labels must have an integer dtype, got complex128"),
        (PROBS, [0, 1], ValueError, r"labels must have shape \(3,\), got \(2,\)"),
        (PROBS, [], ValueError, r"labels must have shape \(3,\), got \(0,\)"),
        (PROBS, [[0], [1, 2]], ValueError, "labels must be an array or nested lists of equal lengths"),
        (PROBS[:, 0], LABELS, ValueError, r"scores must have shape \(N, classes\).*task='binary'"),
        (PROBS[:, :1], LABELS, ValueError, r"two classes or more, got \(3, 1\) \(task='binary' takes P\(y = 1\)\)"),
        (PROBS.astype(int), LABELS, TypeError, "scores must have a floating-point dtype"),
        ("probs", LABELS, TypeError, "scores must be an array"),
        (PROBS[:0], LABELS[:0], ValueError, r"scores must have at least one row, got shape \(0, 3\)"),
    ],
)
def test_bad_rows_and_labels_are_named(probs, labels, error, message):
    for measure in MEASURES:
        with pytest.raises(error, match=message):
            measure(probs, labels)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_whole_floats_are_labels(dtype):
    labels = np.array([0, 1, 1])  # one decision is wrong, so that there is something to rank
    for measure in MEASURES:
        assert measure(PROBS, labels.astype(dtype)) == measure(PROBS, labels)
    events = np.array([0.2, 0.7, 0.9]), np.array([0, 1, 1])
    assert metrics.ece(events[0], events[1].astype(dtype), task="binary") == metrics.ece(*events, task="binary")


def test_a_bad_row_in_any_block_is_named():
    rng = np.random.default_rng(2)
    probs = random_simplex(rng, (100_000, 3)).astype(np.float32)
    probs[98_765, 1] = np.nan
    for measure in (metrics.ece, metrics.nll, metrics.classwise_ece):
        with pytest.raises(ValueError, match="got nan in row 98765"):
            measure(probs, np.zeros(100_000, dtype=int))
    logits = np.zeros((50_000, 4))
    logits[43_210, 2] = np.inf
    with pytest.raises(ValueError, match=r"scores must be finite or -inf \(masked\).* got inf in row 43210"):
        metrics.ece(logits, np.zeros(50_000, dtype=int), input="logits")
    with pytest.raises(ValueError, match="got nan in row 1"):
        metrics.nll(spoil(np.zeros((3, 2)), (1, 1), np.nan), [0, 0, 0], input="logits")
    with pytest.raises(ValueError, match="scores must not be NaN, got nan in row 2"):
        metrics.nll(np.array([0.0, 1.0, np.nan]), [0, 0, 0], task="binary", input="logits")


def test_masked_and_huge_logits_are_accepted():
    logits = np.array([[0.0, -np.inf, 800.0], [-np.inf, 3.0, -900.0]])
    assert metrics.nll(logits, [2, 1], input="logits") == 0.0
    assert metrics.ece(logits, [2, 1], input="logits") == 0.0
    assert metrics.nll(np.array([np.inf, -np.inf]), [1, 0], task="binary", input="logits") == 0.0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -1.0, 1.0], "sample_weight must be finite and not negative, got -1.0 in row 1"),
        ([1.0, 1.0, np.nan], "sample_weight must be finite and not negative, got nan in row 2"),
        ([1.0, 1.0], r"sample_weight must have shape \(3,\), one weight per label, got \(2,\)"),
        ([0.0, 0.0, 0.0], "sample_weight must not all be 0"),
    ],
)
def test_bad_weights_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        metrics.ece(PROBS, LABELS, sample_weight=weights)


def test_missing_weights_are_named():
    with pytest.raises(ValueError, match="sample_weight must not have missing values, got None in row 1"):
        metrics.ece(PROBS, LABELS, sample_weight=[1.0, None, 1.0])


@pytest.mark.parametrize("weights", [["1", "2", "3"], [1.0, object(), 1.0], np.ones(3, dtype=complex)])
def test_weights_must_be_real_numbers(weights):
    with pytest.raises(TypeError, match="sample_weight must hold real numbers, got dtype"):
        metrics.ece(PROBS, LABELS, sample_weight=weights)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float16, np.longdouble])
def test_weights_of_any_real_dtype_are_the_same_weights(dtype):
    weights = np.array([1, 0, 1])
    assert metrics.ece(PROBS, LABELS, sample_weight=weights.astype(dtype)) == metrics.ece(
        PROBS, LABELS, sample_weight=weights.astype(float)
    )


@pytest.mark.parametrize("measure", [*MEASURES, metrics.brier_decomposition])
def test_integer_weights_repeat_samples(measure):
    rng = np.random.default_rng(3)
    probs, labels = draw_calibrated(rng, (60, 3))
    probs = sharpen(probs, power=1.5)
    times = rng.integers(0, 4, 60)
    if measure is metrics.aurc:  # repeated samples are ties in random order; a heavy sample is one step
        times = np.full(60, 2)
    repeated = measure(np.repeat(probs, times, axis=0), np.repeat(labels, times))
    assert measure(probs, labels, sample_weight=times.astype(float)) == pytest.approx(
        repeated, rel=1e-9, abs=0.01 if measure is metrics.aurc else 1e-12
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint16, np.uint32, np.uint64])
def test_labels_of_any_integer_dtype_are_the_same_labels(dtype):
    """A class index times the number of bins does not fit into a byte."""
    probs, labels = draw_calibrated(np.random.default_rng(4), (500, 100))
    few = labels.astype(dtype)
    for measure in MEASURES:
        assert measure(probs, few) == measure(probs, labels)
    accumulators = [metrics.CalibrationAccumulator() for _ in range(2)]
    for accumulator, each in zip(accumulators, (labels, few), strict=True):
        accumulator.update(probs, each)
    assert accumulators[1].compute().classwise_ece == accumulators[0].compute().classwise_ece
    events = metrics.classwise_ece(probs[:, :2] / probs[:, :2].sum(axis=1, keepdims=True), labels % 2 == 1, bins=300)
    assert 0 < events < 1


def test_a_class_with_only_weightless_samples_does_not_count():
    probs, labels = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.1, 0.1, 0.8]]), np.array([0, 0, 1])
    weights = np.array([1.0, 2.0, 0.0])
    found = metrics.thresholded_ece(probs, labels, sample_weight=weights)
    assert found == metrics.thresholded_ece(probs[:2], labels[:2], sample_weight=weights[:2])
    limits = metrics.interval(metrics.thresholded_ece, probs, labels, sample_weight=weights, resamples=100)
    assert limits.low <= found <= limits.high


def test_dense_predictions_are_rows_with_classes_on_axis_one():
    rng = np.random.default_rng(4)
    rows = random_simplex(rng, (2 * 4 * 5, 3))
    labels = rng.integers(0, 3, 2 * 4 * 5)
    weights = rng.random(2 * 4 * 5)
    dense = np.moveaxis(rows.reshape(2, 4, 5, 3), -1, 1)
    for measure in MEASURES:
        given = measure(dense, labels.reshape(2, 4, 5), sample_weight=weights.reshape(2, 4, 5))
        assert given == pytest.approx(measure(rows, labels, sample_weight=weights), rel=1e-12)
    ignored = labels.copy()
    ignored[::3] = 255
    keep = ignored != 255
    for measure in MEASURES:
        assert measure(dense, ignored.reshape(2, 4, 5), ignore_index=255) == pytest.approx(
            measure(rows[keep], labels[keep]), rel=1e-12
        )
    with pytest.raises(ValueError, match=r"got 255 in row \(0, 0, 0\)"):
        metrics.ece(dense, ignored.reshape(2, 4, 5))
    with pytest.raises(TypeError, match=r"ignore_index must be a whole number, got 1\.5"):
        metrics.ece(PROBS, [1, 1, 1], ignore_index=1.5)
    with pytest.raises(ValueError, match="labels must not all be ignore_index=1"):
        metrics.ece(PROBS, [1, 1, 1], ignore_index=1)
    with pytest.raises(ValueError, match="sample_weight must not all be 0"):
        metrics.ece(PROBS, [0, 1, 2], ignore_index=1, sample_weight=[0.0, 1.0, 0.0])
    with pytest.raises(ValueError, match=r"got nan in row \(1, 2, 3\)"):
        metrics.ece(spoil(dense, (1, 0, 2, 3), np.nan), labels.reshape(2, 4, 5))
    # Ignored rows are not checked.
    metrics.ece(spoil(PROBS, (1, 0), np.nan), [0, 9, 1], ignore_index=9)


def test_binary_input_is_the_probability_of_one():
    p, y = np.array([0.1, 0.7, 0.9, 0.4]), np.array([0, 1, 1, 1])
    assert metrics.ece(p, y, task="binary") == metrics.ece(p[:, None], y, task="binary")
    assert metrics.nll(p, y, task="binary") == pytest.approx(metrics.nll(np.stack([1 - p, p], axis=1), y))
    assert metrics.error(p, y, task="binary") == 0.25
    assert metrics.auroc(p, y, task="binary") == metrics.auroc(np.stack([1 - p, p], axis=1), y)
    assert metrics.nll(p, y.astype(bool), task="binary") == metrics.nll(p, y, task="binary")
    with pytest.raises(
        ValueError, match=r"scores must lie in \[0, 1\] \(for logits, pass input='logits'\), got 1.5 in row 2"
    ):
        metrics.ece(spoil(p, 2, 1.5), y, task="binary")
    with pytest.raises(ValueError, match=r"labels must be from 0 to 1, got 2 in row 0"):
        metrics.ece(p, spoil(y, 0, 2), task="binary")


def test_multilabel_input_pools_the_labels_and_classwise_takes_their_mean():
    rng = np.random.default_rng(5)
    probs, labels = rng.random((50, 4)), rng.integers(0, 2, (50, 4))
    weights = rng.random(50)
    for measure in (metrics.ece, metrics.nll, metrics.brier, metrics.smooth_ece):
        pooled = measure(probs.ravel(), labels.ravel(), task="binary", sample_weight=np.repeat(weights, 4))
        assert measure(probs, labels, task="multilabel", sample_weight=weights) == pytest.approx(pooled, rel=1e-12)
    by_label = [metrics.ece(probs[:, k], labels[:, k], task="binary") for k in range(4)]
    assert metrics.classwise_ece(probs, labels, task="multilabel") == pytest.approx(np.mean(by_label), rel=1e-12)
    with pytest.raises(ValueError, match=r"shape \(N, labels\) for task='multilabel', got \(50,\)"):
        metrics.ece(probs[:, 0], labels[:, 0], task="multilabel")
    with pytest.raises(ValueError, match="task must be one of 'multiclass', 'binary', 'multilabel', got 'multi'"):
        metrics.ece(probs, labels, task="multi")
    with pytest.raises(ValueError, match="task must be one of 'multiclass', 'multilabel', got 'binary'"):
        metrics.classwise_ece(probs[:, 0], labels[:, 0], task="binary")


def test_blocks_do_not_change_sums(monkeypatch):
    rng = np.random.default_rng(6)
    probs, labels = draw_calibrated(rng, (1000, 7))
    weights = rng.random(1000)
    whole = [measure(probs, labels, sample_weight=weights) for measure in MEASURES]
    monkeypatch.setattr(inputs, "_BLOCK_ELEMENTS", 100)
    monkeypatch.setattr(inputs, "_EVENT_ROWS", 33)
    for measure, expected in zip(MEASURES, whole, strict=True):
        assert measure(probs, labels, sample_weight=weights) == pytest.approx(expected, rel=1e-12)


def test_input_is_not_changed():
    rng = np.random.default_rng(7)
    probs, labels = draw_calibrated(rng, (100, 3))
    logits = np.log(probs)
    before = probs.copy(), labels.copy(), logits.copy()
    for measure in MEASURES:
        measure(probs, labels)
        measure(logits, labels, input="logits")
    metrics.interval(metrics.ece, probs, labels, resamples=100)
    for array, copy in zip((probs, labels, logits), before, strict=True):
        np.testing.assert_array_equal(array, copy)
