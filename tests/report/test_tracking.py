"""Reports in experiment trackers: a local store of MLflow, and Weights & Biases without a network."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import refocal
from refocal.calibrators import load
from refocal.report.tracking import list_metrics

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.standard_normal((600, 3))
LABELS = np.array([RNG.choice(3, p=p) for p in np.exp(LOGITS / 3) / np.exp(LOGITS / 3).sum(1, keepdims=True)])

TAGS = LOGITS[:400, :2] > RNG.logistic(size=(400, 2))


def make_report():
    return refocal.calibrate(LOGITS[:300], LABELS[:300], method="temperature").report(LOGITS[300:], LABELS[300:])


def make_multilabel_report():
    return refocal.evaluate_multilabel(3 * LOGITS[:400, :2], TAGS)


@pytest.fixture(scope="module")
def report():
    return make_report()


@pytest.fixture(scope="module")
def tagged():
    return make_multilabel_report()


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    module = pytest.importorskip("mlflow", reason="MLflow is not installed: `make test-integrations` runs them")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = module.get_tracking_uri()
    module.set_tracking_uri((tmp_path / "runs").as_uri())
    yield module
    module.set_tracking_uri(before)


def download(client, run_id, folder):
    """The names and the texts of a run's files."""
    path = client.download_artifacts(run_id, "refocal", str(folder))
    return {each.name: each.read_text(encoding="utf-8") for each in Path(path).iterdir()}


def test_metrics_have_stable_names(report):
    metrics = list_metrics(report)
    assert metrics["refocal/samples"] == 300
    assert metrics["refocal/given/ece"] == report.given.measures["ece"].value
    assert metrics["refocal/given/nll_low"] == report.given.measures["nll"].low
    assert metrics["refocal/chosen/brier_high"] == report.chosen.measures["brier"].high
    assert metrics["refocal/chosen/p_value"] == report.chosen.p_value
    measures = ["nll", "brier", "ece", "debiased_ece", "adaptive_ece", "classwise_ece", "error"]
    ends = [*(f"{name}{end}" for name in measures for end in ("", "_low", "_high")), "p_value"]
    expected = {f"refocal/{role}/{end}" for role in ("given", "chosen") for end in ends}
    assert set(metrics) == expected | {"refocal/samples"}


def test_metrics_of_a_multilabel_report(tagged):
    metrics = list_metrics(tagged)
    values = [own.given.measures["ece"].value for own in tagged.reports]
    assert metrics["refocal/given/ece_mean"] == pytest.approx(np.mean(values))
    assert metrics["refocal/given/ece_largest"] == max(values)
    assert metrics["refocal/given/p_value"] == min(own.given.p_value for own in tagged.reports)


def test_the_active_run_of_mlflow(report, mlflow, tmp_path):
    with mlflow.start_run() as run:
        report.log(mlflow, step=7)
    client = mlflow.MlflowClient()
    found = client.get_run(run.info.run_id)
    assert found.data.metrics == pytest.approx(list_metrics(report))
    assert client.get_metric_history(run.info.run_id, "refocal/given/ece")[0].step == 7
    assert found.data.tags["refocal/method"] == "temperature"
    assert found.data.tags["refocal/regime"] == report.verdict.regime
    files = download(client, run.info.run_id, tmp_path)
    assert set(files) == {"report.html", "report.json", "calibrator.json"}
    assert json.loads(files["report.json"]) == json.loads(report.to_json())
    assert files["report.html"].startswith("<!DOCTYPE html>")
    fitted = load(tmp_path / "refocal" / "calibrator.json")
    np.testing.assert_array_equal(fitted.predict_proba(LOGITS), report.calibrator.predict_proba(LOGITS))


def test_the_call_on_the_page(report, mlflow):
    page = (Path(__file__).parents[2] / "docs/reference/report.md").read_text(encoding="utf-8")
    block = re.search(r"```py\n(.*?)```", page, flags=re.DOTALL)[1]
    exec(block.split("\n\n")[0], {"report": report, "mlflow": mlflow})
    found = mlflow.last_active_run()
    assert found.data.metrics == pytest.approx(list_metrics(report))


def test_a_run_and_a_client_of_mlflow(report, mlflow):
    client = mlflow.MlflowClient()
    ids = [client.create_run("0").info.run_id for _ in range(3)]
    report.log(client.get_run(ids[0]))
    report.log(client, run_id=ids[1])
    report.log(mlflow, run_id=ids[2])
    for run_id in ids:
        assert client.get_run(run_id).data.metrics == pytest.approx(list_metrics(report))


def test_a_report_without_a_calibrator_in_mlflow(tagged, mlflow, tmp_path):
    with mlflow.start_run() as run:
        tagged.log(run)
    client = mlflow.MlflowClient()
    assert client.get_run(run.info.run_id).data.metrics == pytest.approx(list_metrics(tagged))
    assert set(download(client, run.info.run_id, tmp_path)) == {"report.html", "report.json"}


def test_wrong_runs_of_mlflow(report, mlflow):
    with pytest.raises(ValueError, match=r"mlflow has no active run: call report.log inside mlflow.start_run"):
        report.log(mlflow)
    with pytest.raises(ValueError, match="run_id must name the run if an MLflow client is given, got None"):
        report.log(mlflow.MlflowClient())
    run = mlflow.MlflowClient().create_run("0")
    with pytest.raises(ValueError, match=r"run_id must be that of the run, '.*', or None, got 'other'"):
        report.log(run, run_id="other")
    with pytest.raises(TypeError, match="an MLflow run or an MLflow client, got RunInfo"):
        report.log(run.info)


# In a process of its own: wandb starts another one and makes temporary folders, which it removes at its end.
LOG_TO_WANDB = """
import json, sys
import wandb
import test_tracking

sent = []
with wandb.init(mode="offline", project="test", dir=sys.argv[1]) as run:
    log_artifact = run.log_artifact
    run.log_artifact = lambda artifact: sent.append(artifact) or log_artifact(artifact)
    test_tracking.make_report().log(run, step=3)
    test_tracking.make_multilabel_report().log(run)
    summary = {name: run.summary[name] for name in run.summary.keys() if name != "refocal/report"}
    messages = []
    try:
        test_tracking.make_report().log(run, run_id="a")
    except ValueError as error:
        messages.append(str(error))
    folder, step = run.dir, run.step
    entries = [sorted(each.manifest.entries) for each in sent]
    test_tracking.make_multilabel_report().log(wandb, step=9)
    assert len(sent) == 3
try:
    test_tracking.make_report().log(wandb)
except ValueError as error:
    messages.append(str(error))
print(json.dumps([summary, entries, messages, folder, step]))
"""


@pytest.mark.skipif(
    not importlib.util.find_spec("wandb"), reason="wandb is not installed: `make test-integrations` runs it"
)
def test_a_run_of_wandb_without_a_network(report, tagged, tmp_path):
    places = ("TMPDIR", "HOME", *(f"WANDB_{name}_DIR" for name in ("CACHE", "DATA", "CONFIG", "ARTIFACT")))
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    surroundings = {
        **os.environ,
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "PYTHONPATH": path,
    } | dict.fromkeys(places, str(tmp_path))
    command = [sys.executable, "-c", LOG_TO_WANDB, str(tmp_path)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, encoding="utf-8", env=surroundings, cwd=tmp_path
    )
    summary, entries, messages, folder, step = json.loads(done.stdout.splitlines()[-1])
    expected = {**list_metrics(report), **list_metrics(tagged)}
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    assert summary["refocal/method"] == "temperature"
    assert summary["refocal/regime"] == tagged.verdict.regime
    assert entries == [["calibrator.json", "report.html", "report.json"], ["report.html", "report.json"]]
    assert messages == [
        "run_id must be None for a run of Weights & Biases, which has its own, got 'a'",
        "wandb has no active run: call wandb.init() first",
    ]
    assert step == 4  # the next one
    pages = [page.read_text(encoding="utf-8") for page in Path(folder).rglob("*.html")]
    assert len(pages) == 3
    assert all(page.startswith("<!DOCTYPE html>") for page in pages)


@pytest.mark.parametrize("run", [None, "run-1", object(), types], ids=["none", "text", "object", "module"])
def test_other_objects_are_rejected(report, run):
    with pytest.raises(
        TypeError, match=r"run must be the module mlflow or wandb, an MLflow run .*, or a wandb.Run, got"
    ):
        report.log(run)


@pytest.mark.parametrize("step", [1.5, "1", True])
def test_a_step_is_a_whole_number(report, step):
    with pytest.raises(TypeError, match="step must be a whole number, got"):
        report.log(types, step=step)
