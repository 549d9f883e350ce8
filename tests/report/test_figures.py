"""Matplotlib figures: they draw on the Axes that they are given, and change nothing else."""

from __future__ import annotations

import io

import numpy as np
import pytest

import sample
from refocal import metrics
from refocal.maps.posterior import posterior
from refocal.report.figures import draw_histogram, draw_map, draw_reliability
from refocal.report.record import Diagram

matplotlib = pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")


@pytest.fixture
def ax():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), layout="constrained")
    FigureCanvasAgg(figure)
    before = dict(matplotlib.rcParams)
    axes = figure.add_subplot()
    yield axes
    figure.savefig(io.BytesIO(), format="png")
    assert dict(matplotlib.rcParams) == before
    assert figure.axes == [axes]


def test_reliability_fills_the_dots_outside_the_band(ax):
    diagram = Diagram((10, 90), (0.3, 0.8), (0.6, 0.81), (0.2, 0.7), (0.4, 0.9))
    draw_reliability(ax, diagram, label="before")
    (dots,) = (item for item in ax.collections if item.get_label() == "before")
    assert dots.get_offsets().tolist() == [[0.3, 0.6], [0.8, 0.81]]
    outside, inside = dots.get_facecolors()
    assert outside.tolist() == list(matplotlib.colors.to_rgba("#0a649f"))
    assert inside.tolist() == list(ax.get_facecolor())
    assert dots.get_sizes()[1] > dots.get_sizes()[0]


def test_reliability_of_a_metric(ax):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1.0, 1.0, 1.0], 500)
    diagram = metrics.reliability_diagram(probs, rng.integers(0, 3, 500))
    draw_reliability(ax, diagram, label="as given")
    draw_reliability(ax, Diagram(*(tuple(part.tolist()) for part in diagram)), label="record")
    one, two = (item for item in ax.collections if item.get_label() in ("as given", "record"))
    np.testing.assert_array_equal(one.get_offsets(), two.get_offsets())
    np.testing.assert_array_equal(one.get_sizes(), two.get_sizes())
    np.testing.assert_array_equal(one.get_facecolors(), two.get_facecolors())


def test_reliability_of_no_samples_is_an_empty_diagram(ax):
    draw_reliability(ax, Diagram((), (), (), (), ()))


def test_histogram_is_mirrored(ax):
    report = sample.sample_report(300)
    draw_histogram(ax, report.given.histogram, report.chosen.histogram)
    up, down = ax.containers
    assert [bar.get_height() for bar in up] == list(report.given.histogram)
    assert [-bar.get_height() for bar in down] == list(report.chosen.histogram)
    assert ax.yaxis.get_major_formatter()(-1200, 0) == "1,200"


def test_histograms_of_two_lengths_are_refused(ax):
    with pytest.raises(ValueError, match="same length, got 2 and 3"):
        draw_histogram(ax, (1, 2), (1, 2, 3))


def test_map_is_the_posterior_of_two_classes(ax):
    draw_map(ax, 2.0, 1.0, label="γ = 2")
    (curve,) = (line for line in ax.lines if line.get_label() == "γ = 2")
    p = np.asarray(curve.get_xdata())
    expected = posterior(np.stack([p, 1 - p], axis=1), gamma=2.0)[:, 0]
    np.testing.assert_allclose(curve.get_ydata(), expected, atol=1e-12)


def test_map_rejects_invalid_parameters(ax):
    with pytest.raises(ValueError, match="gamma must"):
        draw_map(ax, -1.0, 1.0)
    with pytest.raises(ValueError, match="temperature must be positive"):
        draw_map(ax, 1.0, 0.0)
