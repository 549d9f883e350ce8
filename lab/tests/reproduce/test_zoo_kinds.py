"""Figures and tables from a zoo: numbers agree with direct calls, missing entries, and outdated results."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from made_zoo import add, add_history, parts, write_zoo
from refocal import metrics, posterior_from_logits
from refocal.calibrators import TemperatureScaling
from refocal_lab import cli, reproduce
from refocal_lab.reproduce import Context, result_files, style
from refocal_lab.reproduce.computation import NO_ENTRY, Numbers
from refocal_lab.reproduce.kinds import zoo_gradient, zoo_product
from refocal_lab.zoo.measures import LogitPart
from zoo_experiments import EXPERIMENTS, SPECS, computed

CURVATURE = ["004-fig-2-zoo", "004-fig-3-zoo"]
TABLES = [f"002-table-{number}" for number in range(1, 14)]
OF_THE_ZOO = [name for name, spec in SPECS.items() if spec.kind.startswith("zoo-")]


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    return write_zoo(tmp_path_factory.mktemp("zoo"))


def both_seeds(folder, gamma, number):
    """Compute the mean of number(val, val labels, test, test labels) over the two seeds."""
    found = []
    for seed in range(2):
        (val, val_labels), (logits, labels) = parts(folder, f"g{gamma}-s{seed}")
        found.append(number(val, val_labels, logits, labels))
    return pytest.approx(np.mean(found), rel=1e-12)


def test_the_papers_tables_and_figures_of_networks():
    figures = ["001-fig-4", "001-fig-5", "001-fig-6", "002-fig-1", "002-fig-2", "002-fig-3", "002-fig-4b", "002-fig-8"]
    texts = ["002-text-newsgroups20", "002-text-sst"]
    assert sorted(OF_THE_ZOO) == sorted(
        [*TABLES, *figures, *texts, "003-fig-8", "003-sec-4-1", "003-table-1", *CURVATURE]
    )
    assert [name for name in SPECS if "table" in name] == [*TABLES, "003-table-1"]


@pytest.mark.parametrize(
    ("name", "method", "scaling", "measure"),
    [
        ("002-table-1", "ts-ece", {"objective": "ece"}, ("ece_15", metrics.ece)),
        ("002-table-2", "ts-adaptive-ece", {"objective": "adaptive_ece"}, ("adaptive_ece_15", metrics.adaptive_ece)),
        ("002-table-11", "ts-ece", {"objective": "ece"}, ("nll", metrics.nll)),
        ("002-table-13", "ts-ece", {"objective": "ece"}, ("mce_15", metrics.mce)),
    ],
)
def test_tables(networks, name, method, scaling, measure):
    values = computed(name, networks).values

    def direct(val, val_labels, logits, labels):
        probs = TemperatureScaling(**scaling).fit(val, val_labels).predict_proba(logits)
        return measure[1](probs, labels)

    assert values[f"{measure[0]}(cifar10 resnet20, cross-entropy, {method})"] == both_seeds(networks, 0, direct)


def test_a_table_shows_our_numbers_the_papers_and_missing_entries(networks):
    found = computed("002-table-1", networks)
    head, *rows = found.table
    assert head[2:] == ("cross-entropy", "Brier score", "MMCE", "FLA-53", "FLSD-53")
    by_name = {(row[0], row[1]): row[2:] for row in rows}
    assert by_name["CIFAR-10, ResNet-110 (bottleneck)", "pre T"][0] == "no entry [4.41]"
    assert by_name["CIFAR-10, ResNet-50", "post T"] == (
        "no entry [1.35 (2.50)]",
        "no entry [1.08 (1.10)]",
        "no entry [1.19 (2.60)]",
        "no entry [0.95 (1.10)]",
        NO_ENTRY,
    )
    assert by_name["SST Binary, Tree LSTM", "pre T"][:3] == ("no entry [7.37]", "no entry [9.01]", "no entry [5.03]")
    eces = [
        100 * metrics.ece(posterior_from_logits(logits, gamma=0), labels)
        for seed in range(2)
        for logits, labels in [list(parts(networks, f"g0-s{seed}"))[1]]
    ]
    ours = by_name["CIFAR-10, ResNet-20", "pre T"]
    assert ours[0] == f"{np.mean(eces):.2f} ± {np.std(eces, ddof=1):.2f}"
    assert set(ours[1:]) == {NO_ENTRY}


def test_the_papers_temperatures_are_shown_where_it_prints_them(networks):
    places = {name: [cell for row in computed(name, networks).table for cell in row if "[" in cell] for name in TABLES}
    shown = {name: sum("(" in cell.partition("[")[2] for cell in cells) for name, cells in places.items()}
    assert {name: count for name, count in shown.items() if count} == {
        **dict.fromkeys(("002-table-1", "002-table-2"), 40),
        **dict.fromkeys(("002-table-4", "002-table-5"), 30),
        **dict.fromkeys(("002-table-7", "002-table-8"), 70),
    }


def test_networks_of_one_name_are_not_mixed_up(tmp_path):
    for model in ("resnet110", "resnet110-bottleneck"):
        add(tmp_path, model, data="cifar10", model=model)
        add_history(tmp_path, model)
    rows = {(row[0], row[1]): row[2] for row in computed("002-table-1", tmp_path).table}
    assert "[4.41]" in rows["CIFAR-10, ResNet-110 (bottleneck)", "pre T"]
    assert NO_ENTRY not in rows["CIFAR-10, ResNet-110 (bottleneck)", "pre T"]
    assert "[" not in rows["CIFAR-10, ResNet-110", "pre T"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("002-table-1", "ece_15(cifar10 resnet20, cross-entropy, raw)"),
        ("001-fig-4", "raw(cifar10 resnet20, standard, 1)"),
        ("002-fig-4b", "mean norm(cifar10 resnet20, 1)"),
    ],
)
def test_a_penalized_network_does_not_represent_its_loss(name, value, networks, tmp_path):
    folder = write_zoo(tmp_path / "zoo")
    for seed in range(3):  # more seeds than without penalty
        for loss in ({}, {"loss": "focal", "gamma": 1.0}):
            penalized = f"tau-{len(loss)}-{seed}"
            add(folder, penalized, seed=seed, data="cifar10", scale=3.0, recipe={"curvature_penalty": 0.1}, **loss)
            add_history(folder, penalized)
    assert computed(name, folder).values[value] == computed(name, networks).values[value]


def test_confident_predictions(networks):
    values = computed("002-table-6", networks).values

    def direct(_, __, logits, labels):
        return metrics.confidence_share(posterior_from_logits(logits, gamma=0), labels, threshold=0.99).share

    assert values["confident_99(cifar10 resnet20, cross-entropy, raw)"] == both_seeds(networks, 0, direct)


@pytest.mark.parametrize("gamma", [1, 3])
def test_paradigms(networks, gamma):
    values = computed("001-fig-4", networks).values

    def direct(applied, *, scale):
        def number(val, val_labels, logits, labels):
            fitted = TemperatureScaling(objective="focal", gamma=gamma).fit(val, val_labels)
            scaled = logits / (fitted.temperature_ if scale else 1)
            return metrics.ece(posterior_from_logits(scaled, gamma=applied), labels, bins=10)

        return both_seeds(networks, gamma, number)

    for paradigm, scale in (("standard", False), ("ts-fl", True)):
        where = f"cifar10 resnet20, {paradigm}, {gamma}"
        assert values[f"raw({where})"] == direct(0, scale=scale)
        assert values[f"psi({where})"] == direct(gamma, scale=scale)


def test_the_best_gamma_needs_all_gammas(networks, tmp_path):
    found = computed("001-fig-5", networks)
    raw = {
        gamma: both_seeds(
            networks, gamma, lambda _, __, z, y: metrics.ece(posterior_from_logits(z, gamma=0), y, bins=10)
        ).expected
        for gamma in range(4)
    }
    assert found.values["best gamma raw(cifar10 resnet20, standard)"] == min(raw, key=raw.get)
    assert "best gamma raw(cifar10 resnet8, standard)" in found.absent
    fewer = computed("001-fig-5", write_zoo(tmp_path / "zoo", seeds=1, gammas=(0.0, 1.0)))
    assert "best gamma raw(cifar10 resnet20, standard)" in fewer.absent
    row = next(row for row in fewer.table if row[0] == "CIFAR-10, ResNet-20")
    assert row[-3:] == (NO_ENTRY, NO_ENTRY, "–")
    figure = Figure()
    reproduce.KINDS["zoo-boxes"].draw(figure, SPECS["001-fig-5"].parameters["smoke"], fewer)
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == ["γ = 0", "γ = 1", "γ = 2\nno\nentry", "γ = 3\nno\nentry"]


def test_label_smoothing_is_its_own_paradigm(tmp_path):
    write_zoo(tmp_path, seeds=1, label_smoothing=0.1)
    found = computed("001-fig-6", tmp_path)
    assert "best gamma raw(cifar10 resnet20, label-smoothing)" in found.values
    assert "best gamma raw(cifar10 resnet20, ts-fl)" in found.absent


def test_the_product_of_temperatures(networks):
    found = computed("003-sec-4-1", networks).values
    (val, _), _ = parts(networks, "g3-s0")
    temperatures = np.arange(0.2, 1.2, 0.002)
    posterior = posterior_from_logits(val, gamma=3)
    divergences = [metrics.kl_to_posterior(posterior_from_logits(val / t, gamma=0), posterior) for t in temperatures]
    assert zoo_product.nearest_temperature(val, 3.0) == pytest.approx(temperatures[np.argmin(divergences)], abs=0.002)
    name = "(cifar10 resnet20, 3)"
    expected = found[f"map{name}"] * found["T(cifar10 resnet20, cross-entropy)"]
    assert found[f"product{name}"] == pytest.approx(expected)

    def fitted(val, val_labels, _, __):
        return TemperatureScaling().fit(val, val_labels).temperature_

    assert found[f"T{name}"] == both_seeds(networks, 3, fitted)


def test_labels_keep_away_from_marks_and_from_each_other():
    paths = [np.array([[0.0, 0.0], [12.0, 0.0], [24.0, 0.0]]), np.array([[12.0, 12.0]])]
    offsets = zoo_product.place_labels(paths, unit=1.0)
    marks = np.concatenate(paths)
    labels = marks + np.concatenate(offsets)
    assert np.linalg.norm(labels[:, None] - marks, axis=2).min() > 8.9  # each is 9 points from its own mark
    assert np.linalg.norm(labels[:, None] - labels, axis=2)[~np.eye(len(labels), dtype=bool)].min() > 8.9
    assert offsets[0][1] == pytest.approx([0, -9])  # the lines are left and right, the other mark above


def test_gradients_are_those_of_focal_loss():
    torch = pytest.importorskip("torch")
    from refocal.losses import focal_loss

    rng = np.random.default_rng(0)
    part = LogitPart(rng.standard_normal((20, 5)), rng.integers(0, 5, 20))
    logits = torch.tensor(part.logits, requires_grad=True)
    focal_loss(logits, torch.tensor(part.labels), gamma=2.0).sum().backward()
    np.testing.assert_allclose(zoo_gradient.norms(part, 2.0), logits.grad.norm(dim=1).numpy(), rtol=1e-9)


def test_samples_are_classified_correctly_or_wrongly_by_all(networks):
    found = computed("002-fig-8", networks)
    one, three = (list(parts(networks, f"g{gamma}-s0"))[1] for gamma in (0, 3))
    wrong = np.flatnonzero((one[0].argmax(1) != one[1]) & (three[0].argmax(1) != three[1]))
    assert found.curves["shown"]["cifar10 resnet20"]["wrong"]["index"].tolist() == wrong[:4].tolist()
    top = posterior_from_logits(one[0], gamma=0).max(axis=1)[wrong].mean()
    assert found.values["wrong(cifar10 resnet20, cross-entropy, raw)"] == pytest.approx(top)


@pytest.mark.parametrize("name", OF_THE_ZOO)
def test_an_empty_zoo_is_not_an_error(name, tmp_path):
    folder = tmp_path / "zoo"
    folder.mkdir()
    spec = SPECS[name]
    outcome = reproduce.reproduce(spec, scale="smoke", results=tmp_path / "results", context=Context(zoo=folder))
    assert outcome.result.made_from == {}
    assert outcome.result.numbers.values == {}
    assert all(item.ours is None and item.within is None for item in outcome.result.published)
    assert any(NO_ENTRY in cell for row in outcome.result.numbers.table for cell in row)
    assert result_files.load(tmp_path / "results", spec, "smoke") == outcome.result


def test_a_result_is_recomputed_when_its_entries_change(tmp_path):
    folder = write_zoo(tmp_path / "zoo", seeds=1)

    def why(name="002-table-1"):
        made = reproduce.reproduce(SPECS[name], scale="smoke", results=tmp_path / "r", context=Context(zoo=folder))
        return made.why, sorted(made.result.made_from)

    assert why() == ("no result yet", ["g0-s0"])
    assert why() == ("already stored", ["g0-s0"])
    add(folder, "unrelated", data="cifar10", loss="dual-focal", gamma=5.0)
    add_history(folder, "unrelated")
    assert why() == ("already stored", ["g0-s0"])
    add(folder, "brier-s0", data="cifar10", loss="brier")
    add_history(folder, "brier-s0")
    assert why() == ("the zoo has changed since the result was stored", ["brier-s0", "g0-s0"])
    add_history(folder, "g0-s0", epochs=11)
    assert why()[0] == "the zoo has changed since the result was stored"
    assert why()[0] == "already stored"


def test_undefined_numbers_are_not_missing_entries(tmp_path):
    add(tmp_path, "flat", data="cifar10", scale=0.01)
    add_history(tmp_path, "flat")
    rows = computed("002-table-6", tmp_path).table
    found = {row[1]: row[2] for row in rows if row[0] == "CIFAR-10, ResNet-20"}
    assert found["confidence of 0.99 or more (%), pre T"] == "0.00"
    assert found["accuracy if confident (%), pre T"] == "–"


def test_the_list_shows_outdated_results(tmp_path, capsys):
    folder = write_zoo(tmp_path / "zoo", seeds=1)
    common = ["reproduce", "--experiments", str(EXPERIMENTS), "--results", str(tmp_path / "r"), "--zoo", str(folder)]
    assert cli.main([*common, "002-table-3", "002-table-9", "--scale", "smoke"]) == 0

    def old():
        capsys.readouterr()
        assert cli.main([*common, "--list", "--json"]) == 0
        return [item["id"] for item in json.loads(capsys.readouterr().out) if item["out_of_date"]]

    assert old() == []
    add(folder, "brier-s0", data="cifar10", loss="brier")
    add_history(folder, "brier-s0")
    assert old() == ["002-table-3"]


def test_the_command_shows_tables(networks, tmp_path, capsys):
    common = ["reproduce", "--experiments", str(EXPERIMENTS), "--results", str(tmp_path), "--zoo", str(networks)]
    assert cli.main([*common, "002-table-3", "001-fig-5", "--scale", "smoke"]) == 0
    out = capsys.readouterr().out
    assert "  CIFAR-10, ResNet-50 |  | no entry [4.95] | no entry [5.00]" in out
    assert "  best γ for raw scores, CIFAR-10, ResNet-8: paper: 0, ours: no entry\n" in out
    assert cli.main([*common, "002-table-3", "--scale", "smoke", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["table"][0][0] == "network"


def test_without_a_zoo(tmp_path):
    with pytest.raises(FileNotFoundError, match="give their folder with --zoo"):
        reproduce.reproduce(SPECS["002-table-1"], scale="smoke", results=tmp_path)


def test_the_gallery_shows_tables_and_missing_entries(networks, tmp_path):
    spec = SPECS["001-fig-5"]
    made = reproduce.reproduce(spec, scale="small", results=tmp_path, context=Context(zoo=networks)).result
    shown = reproduce.render_gallery({spec.id: spec}, {spec.id: made}, figures="results")
    assert "| best γ for raw scores, CIFAR-10, ResNet-8 | Sec. 6.2 | 0 | no entry | – |" in shown
    assert (
        "\n\n| network |  |  | γ = 0 | γ = 1 | γ = 2 | γ = 3 | best γ |\n|---|---|---|---|---|---|---|---|\n" in shown
    )
    assert "| CIFAR-10, ResNet-8 | no entry |  |  |  |  |  |  |" in shown


def test_each_data_set_of_the_paper_has_its_own_panels(tmp_path):
    for data in ("set1", "set2", "elsewhere"):
        add(tmp_path, data, data=data, val=40, test=40)
    numbers = computed("002-table-6", tmp_path)
    given = replace(SPECS["002-table-6"].parameters["smoke"], networks=("set1 resnet50", "set2 resnet50"))
    drawn = style.render(reproduce.KINDS["zoo-table"].draw, given, numbers)["figure.svg"].decode()
    assert "(a) set1" in drawn
    assert "(b) set2" in drawn
    assert "elsewhere" not in drawn


def test_the_rows_of_a_table_are_sorted_and_have_the_papers_numbers(tmp_path):
    for model in ("resnet110-bottleneck", "resnet20"):
        for loss, times in (("cross-entropy", 3.0), ("brier", 1.0)):
            for seed in range(2):
                add(tmp_path, f"{model}-{loss}-{seed}", data="cifar10", model=model, loss=loss, seed=seed, scale=times)
                add_history(tmp_path, f"{model}-{loss}-{seed}")
    spec = SPECS["002-table-1"]
    numbers = computed(spec.id, tmp_path)
    figure = Figure(layout="constrained")
    reproduce.KINDS[spec.kind].draw(figure, spec.parameters["smoke"], numbers)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ours = {(item["network"], item["loss"]): np.mean(item["ece_15"]["raw"]) for item in numbers.curves["networks"]}
    best = min(("cross-entropy", "brier"), key=lambda loss: ours["cifar10 resnet20", loss])
    assert [label for label in labels if label.startswith("ResNet")] == ["ResNet-20", "ResNet-110 (bottleneck)"]
    assert labels[1] == {"cross-entropy": "cross-entropy", "brier": "Brier score"}[best]
    found = [(line.get_marker(), *np.round(line.get_xdata(), 2), line.get_ydata()[0]) for line in figure.axes[0].lines]
    heading = labels.index("ResNet-110 (bottleneck)")
    plain = heading + 1 + labels[heading + 1 :].index("cross-entropy")
    assert ("D", 4.41, plain) in found  # the paper's number for the same network
    assert ("|", 4.35, plain) in found  # its ResNet-50
    assert not any(mark == "D" and row < heading for mark, *_, row in found)
    mean = round(100 * ours["cifar10 resnet110-bottleneck", "cross-entropy"], 2)
    assert ("o", mean, plain) in found


def test_marks_are_not_cut_off_on_axes_that_start_at_zero():
    ax = Figure().subplots()
    ax.plot([1, 2], [100, 101])
    style.start_at_zero(ax)
    assert ax.get_ylim() == pytest.approx((0, 101 * (1 + ax.margins()[1])))
    assert ax.get_xlim()[0] > 0


def test_the_last_bits_of_a_layout_change_no_byte():
    def drawn(left):
        def draw(figure, *_):
            figure.set_layout_engine("none")
            for place in (left, left + 0.5):
                figure.add_axes((place, 0.1, 0.3, 0.8)).plot([1, 2])

        return style.render(draw, None, Numbers({}))

    assert drawn(0.1) == drawn(np.nextafter(0.1, 1))
    assert drawn(0.1)["figure.svg"].count(b'<clipPath id="clip') == 2


def test_a_table_of_every_method_is_drawn(networks):
    every = ("raw", "ts-nll", "ts-adaptive-ece", "ts-ece")
    given = replace(SPECS["002-table-1"].parameters["smoke"], methods=every)
    numbers = computed("002-table-1", networks, methods=every)
    assert "figure.svg" in style.render(reproduce.KINDS["zoo-table"].draw, given, numbers)
