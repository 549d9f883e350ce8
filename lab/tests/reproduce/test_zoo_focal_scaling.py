"""Table 1 of Komisarenko and Kull (2024): both methods on networks of a zoo, and their gains."""

from __future__ import annotations

import numpy as np
import pytest

from made_zoo import parts, write_zoo
from refocal import metrics
from refocal.calibrators import FocalTemperatureScaling
from refocal_lab.reproduce.kinds import zoo_focal_scaling
from zoo_experiments import SPECS, computed


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    return write_zoo(tmp_path_factory.mktemp("zoo"))


def test_focal_temperature_scaling(networks):
    found = computed("003-table-1", networks)
    trial = next(item for item in found.curves["networks"] if item["loss"] == "focal 2")["trials"][1]
    (val, val_labels), (logits, labels) = parts(networks, "g2-s1")
    grid = np.arange(1, 11) / 2
    fitted = FocalTemperatureScaling(objective="adaptive_ece", search="grid", temperature_grid=grid)
    probs = fitted.fit(val, val_labels).predict_proba(logits)
    assert trial["fts, adaptive_ece"]["adaptive_ece"] == pytest.approx(metrics.adaptive_ece(probs, labels, bins=15))
    assert trial["fts, adaptive_ece"]["gamma"] == fitted.gamma_
    every = [trial for item in found.curves["networks"] for trial in item["trials"]]
    old, new = (np.mean([trial[key]["adaptive_ece"] for trial in every]) for key in ("fts, nll", "fts, adaptive_ece"))
    gain = pytest.approx(100 * (1 - new / old))
    assert found.values["gain in ECE by choosing by ECE(fts)"] == gain  # these networks share a data set
    assert found.values["gain in ECE by choosing by ECE(fts), cifar10"] == gain
    rows = {row[:3]: row[3:] for row in found.table}
    published = ("95.0", "0.17", "2.20", "0.71", "2.36", "1")
    expected = tuple(f"no entry [{number}]" for number in published)
    assert rows["CIFAR-10, ResNet-50", "cross-entropy", "focal TS"] == expected


def _trial(nll, ece):
    keys = [f"{method}, {criterion}" for method in ("ts", "fts") for criterion in ("nll", "adaptive_ece")]
    return {key: {"nll": nll, "adaptive_ece": ece if key == "fts, adaptive_ece" else 1.0} for key in keys}


def test_gains_are_averaged_over_the_data_sets():
    by_data = {"cifar10": [_trial(1.0, 0.5)] * 9, "cifar100": [_trial(1.0, 1.1)], "tiny-imagenet": []}
    values, absent = zoo_focal_scaling._gains(by_data)
    name = "gain in ECE by choosing by ECE(fts)"
    assert len(absent) == 6
    assert f"{name}, tiny-imagenet" in absent
    assert (values[f"{name}, cifar10"], values[f"{name}, cifar100"]) == pytest.approx((50, -10))
    assert values[name] == pytest.approx(20)


def test_gains_of_the_papers_networks_are_told_from_those_of_all():
    measured = [
        {"network": "cifar10 resnet50", "trials": [_trial(1.0, 0.5)]},
        {"network": "cifar100 resnet50", "trials": [_trial(1.0, 0.9)]},
        {"network": "cifar10 resnet20", "trials": [_trial(1.0, 1.5)]},
    ]
    values, absent = zoo_focal_scaling._all_gains(SPECS["003-table-1"].parameters["smoke"], measured)
    name = "gain in ECE by choosing by ECE(fts)"
    assert values[f"{name}, cifar10"] == pytest.approx(0)
    assert values[f"{name}, cifar10 resnet50"] == pytest.approx(50)
    assert values[f"{name}, the paper's networks"] == pytest.approx(30)
    assert f"{name}, tiny-imagenet resnet50" in absent
