"""Small networks trained together, the one-feature problem, and the study of tabular data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from refocal_lab.reproduce import read_specs
from refocal_lab.reproduce.kinds import one_dimension, tabular
from refocal_lab.reproduce.small_networks import Samples, SmallNetworkRecipe, compute_logits, train

torch = pytest.importorskip("torch")
SPECS = read_specs(Path(__file__).parents[2] / "experiments")
RECIPE = SmallNetworkRecipe(hidden=8, epochs=6, batch=20, learning_rate=0.02, weight_decay=0.01)


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, size=(2, 90))
    return Samples(rng.standard_normal((2, 90, 4)) + labels[..., None], labels)


def trained(samples, gammas, **more):
    return train(samples, samples, classes=3, gammas=gammas, recipe=RECIPE, seed=1, **more)


def test_networks_trained_together_equal_those_trained_alone(samples):
    together = compute_logits(trained(samples, (0.0, 2.0)).last, samples.features)
    for index, gamma in enumerate((0.0, 2.0)):
        alone = compute_logits(trained(samples, (gamma,)).last, samples.features)
        np.testing.assert_allclose(together[index], alone[0], atol=1e-4)
    assert np.abs(together[0] - together[1]).max() > 0.05


def test_one_network_equals_that_of_a_plain_loop(samples):
    """Train one trial and one gamma with torch.nn, from the same weights and batches."""
    one = Samples(samples.features[:1], samples.labels[:1])
    found = compute_logits(trained(one, (0.0,)).last, one.features)[0, 0]
    generator = torch.Generator().manual_seed(1)
    layers = []
    for inputs, outputs in ((4, 8), (8, 8), (8, 3)):
        drawn = (2 * torch.rand((1, inputs + 1, outputs), generator=generator) - 1)[0] / np.sqrt(inputs)
        layer = torch.nn.Linear(inputs, outputs)
        layer.weight.data, layer.bias.data = drawn[:-1].T.clone(), drawn[-1].clone()
        layers += [layer, torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.02, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6 * 5)
    x, y = torch.tensor(one.features[0], dtype=torch.float32), torch.tensor(one.labels[0])
    for _ in range(6):
        for chosen in torch.rand((1, 90), generator=generator).argsort(dim=1)[0].chunk(5):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x[chosen]), y[chosen]).backward()
            optimizer.step()
            schedule.step()
    np.testing.assert_allclose(found, network(x).detach().numpy(), atol=1e-4)


def test_the_best_epoch_has_the_lowest_held_out_loss(samples):
    rng = np.random.default_rng(5)
    noise = Samples(samples.features, rng.permuted(samples.labels, axis=1))  # training increases the held-out loss
    networks = train(samples, noise, classes=3, gammas=(0.0,), recipe=RECIPE, seed=1)

    def losses(weights):
        scores = torch.tensor(compute_logits(weights, noise.features)[0])
        labels = torch.tensor(noise.labels)
        return [float(torch.nn.functional.cross_entropy(s, y)) for s, y in zip(scores, labels, strict=True)]

    assert all(best < last for best, last in zip(losses(networks.best), losses(networks.last), strict=True))


def test_densities_and_posterior():
    given = SPECS["001-fig-3"].parameters["smoke"]
    x = np.linspace(-15, 15, 30001)
    density = one_dimension.joint(given, x)
    np.testing.assert_allclose(np.trapezoid(density, x, axis=0), given.priors, rtol=1e-8)
    drawn = one_dimension.draw_samples(given, 50_000, np.random.default_rng(0))
    shares = np.bincount(drawn.labels[0]) / 50_000
    np.testing.assert_allclose(shares, given.priors, atol=0.01)
    near = np.abs(drawn.features[0, :, 0] - 0.5) < 0.1
    observed = np.bincount(drawn.labels[0][near], minlength=3) / near.sum()
    np.testing.assert_allclose(observed, one_dimension.posterior(given, np.array([0.5]))[0], atol=0.03)


@pytest.fixture
def table():
    rng = np.random.default_rng(2)
    labels = np.repeat([5, 7], [40, 60])
    features = np.column_stack([rng.standard_normal(100) * 9 + 3, rng.choice([1.0, 4.0, 6.0], 100), np.arange(100.0)])
    return tabular.Table(features, labels, np.array([False, True, False]))


def test_encoding(table):
    features, labels = tabular.encode(table)
    assert features.shape == (100, 5)
    np.testing.assert_array_equal(features[:, 1:4].sum(axis=1), 1)
    np.testing.assert_array_equal(features[:, 3] == 1, table.features[:, 1] == 6)
    assert set(labels) == {0, 1}


def test_splits_are_disjoint_and_stratified(table):
    given = SPECS["001-study-c"].parameters["smoke"]
    parts = tabular.split(table, given, np.random.default_rng(0))
    assert [part.labels.shape for part in parts] == [(2, 60), (2, 20), (2, 20)]
    for trial in range(2):
        # The last column is the row number, up to the scaling of the trial.
        numbers = np.concatenate([part.features[trial, :, -1] for part in parts])
        assert len(np.unique(numbers.round(6))) == 100
        assert all(abs(part.labels[trial].mean() - 0.6) < 0.051 for part in parts)
        np.testing.assert_allclose(parts[0].features[trial].mean(axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(parts[0].features[trial].std(axis=0), 1)
    assert not np.array_equal(parts[0].features[0], parts[0].features[1])


def test_large_sets_are_cut(table):
    given = SPECS["001-study-c"].parameters["smoke"]
    parts = tabular.split(table, type(given)(**{**vars(given), "most_rows": 50}), np.random.default_rng(0))
    assert sum(part.labels.shape[1] for part in parts) == 50


def test_paired_comparison():
    differences = np.random.default_rng(0).normal(0.3, 1, 25)
    found = tabular.compare_paired(differences)
    interval = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx(tuple(interval))
    assert found["p"] == pytest.approx(stats.wilcoxon(differences).pvalue)
    assert found["share above"] == np.mean(differences > 0)
    assert tabular.compare_paired(np.zeros(5))["p"] == 1


def test_faults_in_data_files(tmp_path):
    (tmp_path / "tabular").mkdir()
    np.savez(tmp_path / "tabular/short.npz", X=np.zeros((3, 2)), y=np.zeros(3))
    with pytest.raises(ValueError, match=r"short\.npz must contain the arrays X, y and categorical, got X, y"):
        tabular.read_table(tmp_path, "short")
    np.savez(tmp_path / "tabular/odd.npz", X=np.zeros((3, 2)), y=np.zeros(3), categorical=np.zeros(3, dtype=bool))
    with pytest.raises(ValueError, match=r"odd\.npz: X must have shape \(len\(y\), len\(categorical\)\), got \(3, 2\)"):
        tabular.read_table(tmp_path, "odd")
    np.savez(
        tmp_path / "tabular/gap.npz", X=np.full((3, 2), np.nan), y=np.zeros(3), categorical=np.zeros(2, dtype=bool)
    )
    with pytest.raises(ValueError, match=r"gap\.npz: X must be finite"):
        tabular.read_table(tmp_path, "gap")
