"""Every public function takes scores, labels and weights in the same containers, and gives the results of NumPy."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass

import numpy as np
import pytest
from scipy import sparse

import refocal
from refocal import calibrators, metrics
from refocal._containers import to_numpy
from refocal.report import cross_calibrate, measure

NAMES = ("ant", "bee", "cat")


def draw(rows=160, *, seed=0):
    """Logits, labels and weights that every precision holds exactly: numbers of few bits."""
    rng = np.random.default_rng(seed)
    logits = np.round(8 * rng.standard_normal((rows, 3))) / 8
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return logits, labels, rng.integers(1, 4, rows).astype(np.float64)


LOGITS, LABELS, WEIGHTS = draw()
PROBS = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.25, 0.25, 0.5], [0.0625, 0.0625, 0.875]])[LABELS]


class ExposedArray:
    """An object of an unknown library that NumPy can copy."""

    def __init__(self, array):
        self.array = np.asarray(array)

    def __array__(self, dtype=None, copy=None):
        return self.array


class ExposedMemory:
    """An object of an unknown library that shares its memory."""

    def __init__(self, array):
        self.array = np.asarray(array)

    def __dlpack__(self, **settings):
        return self.array.__dlpack__(**settings)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@dataclass(frozen=True)
class Kind:
    """A kind of container.

    Attributes:
        scores: Puts scores (N, K) into the container.
        column: Puts labels or weights (N,) into it.
        needs: The package that the container comes from.
    """

    scores: Callable
    column: Callable
    needs: str | None = None


def module(name):
    return importlib.import_module(name)


def tensor(dtype, **settings):
    def make(array):
        torch = module("torch")
        return torch.tensor(np.asarray(array), dtype=getattr(torch, dtype), **settings)

    return make


def plain_tensor(array):
    return module("torch").tensor(np.asarray(array))


def pandas_frame(dtype):
    return lambda array: module("pandas").DataFrame(array, index=range(len(array), 0, -1)).astype(dtype)


def pandas_series(dtype):
    return lambda array: (
        module("pandas")
        .Series(array, index=range(len(array), 0, -1))
        .astype({"i": dtype.replace("Float", "Int")}.get(np.asarray(array).dtype.kind, "Float64"))
    )


def polars_frame(array):
    return module("polars").DataFrame(np.asarray(array), schema=["a", "b", "c"][: np.shape(array)[1]])


def arrow_table(array):
    columns = np.asarray(array).T
    return module("pyarrow").table({f"column {index}": column for index, column in enumerate(columns)})


KINDS = {
    "lists": Kind(np.ndarray.tolist, np.ndarray.tolist),
    "tuples": Kind(lambda array: tuple(map(tuple, array.tolist())), lambda array: tuple(array.tolist())),
    "float32": Kind(lambda array: array.astype(np.float32), np.asarray),
    "float16": Kind(lambda array: array.astype(np.float16), np.asarray),
    "ml_dtypes bfloat16": Kind(lambda array: array.astype(module("ml_dtypes").bfloat16), np.asarray, "ml_dtypes"),
    "big-endian": Kind(lambda array: array.astype(">f8"), lambda array: array.astype(array.dtype.newbyteorder(">"))),
    "__array__": Kind(ExposedArray, ExposedArray),
    "__dlpack__": Kind(ExposedMemory, ExposedMemory),
    "tensor": Kind(plain_tensor, plain_tensor, "torch"),
    "tensor with grad": Kind(tensor("float64", requires_grad=True), plain_tensor, "torch"),
    "tensor in bfloat16": Kind(tensor("bfloat16"), plain_tensor, "torch"),
    "bfloat16 with grad": Kind(tensor("bfloat16", requires_grad=True), plain_tensor, "torch"),
    "list of tensors": Kind(lambda array: list(tensor("float32", requires_grad=True)(array)), plain_tensor, "torch"),
    "pandas": Kind(pandas_frame("float64"), lambda array: module("pandas").Series(array), "pandas"),
    "pandas float32": Kind(pandas_frame("float32"), pandas_series("Float64"), "pandas"),
    "pandas nullable": Kind(pandas_frame("Float32"), pandas_series("Float64"), "pandas"),
    "pandas frame of one column": Kind(
        pandas_frame("float64"), lambda array: module("pandas").DataFrame({"label": array}), "pandas"
    ),
    "pandas rows as lists": Kind(
        lambda array: module("pandas").Series(array.tolist()), lambda array: module("pandas").Index(array), "pandas"
    ),
    "pandas categorical": Kind(
        pandas_frame("float64"),
        lambda array: module("pandas").Series(array).astype("category" if array.dtype.kind == "i" else "float64"),
        "pandas",
    ),
    "polars": Kind(polars_frame, lambda array: module("polars").Series(array), "polars"),
    "polars rows as lists": Kind(
        lambda array: module("polars").Series(array.tolist()), lambda array: module("polars").Series(array), "polars"
    ),
    "Arrow table": Kind(arrow_table, lambda array: module("pyarrow").array(array), "pyarrow"),
    "Arrow chunks": Kind(
        lambda array: arrow_table(array).to_batches()[0],
        lambda array: module("pyarrow").chunked_array([array[:5], array[5:]]),
        "pyarrow",
    ),
    "array-api-strict": Kind(
        lambda array: module("array_api_strict").asarray(array),
        lambda array: module("array_api_strict").asarray(array),
        "array_api_strict",
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    chosen = KINDS[request.param]
    if chosen.needs is not None:
        pytest.importorskip(chosen.needs)
    return chosen


def rotate(uses):
    """Pair each use with a kind and each kind with a use. All read their input by the same functions."""
    kinds, uses = list(KINDS), list(uses)
    return [(kinds[i % len(kinds)], uses[i % len(uses)]) for i in range(max(len(kinds), len(uses)))]


# functions of probabilities (N, K), labels (N,) and weights (N,)
METRICS = {
    **{
        name: getattr(metrics, name)
        for name in metrics.__all__
        if name.islower() and name not in {"interval", "paired_test", "kl_to_posterior", "focal_score", "top_k_ece"}
    },
    "focal_score": lambda scores, labels, **given: metrics.focal_score(scores, labels, gamma=2.0, **given),
    "top_k_ece": lambda scores, labels, **given: metrics.top_k_ece(scores, labels, k=2, **given),
    "interval": lambda scores, labels, **given: metrics.interval(metrics.brier, scores, labels, **given),
    "interval of ece": lambda scores, labels, **given: metrics.interval(
        metrics.ece, scores, labels, resamples=100, **given
    ),
    "paired_test": lambda scores, labels, **given: metrics.paired_test(metrics.nll, scores, scores, labels, **given),
}


def numbers(result):
    """All numbers of a result and its parts, as one array."""
    if is_dataclass(result):
        result = tuple(vars(result).values())
    if isinstance(result, tuple):
        return np.concatenate([np.empty(0), *map(numbers, result)])
    return np.empty(0) if isinstance(result, str) or result is None else np.ravel(np.asarray(result, dtype=np.float64))


@pytest.mark.parametrize(("kind", "name"), rotate(METRICS), indirect=["kind"])
def test_metrics(kind, name):
    measure = METRICS[name]
    expected = measure(PROBS, LABELS, sample_weight=WEIGHTS)
    found = measure(kind.scores(PROBS), kind.column(LABELS), sample_weight=kind.column(WEIGHTS))
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-6, atol=1e-9)
    if name not in {"interval", "interval of ece", "paired_test"}:
        found = numbers(measure(kind.scores(LOGITS), kind.column(LABELS), input="logits"))
        plain = [numbers(measure(LOGITS.astype(dtype), LABELS, input="logits")) for dtype in (np.float64, np.float32)]
        matches = [each for each in plain if each.shape == found.shape]  # bins of equal mass depend on rounding
        assert any(np.allclose(found, expected, rtol=1e-7, atol=1e-12, equal_nan=True) for expected in matches)


def test_kl_to_posterior_and_the_accumulator(kind):
    other = PROBS[::-1].copy()
    found = metrics.kl_to_posterior(kind.scores(PROBS), kind.scores(other), sample_weight=kind.column(WEIGHTS))
    assert found == pytest.approx(metrics.kl_to_posterior(PROBS, other, sample_weight=WEIGHTS), rel=1e-6)
    summaries = []
    for scores, labels, weights in (
        (PROBS, LABELS, WEIGHTS),
        (kind.scores(PROBS), kind.column(LABELS), kind.column(WEIGHTS)),
    ):
        accumulator = metrics.CalibrationAccumulator()
        accumulator.update(scores, labels, sample_weight=weights)
        summaries.append(accumulator.compute())
    np.testing.assert_allclose(summaries[1], summaries[0], rtol=1e-6)


@pytest.mark.parametrize(("kind", "task"), rotate(["binary", "multilabel"]), indirect=["kind"])
def test_metrics_of_other_tasks(kind, task):
    probs = PROBS if task == "multilabel" else PROBS[:, :1]
    truth = (np.arange(PROBS.size).reshape(PROBS.shape) % 3 == 0).astype(np.int64)
    labels = truth if task == "multilabel" else truth[:, 0]
    expected = metrics.nll(probs, labels, task=task, sample_weight=WEIGHTS)
    put = kind.scores if task == "multilabel" and kind is not KINDS["list of tensors"] else kind.column
    given = plain_labels(labels, kind) if task == "multilabel" else put(labels)
    found = metrics.nll(kind.scores(probs), given, task=task, sample_weight=kind.column(WEIGHTS))
    assert found == pytest.approx(expected, rel=1e-6)


def plain_labels(labels, kind):
    """Labels (N, L) as a frame of integers if the container is a frame, else as NumPy."""
    given = kind.scores(labels.astype(np.float64))
    if hasattr(given, "astype") and kind.needs == "pandas" and given.ndim == 2:
        return given.astype("int64")
    if kind.needs == "polars" and hasattr(given, "columns"):
        return given.cast(module("polars").Int8)
    return labels


EVERY = {
    **{name: calibrator() for name, calibrator in calibrators.BY_NAME.items()},
    "posterior": calibrators.FocalPosterior(gamma=2.0),
    "auto": calibrators.AutoCalibrator(candidates=[calibrators.TemperatureScaling()], cv=2),
}


@pytest.mark.parametrize(("kind", "use"), rotate(itertools.product(EVERY, (None, "probs"))), indirect=["kind"])
def test_calibrators(kind, use):
    name, input = use
    scores = LOGITS if input is None else PROBS
    calibrator = EVERY[name].set_params(input=input)
    expected = calibrator.fit(scores, LABELS, WEIGHTS).predict_proba(scores)
    given = kind.scores(scores)
    fitted = calibrator.fit(given, kind.column(LABELS), kind.column(WEIGHTS))
    atol = 1e-5 if name == "ensemble" else 1e-6  # its search for T ends within that of the optimum
    np.testing.assert_allclose(fitted.predict_proba(given), expected, rtol=1e-4, atol=atol)
    np.testing.assert_array_equal(fitted.classes_, [0, 1, 2])


def test_data_of_reports(kind):
    """`evaluate`, `calibrate`, `cross_calibrate` and `Selection.report` read their data by this function."""
    found = measure.TestData.of(kind.scores(PROBS), kind.column(LABELS), kind.column(WEIGHTS))
    np.testing.assert_array_equal(found.scores, PROBS)
    np.testing.assert_array_equal(found.labels, LABELS)
    np.testing.assert_array_equal(found.sample_weight, WEIGHTS)


@pytest.mark.parametrize(
    ("kind", "input"), [("lists", None), ("bfloat16 with grad", "probs"), ("pandas nullable", None)], indirect=["kind"]
)
def test_evaluate_and_calibrate(kind, input):
    scores = LOGITS if input is None else PROBS
    plain = (scores, LABELS, WEIGHTS)
    given = (kind.scores(scores), kind.column(LABELS), kind.column(WEIGHTS))
    results = []
    for data, labels, weights in (plain, given):
        common = {"input": input, "sample_weight": weights}
        report = refocal.evaluate(data, labels, by_class=False, **common)
        selection = refocal.calibrate(data, labels, method="temperature", **common)
        after = selection.report(data, labels, sample_weight=weights, by_class=False)
        crossed = cross_calibrate(data, labels, method="temperature", folds=2, by_class=False, **common)
        measures = [dict(method.measures) for method in (report.methods[0], *after.methods)]
        # A row may fall into another bin of equal mass if its confidence differs by rounding.
        apart = np.array([measure.pop("adaptive_ece").value for measure in measures])
        values = np.array([[each.value for each in measure.values()] for measure in measures])
        results.append((apart, values, selection.predict_proba(data), crossed.probs))
    for found, expected, atol in zip(results[1], results[0], (0.01, 1e-6, 1e-6, 1e-6), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=atol)


# ways to say "bee"
NAMED = {
    "list": list,
    "NumPy text": np.asarray,
    "NumPy objects": lambda names: np.asarray(names, dtype=object),
    "pandas text": lambda names: pytest.importorskip("pandas").Series(names),
    "pandas objects": lambda names: pytest.importorskip("pandas").Series(names, dtype=object),
    "pandas categories": lambda names: pytest.importorskip("pandas").Series(names, dtype="category"),
    "polars text": lambda names: pytest.importorskip("polars").Series(names),
    "polars categories": lambda names: (p := pytest.importorskip("polars")).Series(names, dtype=p.Categorical),
    "Arrow": lambda names: pytest.importorskip("pyarrow").array(names),
    "Arrow dictionary": lambda names: pytest.importorskip("pyarrow").array(names).dictionary_encode(),
}


@pytest.mark.parametrize("way", NAMED)
def test_names_as_labels(way):
    names = ("bee", "cat", "ant")  # not in alphabetical order, so that sorting them would be wrong
    labels = NAMED[way]([names[label] for label in LABELS])
    np.testing.assert_array_equal(measure.TestData.of(LOGITS, labels, None, class_names=names).labels, LABELS)
    found = calibrators.VectorScaling(classes=names).fit(LOGITS, labels)
    np.testing.assert_array_equal(found.classes_, names)
    np.testing.assert_array_equal(found.bias_, calibrators.VectorScaling().fit(LOGITS, LABELS).bias_)


def test_names_as_labels_of_reports():
    names = ("bee", "cat", "ant")
    labels = [names[label] for label in LABELS]
    assert refocal.evaluate(LOGITS, labels, class_names=names).methods == refocal.evaluate(LOGITS, LABELS).methods
    selection = refocal.calibrate(LOGITS, labels, class_names=names, method="temperature")
    plain = refocal.calibrate(LOGITS, LABELS, method="temperature")
    assert selection.chosen.parameters == plain.chosen.parameters
    assert selection.report(LOGITS, labels, by_class=False).class_names == names


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_columns_name_the_classes(package):
    library = pytest.importorskip(package)
    names = ("bee", "cat", "ant")
    make = library.table if package == "pyarrow" else library.DataFrame
    frames = [make({name: scores[:, index] for index, name in enumerate(names)}) for scores in (LOGITS, PROBS)]
    labels = [names[label] for label in LABELS]
    assert metrics.nll(frames[1], labels) == metrics.nll(PROBS, LABELS)
    assert metrics.interval(metrics.brier, frames[1], labels) == metrics.interval(metrics.brier, PROBS, LABELS)
    data = measure.TestData.of(frames[0], labels, None)
    assert data.class_names == names
    np.testing.assert_array_equal(data.labels, LABELS)
    selection = refocal.calibrate(frames[0], labels, method="temperature")
    plain = refocal.calibrate(LOGITS, LABELS, method="temperature")
    np.testing.assert_array_equal(selection.predict_proba(frames[0]), plain.predict_proba(LOGITS))
    fitted = calibrators.VectorScaling().fit(frames[0], labels)
    np.testing.assert_array_equal(fitted.classes_, names)
    np.testing.assert_allclose(fitted.bias_, calibrators.VectorScaling().fit(LOGITS, LABELS).bias_)
    shuffled = make({name: LOGITS[:, names.index(name)] for name in ("ant", "bee", "cat")})
    for use in (selection.predict_proba, lambda scores: selection.report(scores, labels)):
        with pytest.raises(ValueError, match="columns of scores must be in the order 'bee', 'cat', 'ant', got 'ant'"):
            use(shuffled)
    with pytest.raises(ValueError, match="columns of scores must be in the order"):
        refocal.evaluate(shuffled, labels, class_names=names)
    truth = make({name: (index == LABELS).astype(int) for index, name in enumerate(names)})
    reordered = make({name: (names.index(name) == LABELS).astype(int) for name in ("ant", "bee", "cat")})
    assert metrics.nll(frames[1], truth, task="multilabel") > 0
    with pytest.raises(ValueError, match="columns of labels must be in the order 'bee', 'cat', 'ant', got 'ant'"):
        metrics.nll(frames[1], reordered, task="multilabel")


def test_booleans_as_labels():
    logits, labels = LOGITS[:, :2], LABELS > 0
    np.testing.assert_array_equal(measure.TestData.of(logits, labels, None).labels, labels.astype(int))
    named = measure.TestData.of(logits, labels, None, class_names=["True", "False"])
    np.testing.assert_array_equal(named.labels, 1 - labels.astype(int))
    assert metrics.nll(logits, labels, input="logits") == metrics.nll(logits, labels.astype(int), input="logits")
    for use in (lambda: refocal.evaluate(LOGITS, labels), lambda: metrics.nll(LOGITS, labels, input="logits")):
        with pytest.raises(ValueError, match="labels must be class indices from 0 to 2, got booleans"):
            use()


def test_names_without_classes_are_rejected():
    labels = np.asarray(NAMES)[LABELS]
    for use, how in (
        (lambda: refocal.evaluate(LOGITS, labels), "pass class_names"),
        (lambda: refocal.calibrate(LOGITS, labels), "pass class_names"),
        (lambda: metrics.ece(PROBS, labels), "pass indices, or scores in a frame whose columns are the names"),
    ):
        with pytest.raises(ValueError, match=f"labels must be class indices if the classes have no names, got .*{how}"):
            use()
    with pytest.raises(ValueError, match=r"labels must be among the class names 'a', 'b', 'c', got 'ant' in row \d+"):
        refocal.evaluate(LOGITS, labels, class_names=["a", "b", "c"])


@pytest.mark.parametrize("labels", [[0, 1, None], [0.0, 1.0, np.nan], ["a", "b", None]])
def test_missing_labels_are_rejected(labels):
    for each in (labels, pytest.importorskip("pandas").Series(labels), pytest.importorskip("polars").Series(labels)):
        with pytest.raises(ValueError, match=r"labels must not have missing values, got .* in row 2"):
            refocal.evaluate(LOGITS[:3], each, class_names=["a", "b", "c"])
        with pytest.raises(ValueError, match=r"labels must not have missing values, got .* in row 2"):
            metrics.nll(PROBS[:3], each)


def test_missing_scores_are_rejected():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    columns = {"a": [1.0, None, 2.0], "b": [0.0, 0.0, 0.0]}
    for frame in (pandas.DataFrame(columns), pandas.DataFrame(columns).astype("Float64"), polars.DataFrame(columns)):
        with pytest.raises(ValueError, match=r"must be finite or -inf .*got nan in row 1"):
            refocal.evaluate(frame, [0, 1, 0])


def test_columns_of_text_are_named():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    columns = {"customer": ["a", "b"], "no": [0.5, 0.25], "yes": [0.5, 0.75]}
    for frame in (pandas.DataFrame(columns), polars.DataFrame(columns)):
        for use in (metrics.nll, calibrators.TemperatureScaling(input="probs").fit, refocal.evaluate):
            with pytest.raises(TypeError, match="must have columns of numbers, got column 'customer' of other values"):
                use(frame, [0, 1])


def test_what_is_not_in_memory_is_rejected():
    matrix = sparse.csr_array(LOGITS)
    for use in (metrics.nll, refocal.evaluate, calibrators.TemperatureScaling().fit):
        with pytest.raises(TypeError, match=r"must be dense, got a sparse matrix: pass its \.toarray\(\)"):
            use(matrix, LABELS)
    lazy = pytest.importorskip("polars").LazyFrame({"a": [1.0], "b": [0.0]})
    with pytest.raises(TypeError, match=r"scores must be in memory, got a LazyFrame: pass its \.collect\(\)"):
        refocal.evaluate(lazy, [0])


USES = {
    "evaluate": refocal.evaluate,
    "calibrate": refocal.calibrate,
    "cross_calibrate": cross_calibrate,
    "metric": lambda scores, labels: metrics.nll(scores, labels, input="logits"),
    "calibrator": calibrators.TemperatureScaling().fit,
}


@pytest.mark.parametrize("use", USES)
def test_what_has_no_values_is_rejected(use):
    for nothing in (None, object(), iter(LOGITS)):
        with pytest.raises((TypeError, ValueError), match=r"(scores|X) must be .*, got (None|object|iterator)"):
            USES[use](nothing, LABELS)
    with pytest.raises((TypeError, ValueError), match=r"labels must be a list.*, got None|y to be passed.* y is None"):
        USES[use](LOGITS, None)
    with pytest.raises(ValueError, match=r"(scores|X) must not have missing values, got None in row 1"):
        USES[use]([[1.0, 2.0], [3.0, None]], [0, 1])


@pytest.mark.parametrize("use", ["evaluate", "calibrate", "cross_calibrate"])
def test_scores_of_other_shapes_and_values_are_rejected(use):
    for scores, shape in (
        (1.5, r"\(\)"),
        ([], r"\(0,\)"),
        (np.zeros((0, 3)), r"\(0, 3\)"),
        (np.zeros((2, 3, 1)), r"\(2, 3, 1\)"),
    ):
        with pytest.raises(ValueError, match=rf"scores must have shape \(N, K\), .* with N >= 1, got {shape}"):
            USES[use](scores, LABELS)
    for scores, dtype in ((LOGITS.astype(complex), "complex128"), (LOGITS.astype(str), "<U32"), (LOGITS > 0, "bool")):
        with pytest.raises(TypeError, match=f"scores must be real numbers, got {dtype}"):
            USES[use](scores, LABELS)


@pytest.mark.parametrize("use", USES)
def test_tensors_without_values_or_rows_are_rejected(use):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"(scores|X) must have values, got a tensor on the device 'meta'"):
        USES[use](torch.zeros(160, 3, device="meta"), LABELS)
    with pytest.raises(TypeError, match=r"(labels|y) must have values, got a tensor on the device 'meta'"):
        USES[use](LOGITS, torch.zeros(160, dtype=torch.int64, device="meta"))
    with pytest.raises(TypeError, match=r"must be dense, got a sparse tensor: pass its \.to_dense\(\)"):
        USES[use](torch.tensor(LOGITS).to_sparse(), LABELS)


def test_nested_lists_may_hold_tensors():
    torch = pytest.importorskip("torch")
    rows = torch.tensor(LOGITS[:4], requires_grad=True)
    np.testing.assert_array_equal(to_numpy([[each for each in row] for row in rows], "scores"), LOGITS[:4])
    np.testing.assert_array_equal(to_numpy(tuple(tuple(row) for row in rows.bfloat16()), "scores"), LOGITS[:4])
    labels = [[torch.tensor(1), torch.tensor(0)], [torch.tensor(0), torch.tensor(1)]]
    assert to_numpy(labels, "labels").tolist() == [[1, 0], [0, 1]]
    with pytest.raises(ValueError, match="scores must be an array or nested lists of equal lengths"):
        to_numpy([[rows[0, 0]], [rows[0, 0], rows[0, 1]]], "scores")


def test_bfloat16_probabilities_may_be_rounded():
    """Rows of bfloat16 sum to 1 within 8 bits only."""
    torch = pytest.importorskip("torch")
    probs = torch.softmax(torch.tensor(LOGITS), dim=1).to(torch.bfloat16)
    assert np.abs(probs.double().sum(dim=1).numpy() - 1).max() > 1e-4
    wide = (rows := probs.double().numpy()) / rows.sum(axis=1, keepdims=True)
    expected = metrics.nll(wide, LABELS)
    assert metrics.nll(probs, LABELS) == pytest.approx(expected, rel=1e-2)
    assert refocal.evaluate(probs, LABELS, input="probs").methods[0].measures["nll"].value == pytest.approx(expected)
    fitted = calibrators.TemperatureScaling(input="probs").fit(probs, LABELS)
    assert fitted.temperature_ == pytest.approx(
        calibrators.TemperatureScaling(input="probs").fit(wide, LABELS).temperature_, rel=1e-6
    )


def test_no_library_of_frames_is_imported():
    before = {"pandas", "polars"} & set(sys.modules)
    to_numpy([[1.0]], "scores")
    assert {"pandas", "polars"} & set(sys.modules) == before


@pytest.mark.gpu
def test_tensors_on_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    logits = torch.tensor(LOGITS, device="cuda", requires_grad=True)
    labels = torch.tensor(LABELS, device="cuda")
    assert refocal.evaluate(logits, labels).methods == refocal.evaluate(LOGITS, LABELS).methods
    found = calibrators.TemperatureScaling().fit(logits, labels, torch.tensor(WEIGHTS, device="cuda"))
    assert found.temperature_ == calibrators.TemperatureScaling().fit(LOGITS, LABELS, WEIGHTS).temperature_
    assert metrics.nll(logits, labels, input="logits") == metrics.nll(LOGITS, LABELS, input="logits")
