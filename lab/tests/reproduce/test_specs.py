"""Reading specs: errors name the file and the key."""

from __future__ import annotations

import pytest

from refocal_lab.reproduce import read_spec, read_specs

GOOD = """
id = "003-fig-3"
paper = "003"
title = "Bounds"
caption = "Bounds by theory and experiment."
kind = "bounds"
[parameters]
largest_gamma = 10
example = 4
logit_range = 20
narrower_range = 10
logit_step = 0.01
temperature_step = 0.001
[scales]
smoke = { gammas = 3 }
small = { gammas = 11 }
paper = { gammas = 21 }
[[published]]
number = "lower(theory)"
says = "lower bound"
where = "Sec. 3.2"
value = 0.2
tolerance = 0.0005
"""


@pytest.fixture
def write(tmp_path):
    def written(text, name="003-fig-3.toml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return written


def test_a_good_spec(write):
    spec = read_spec(write(GOOD))
    assert spec.parameters["smoke"].gammas == 3
    assert spec.parameters["paper"].example == 4.0
    assert isinstance(spec.parameters["paper"].example, float)
    assert spec.published[0].holds(0.2004)
    assert not spec.published[0].holds(0.2006)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id = "003-fig-3"', 'id = "003-fig-4"', "id must be the name of the file, '003-fig-3', got '003-fig-4'"),
        ('paper = "003"', 'paper = "002"', "id must begin with the number of the paper, '002-'"),
        ('kind = "bounds"', 'kind = "bound"', "kind must be one of arrows, .*, got 'bound'"),
        ('title = "Bounds"', "title = 3", "title must be of type str, got 3"),
        ('title = "Bounds"', "", "the spec: missing title"),
        ('title = "Bounds"', 'title = "Bounds"\ncolor = "red"', "the spec: keys must be among .*, got color"),
        ("example = 4", "", "scale smoke: missing example"),
        ("example = 4", 'example = "four"', "scale smoke: example must be of type float, got 'four'"),
        ("example = 4", "example = true", "example must be of type float, got True"),
        ("example = 4", "example = nan", "example must be finite, got nan"),
        ("gammas = 11", "gammas = 1.5", "scale small: gammas must be of type int, got 1.5"),
        ("gammas = 11", "gamma = 11", "scale small: keys must be among .*, got gamma"),
        ("paper = { gammas = 21 }", "", "scales: missing paper"),
        ("paper = { gammas = 21 }", "paper = 3", "scales.paper must be of type dict, got 3"),
        ("tolerance = 0.0005", "", "published 1: tolerance must be given and must not be negative"),
        ("tolerance = 0.0005", "tolerance = -1", "published 1: tolerance must be given and must not be negative"),
        (
            "tolerance = 0.0005",
            'relation = "near"',
            "relation must be one of 'about', 'at most', 'at least', got 'near'",
        ),
        ('number = "lower(theory)"', "", "published 1: missing number"),
        (
            'kind = "bounds"',
            'kind = "bounds"\ndiffers = ["optimizer"]',
            r"differs must list some of 'network', 'data', 'schedule', each once, got \['optimizer'\]",
        ),
        (
            "tolerance = 0.0005",
            'tolerance = 1\ndiffers = ["data", "data"]',
            "published 1: differs must list some of 'network', 'data', 'schedule', each once",
        ),
        ("tolerance = 0.0005", 'tolerance = 1\ndiffers = "data"', "published 1: differs must be of type list"),
        ("[scales]", "[scales", "not a TOML file"),
    ],
)
def test_faults_are_named(write, old, new, message):
    assert old in GOOD
    with pytest.raises(ValueError, match=rf"003-fig-3\.toml: .*{message}"):
        read_spec(write(GOOD.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("relation", "ours", "holds"),
    [("at most", 0.1, True), ("at most", 0.3, False), ("at least", 0.3, True), ("at least", 0.1, False)],
)
def test_one_sided_numbers(write, relation, ours, holds):
    spec = read_spec(write(GOOD.replace("tolerance = 0.0005", f'relation = "{relation}"')))
    assert spec.published[0].holds(ours) is holds


def test_a_number_differs_as_its_figure_unless_it_says_otherwise(write):
    assert read_spec(write(GOOD)).published[0].differs == ()
    other = GOOD.replace('kind = "bounds"', 'kind = "bounds"\ndiffers = ["network", "schedule"]')
    spec = read_spec(write(other))
    assert spec.differs == spec.published[0].differs == ("network", "schedule")
    assert read_spec(write(other + "differs = []\n")).published[0].differs == ()
    left_open = GOOD.replace('kind = "bounds"', 'kind = "bounds"\nunstated = "schedule"')
    assert read_spec(write(left_open)).published[0].unstated == "schedule"
    assert read_spec(write(left_open + 'unstated = ""\n')).published[0].unstated == ""


def test_specs_come_in_order(write, tmp_path):
    write(GOOD.replace("003-fig-3", "003-fig-7"), "003-fig-7.toml")
    write(GOOD)
    assert list(read_specs(tmp_path)) == ["003-fig-3", "003-fig-7"]


def test_a_folder_without_specs(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no experiments in .*: give the folder lab/experiments"):
        read_specs(tmp_path)
