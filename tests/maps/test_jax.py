"""Transformations of JAX; `make test-jax` installs JAX and runs these tests."""

from __future__ import annotations

import numpy as np
import pytest

import refocal

jax = pytest.importorskip("jax", reason="JAX is not installed: `make test-jax` runs them")


@pytest.fixture(autouse=True)
def double_precision():
    jax.config.update("jax_enable_x64", True)


ROWS = np.random.default_rng(0).standard_normal((3, 4))
FUNCTIONS = {
    "posterior": lambda x: refocal.posterior_from_logits(x, gamma=0.5),
    "posterior_per_class": lambda x: refocal.posterior_from_logits(x, gamma=[0, 0.5, 1, 2], weight=[1, 2, 3, 4]),
    "minimizer": lambda x: refocal.minimizer(jax.nn.softmax(x), gamma=2.0),
    "minimizer_per_class": lambda x: refocal.minimizer(jax.nn.softmax(x), gamma=[0, 0.5, 1, 2]),
    "proper": lambda x: refocal.proper_focal_partial(jax.nn.softmax(x), jax.numpy.argmin(x, axis=-1), gamma=2.0),
    "sigmoid": lambda x: refocal.sigmoid_posterior(x, gamma=2.0, alpha=0.25),
    "sigmoid_minimizer": lambda x: refocal.sigmoid_minimizer(jax.nn.sigmoid(x), gamma=2.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transformations_agree(name):
    function = FUNCTIONS[name]
    rows = jax.numpy.asarray(ROWS)
    expected = function(rows)
    np.testing.assert_allclose(jax.jit(function)(rows), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(function)(rows), expected, rtol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivatives(name):
    def total(x):
        values = FUNCTIONS[name](x)
        return (values * jax.numpy.arange(1.0, values.size + 1).reshape(values.shape)).sum()

    rows, step = jax.numpy.asarray(ROWS), 1e-6
    gradient = jax.jit(jax.grad(total))
    direction = jax.numpy.asarray(np.random.default_rng(1).standard_normal(ROWS.shape))
    slope = (total(rows + step * direction) - total(rows - step * direction)) / (2 * step)
    np.testing.assert_allclose((gradient(rows) * direction).sum(), slope, rtol=1e-6)
    curvature = (gradient(rows + step * direction) - gradient(rows - step * direction)) / (2 * step)
    _, product = jax.jvp(jax.grad(total), (rows,), (direction,))
    np.testing.assert_allclose(product, curvature, rtol=1e-5, atol=1e-8)


def test_a_constant_inside_jit_is_not_read():
    """Under `jit`, what is computed from a constant is traced, although the constant itself is not."""
    rows = jax.numpy.asarray(ROWS)
    for name, function in FUNCTIONS.items():
        found = jax.jit(lambda function=function: function(rows))()
        np.testing.assert_allclose(found, function(rows), rtol=1e-12, err_msg=name)
    labels = jax.numpy.asarray([0, 1, 2])
    found = jax.jit(lambda x: refocal.proper_focal_partial(jax.nn.softmax(x), labels, gamma=2.0))(rows)
    np.testing.assert_allclose(found, refocal.proper_focal_partial(jax.nn.softmax(rows), labels, gamma=2.0), rtol=1e-12)


def test_labels_in_single_precision_cause_no_warning():
    jax.config.update("jax_enable_x64", False)
    found = refocal.proper_focal_partial(jax.numpy.asarray([0.9, 0.1]), jax.numpy.asarray(0), gamma=1)
    np.testing.assert_allclose(found, 0.0577, rtol=1e-3)


def test_saturated_gradients_are_finite():
    rows = jax.numpy.asarray([[1000.0, -1000.0, 0.0], [5.0, -np.inf, -np.inf]])
    for gamma in (-0.5, 0.5, 2.0):
        hessian = jax.hessian(lambda x, gamma=gamma: refocal.posterior_from_logits(x, gamma=gamma)[:, 0].sum())(rows)
        assert np.isfinite(hessian).all()


def test_the_search_stays_on_the_device():
    """No call of Python while the compiled function runs, even under `vmap`."""
    rows = jax.numpy.asarray(ROWS)
    for name in ("minimizer", "minimizer_per_class", "proper", "sigmoid_minimizer"):
        assert "callback" not in str(jax.make_jaxpr(jax.vmap(FUNCTIONS[name]))(rows))


def test_a_row_without_a_minimizer_is_nan_inside_a_transformation():
    probs = jax.nn.softmax(jax.numpy.asarray(ROWS))
    expected = refocal.minimizer(probs, gamma=2.0)
    found = jax.jit(lambda x: refocal.minimizer(x, gamma=2.0))(probs.at[1].set(np.nan))
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[jax.numpy.asarray([0, 2])], expected[jax.numpy.asarray([0, 2])], rtol=1e-12)
