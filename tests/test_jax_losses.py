"""The losses in JAX against PyTorch's in float64, optax, and themselves under JAX's transformations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from refocal import losses

jax = pytest.importorskip("jax", reason="JAX is not installed: `make test-integrations` runs them")
optax = pytest.importorskip("optax", reason="optax is not installed: `make test-integrations` runs them")
jnp = jax.numpy
refocal_jax = pytest.importorskip("refocal.jax")
focal_loss, proper_focal_loss = refocal_jax.focal_loss, refocal_jax.proper_focal_loss
sigmoid_focal_loss = refocal_jax.sigmoid_focal_loss

K = 5
RNG = np.random.default_rng(0)
ROWS = 3 * RNG.standard_normal((2, 3, K))
INDICES = RNG.integers(K, size=(2, 3))
SOFT = RNG.dirichlet(np.ones(K), size=(2, 3))
BINARY = RNG.integers(2, size=ROWS.shape)
WEIGHT = (0.5, 1.0, 2.0, 0.0, 3.0)
PER_CLASS = (0.0, 0.5, 1.0, 2.0, 5.0)
SATURATED = np.array([[1000.0, -1000.0, 0.0], [5.0, -np.inf, -np.inf], [200.0, 0.0, 0.0], [-np.inf, 0.0, 1.0]])
SATURATED_LABELS = np.array([0, 0, 1, 1])


@pytest.fixture(autouse=True)
def double_precision():
    jax.config.update("jax_enable_x64", True)


def in_torch(function, *, target=INDICES, weight=None, **settings):
    """PyTorch's losses of ROWS, whose classes are on dimension 1 there."""
    weight = None if weight is None else torch.tensor(weight, dtype=torch.double)
    target = torch.as_tensor(target)
    target = target.movedim(-1, 1) if target.is_floating_point() else target
    return function(torch.as_tensor(ROWS).movedim(-1, 1), target, weight=weight, **settings).numpy()


@pytest.mark.parametrize("gamma", [0, 0.5, 2.0, PER_CLASS], ids=str)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("labels", [INDICES, SOFT], ids=["indices", "soft"])
def test_focal_loss_agrees_with_pytorch(labels, gamma, weight, label_smoothing):
    settings = {"gamma": gamma, "weight": weight, "label_smoothing": label_smoothing}
    expected = in_torch(losses.focal_loss, target=labels, **settings)
    np.testing.assert_allclose(focal_loss(ROWS, labels, **settings), expected, rtol=1e-12)


@pytest.mark.parametrize("gamma", [0, 0.5, 2.0, PER_CLASS], ids=str)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_proper_focal_loss_agrees_with_pytorch(gamma, weight):
    expected = in_torch(losses.proper_focal_loss, gamma=gamma, weight=weight)
    np.testing.assert_allclose(proper_focal_loss(ROWS, INDICES, gamma=gamma, weight=weight), expected, rtol=1e-10)


@pytest.mark.parametrize("gamma", [0, 0.5, 2.0, PER_CLASS], ids=str)
@pytest.mark.parametrize("alpha", [None, 0.25, (0.1, 0.2, 0.5, 0.7, 0.9)], ids=str)
@pytest.mark.parametrize("labels", [BINARY, SOFT], ids=["binary", "soft"])
def test_sigmoid_focal_loss_agrees_with_pytorch(labels, gamma, alpha):
    expected = losses.sigmoid_focal_loss(torch.as_tensor(ROWS), torch.as_tensor(labels), gamma=gamma, alpha=alpha)
    np.testing.assert_allclose(sigmoid_focal_loss(ROWS, labels, gamma=gamma, alpha=alpha), expected, rtol=1e-12)


@pytest.mark.parametrize("function", [focal_loss, proper_focal_loss], ids=["focal", "proper"])
def test_gamma_0_is_the_cross_entropy_of_optax(function):
    expected = optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(ROWS), INDICES)
    np.testing.assert_allclose(function(ROWS, INDICES, gamma=0), expected, rtol=1e-12)


def test_gamma_0_of_soft_labels_is_the_cross_entropy_of_optax():
    expected = optax.softmax_cross_entropy(jnp.asarray(ROWS), SOFT)
    np.testing.assert_allclose(focal_loss(ROWS, SOFT, gamma=0), expected, rtol=1e-12)
    smooth = optax.softmax_cross_entropy(jnp.asarray(ROWS), optax.smooth_labels(jax.nn.one_hot(INDICES, K), 0.2))
    np.testing.assert_allclose(focal_loss(ROWS, INDICES, gamma=0, label_smoothing=0.2), smooth, rtol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"alpha": 0.25}, {"gamma": 0.5, "alpha": 0.9}], ids=str)
def test_sigmoid_focal_loss_is_that_of_optax(settings):
    expected = optax.sigmoid_focal_loss(jnp.asarray(ROWS), jnp.asarray(BINARY), **settings)
    np.testing.assert_allclose(sigmoid_focal_loss(ROWS, BINARY, **settings), expected, rtol=1e-11)


CALLS = {
    "focal": lambda x: focal_loss(x, INDICES[0], gamma=2.0, weight=WEIGHT),
    "focal_per_class": lambda x: focal_loss(x, INDICES[0], gamma=PER_CLASS),
    "focal_soft": lambda x: focal_loss(x, SOFT[0], gamma=0.5, label_smoothing=0.1),
    "sigmoid": lambda x: sigmoid_focal_loss(x, BINARY[0], gamma=1.5, alpha=0.25).sum(axis=-1),
    "proper": lambda x: proper_focal_loss(x, INDICES[0], gamma=2.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name):
    """The gradient and the Hessian agree with differences; the Hessian has a block for each row."""

    def total(x):
        return CALLS[name](x).sum()

    rows, step = jnp.asarray(ROWS[0]), 1e-5
    gradient, hessian = jax.jit(jax.grad(total)), jax.jit(jax.hessian(total))(rows)
    direction = jnp.asarray(np.random.default_rng(1).standard_normal(rows.shape))
    slope = (total(rows + step * direction) - total(rows - step * direction)) / (2 * step)
    np.testing.assert_allclose((gradient(rows) * direction).sum(), slope, rtol=1e-7)
    curvature = (gradient(rows + step * direction) - gradient(rows - step * direction)) / (2 * step)
    np.testing.assert_allclose(jnp.einsum("ijkl,kl->ij", hessian, direction), curvature, rtol=1e-6, atol=1e-9)
    assert not hessian[0, :, 1:].any()


@pytest.mark.parametrize("function", [focal_loss, proper_focal_loss], ids=["focal", "proper"])
def test_jit_and_vmap_change_nothing(function):
    expected = function(ROWS, INDICES, gamma=2.0, weight=WEIGHT)

    def call(x, y):
        return function(x, y, gamma=2.0, weight=WEIGHT)

    np.testing.assert_allclose(jax.jit(call)(ROWS, INDICES), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(jax.vmap(call))(ROWS, INDICES), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(lambda: call(jnp.asarray(ROWS), INDICES))(), expected, rtol=1e-12)


@pytest.mark.parametrize("function", [focal_loss, proper_focal_loss], ids=["focal", "proper"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_precision_of_narrow_types(function, dtype):
    """16-bit logits are computed in float32 and rounded once."""
    rows = jnp.asarray(ROWS).astype(dtype)
    found = function(rows, INDICES, gamma=2.0)
    assert found.dtype == dtype
    expected = function(rows.astype("float64"), INDICES, gamma=2.0)
    np.testing.assert_allclose(found.astype("float64"), expected, rtol=float(jnp.finfo(dtype).eps) * 8)


def test_precision_of_sigmoid_focal_loss():
    rows = jnp.asarray(ROWS).astype("bfloat16")
    found = sigmoid_focal_loss(rows, BINARY, gamma=2.0)
    assert found.dtype == "bfloat16"
    expected = sigmoid_focal_loss(rows.astype("float64"), BINARY, gamma=2.0)
    np.testing.assert_allclose(found.astype("float64"), expected, rtol=2**-8)


@pytest.mark.parametrize("function", [focal_loss, proper_focal_loss], ids=["focal", "proper"])
def test_a_shift_changes_nothing(function):
    rows = np.round(ROWS * 2**10) / 2**10  # shifts by a power of two are exact
    shifted = function(rows + 2.0**30, INDICES, gamma=2.0)
    np.testing.assert_allclose(shifted, function(rows, INDICES, gamma=2.0), rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "gamma"),
    [*((focal_loss, gamma) for gamma in (0.0, 0.5, 2.0, (0.0, 0.5, 2.0))), (proper_focal_loss, 2.0)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_saturated_logits_have_finite_derivatives(function, gamma):
    def call(x):
        return function(x, SATURATED_LABELS, gamma=gamma)

    found = call(SATURATED)
    assert np.isfinite(found).all()
    if function is focal_loss:
        np.testing.assert_allclose(found[:3], [0, 0, 200], rtol=1e-12)
    for dtype in ("float32", "float64"):
        rows = jnp.asarray(SATURATED, dtype=dtype)
        slopes = jax.jit(jax.jacrev(call))(rows)
        assert np.isfinite(slopes).all()
        np.testing.assert_allclose(slopes.sum(axis=-1), 0, atol=1e-6)
    assert np.isfinite(jax.jit(jax.jacfwd(jax.grad(lambda x: call(x).sum())))(jnp.asarray(SATURATED))).all()


@pytest.mark.parametrize("gamma", [0.5, 2.0, PER_CLASS], ids=str)
def test_smoothing_over_a_masked_class(gamma):
    """The loss is infinite, and its gradient the limit, which a score with p = 0 has already."""

    def total(x):
        return focal_loss(x, INDICES, gamma=gamma, label_smoothing=0.1).sum()

    masked, limit = (jax.value_and_grad(total)(jnp.asarray(ROWS).at[..., 3].set(score)) for score in (-np.inf, -1e4))
    assert masked[0] == np.inf
    np.testing.assert_allclose(masked[1], limit[1], rtol=1e-12)


def test_saturated_sigmoid():
    scores, labels = jnp.array([1000.0, -1000.0, 1000.0, np.inf, -np.inf]), np.array([1, 0, 0, 1, 0])
    for gamma in (0.0, 0.5, 2.0):
        found = sigmoid_focal_loss(scores, labels, gamma=gamma)
        np.testing.assert_allclose(found, [0, 0, 1000, 0, 0], atol=1e-12)
        slopes = jax.grad(lambda x, gamma=gamma: sigmoid_focal_loss(x, labels[:3], gamma=gamma).sum())(scores[:3])
        np.testing.assert_allclose(slopes, [0, 0, 1], atol=1e-12)
        slope = jax.grad(lambda x, gamma=gamma: sigmoid_focal_loss(x, 0.5, gamma=gamma))(jnp.asarray(-np.inf))
        assert slope == -0.5  # the loss is infinite, and its slope the limit


def test_rows_without_a_softmax_are_nan():
    rows = np.array([[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf], [0.0, 0.0]])
    for function in (focal_loss, proper_focal_loss):
        found = function(rows, np.zeros(4, int), gamma=2.0)
        np.testing.assert_array_equal(np.isnan(found), [True, True, True, False])
        slopes = jax.grad(lambda x, function=function: function(x, np.zeros(4, int), gamma=2.0).sum())(rows)
        assert np.isnan(slopes[:2]).any(axis=1).all()
        assert np.isfinite(slopes[3]).all()


@pytest.mark.parametrize("function", [focal_loss, proper_focal_loss], ids=["focal", "proper"])
def test_examples_that_do_not_count(function):
    rows, labels = ROWS[0].copy(), INDICES[0].copy()
    rows[1], labels[1] = np.nan, -1
    counts = labels != -1
    found, slopes = jax.value_and_grad(lambda x: function(x, labels, gamma=2.0, where=counts).sum())(jnp.asarray(rows))
    np.testing.assert_allclose(found, function(ROWS[0], INDICES[0], gamma=2.0)[jnp.asarray([0, 2])].sum())
    assert not slopes[1].any()
    assert np.isfinite(slopes).all() and slopes[0].any()


def test_soft_examples_and_scores_that_do_not_count():
    rows, counts = jnp.asarray(ROWS[0]).at[1].set(np.nan), np.array([True, False, True])
    found, slopes = jax.value_and_grad(lambda x: focal_loss(x, SOFT[0], gamma=2.0, where=counts).sum())(rows)
    np.testing.assert_allclose(found, focal_loss(ROWS[0], SOFT[0], gamma=2.0)[jnp.asarray([0, 2])].sum())
    assert np.isfinite(slopes).all()
    labels, counts = jnp.asarray(BINARY[0]).at[0, 0].set(-1), np.ones(BINARY[0].shape, bool)
    counts[0, 0] = False
    found = sigmoid_focal_loss(ROWS[0], labels, where=counts)
    np.testing.assert_allclose(found, np.where(counts, sigmoid_focal_loss(ROWS[0], BINARY[0]), 0))


def test_a_schedule_of_gamma_is_compiled_once():
    traces = []

    @jax.jit
    def call(gamma, weight):
        traces.append(gamma)
        return focal_loss(jnp.asarray(ROWS), INDICES, gamma=gamma, weight=weight)

    for gamma in (0.0, 1.0, 3.0):
        expected = focal_loss(ROWS, INDICES, gamma=gamma, weight=WEIGHT)
        np.testing.assert_allclose(call(gamma, jnp.asarray(WEIGHT)), expected, rtol=1e-12)
    assert len(traces) == 1
    per_class = jax.jit(lambda gamma: focal_loss(jnp.asarray(ROWS), INDICES, gamma=gamma))(jnp.asarray(PER_CLASS))
    np.testing.assert_allclose(per_class, focal_loss(ROWS, INDICES, gamma=PER_CLASS), rtol=1e-12)
    scores = jax.jit(lambda alpha: sigmoid_focal_loss(jnp.asarray(ROWS), BINARY, alpha=alpha))(0.25)
    np.testing.assert_allclose(scores, sigmoid_focal_loss(ROWS, BINARY, alpha=0.25), rtol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.1}, {"weight": WEIGHT}], ids=str)
def test_an_index_outside_the_classes_is_nan_where_values_cannot_be_read(settings):
    labels = np.array([-1, K, 2])
    found = jax.jit(lambda y: focal_loss(ROWS[0], y, gamma=2.0, **settings))(labels)
    np.testing.assert_array_equal(np.isnan(found), [True, True, False])
    if "label_smoothing" not in settings:
        found = jax.jit(lambda y: proper_focal_loss(ROWS[0], y, gamma=2.0, **settings))(labels)
        np.testing.assert_array_equal(np.isnan(found), [True, True, False])


def test_errors_name_the_argument():
    rows, labels = jnp.asarray(ROWS), jnp.asarray(INDICES)
    with pytest.raises(TypeError, match="logits must be a JAX or NumPy array, got list"):
        focal_loss(ROWS.tolist(), labels, gamma=2)
    with pytest.raises(TypeError, match="logits must have a floating-point dtype, got int64"):
        focal_loss(labels, labels, gamma=2)
    with pytest.raises(ValueError, match="logits must have at least 2 classes"):
        focal_loss(rows[..., :1], labels, gamma=2)
    with pytest.raises(ValueError, match=r"labels must have shape \(2, 3\) if they are class indices, got \(2,\)"):
        focal_loss(rows, labels[:, 0], gamma=2)
    with pytest.raises(ValueError, match=r"labels must have shape \(2, 3, 5\) if they are class probabilities"):
        focal_loss(rows, labels.astype("float64"), gamma=2)
    with pytest.raises(TypeError, match="labels must hold class indices, got dtype float64"):
        proper_focal_loss(rows, SOFT, gamma=2)
    with pytest.raises(TypeError, match="labels must hold class indices or class probabilities, got dtype bool"):
        focal_loss(rows, labels > 1, gamma=2)
    with pytest.raises(ValueError, match=r"labels must be from 0 to 4; .* where=, got -1 in row \(0, 0\)"):
        focal_loss(rows, labels.at[0, 0].set(-1), gamma=2)
    with pytest.raises(ValueError, match=r"where must be a Boolean mask of shape \(2, 3\), got int64"):
        focal_loss(rows, labels, gamma=2, where=labels)
    with pytest.raises(ValueError, match="gamma must be at least 0 and finite, got -1"):
        focal_loss(rows, labels, gamma=-1)
    with pytest.raises(ValueError, match=r"gamma must be a number or have one value for each entry .* shape \(2,\)"):
        jax.jit(lambda gamma: focal_loss(rows, labels, gamma=gamma))(jnp.ones(2))
    with pytest.raises(ValueError, match=r"weight must have one value for each of 5 classes, got shape \(2,\)"):
        focal_loss(rows, labels, gamma=2, weight=[1, 2])
    with pytest.raises(ValueError, match=r"weight must be non-negative and finite, got -1\.0 in row 4"):
        focal_loss(rows, labels, gamma=2, weight=[1, 1, 1, 1, -1])
    with pytest.raises(ValueError, match=r"label_smoothing must lie in \[0, 1\], got 2"):
        focal_loss(rows, labels, gamma=2, label_smoothing=2)
    with pytest.raises(TypeError, match="gamma must be a constant, got a traced array"):
        jax.jit(lambda gamma: proper_focal_loss(rows, labels, gamma=gamma))(2.0)
    with pytest.raises(ValueError, match=r"labels must have the shape of logits, \(2, 3, 5\), got \(2, 3\)"):
        sigmoid_focal_loss(rows, labels)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 1\], got 2\.0 in row"):
        sigmoid_focal_loss(rows, jnp.full(rows.shape, 2))
    with pytest.raises(ValueError, match="alpha must lie strictly between 0 and 1"):
        sigmoid_focal_loss(rows, BINARY, alpha=1.0)
