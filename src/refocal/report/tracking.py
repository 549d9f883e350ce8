"""A report in an experiment tracker: numbers as metrics, the page, the record and the calibrator as files.

Neither MLflow nor Weights & Biases is imported. A run, client or module is recognized by its package, which the caller
has already loaded.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from refocal import _check

if TYPE_CHECKING:
    from refocal.report.multilabel_record import MultilabelReport
    from refocal.report.record import Method, Report

FOLDER = "refocal"  # for metrics, tags and files
_PAGE, _RECORD, _CALIBRATOR = "report.html", "report.json", "calibrator.json"
_MOST_METRICS = 1000  # in one request to MLflow


def log_report(report: Report | MultilabelReport, run: Any, *, run_id: str | None, step: int | None) -> None:
    """Send a report to the run of an experiment tracker; `Report.log` says what is sent."""
    step = None if step is None else _check.whole(step, "step")
    package = _find_package(run)
    if package == "mlflow":
        client, own_id = _find_mlflow_run(run, run_id)
        _log_to_mlflow(report, client, own_id, step=step or 0)
    elif package == "wandb" and hasattr(run, "log") and hasattr(run, "log_artifact"):
        _log_to_wandb(report, _find_wandb_run(run, run_id), step=step)
    else:
        msg = f"run must be the module mlflow or wandb, an MLflow run or client, or a wandb.Run, got {_describe(run)}"
        raise TypeError(msg)


def list_metrics(report: Report | MultilabelReport) -> dict[str, float]:
    """The numbers of a report by stable names, such as `refocal/given/ece` and `refocal/chosen/ece_low`."""
    found = {"samples": float(report.samples)}
    reports: Sequence[Report] | None = getattr(report, "reports", None)
    for role in ("given", "chosen"):
        own = (
            _list_method(getattr(report, role)) if reports is None else _summarize([getattr(r, role) for r in reports])
        )
        found |= {f"{role}/{name}": value for name, value in own}
    return {f"{FOLDER}/{name}": value for name, value in found.items()}


def _list_method(method: Method) -> Iterator[tuple[str, float]]:
    for name, estimate in method.measures.items():
        limits = {"": estimate.value, "_low": estimate.low, "_high": estimate.high}
        yield from ((f"{name}{end}", float(value)) for end, value in limits.items() if value is not None)
    if method.p_value is not None:
        yield "p_value", float(method.p_value)


def _summarize(methods: Sequence[Method]) -> Iterator[tuple[str, float]]:
    """The mean of each measure over the classes of a multi-label report, and its largest value."""
    for name in methods[0].measures:
        values = [float(method.measures[name].value) for method in methods if name in method.measures]
        yield f"{name}_mean", sum(values) / len(values)
        yield f"{name}_largest", max(values)
    p_values = [float(method.p_value) for method in methods if method.p_value is not None]
    if p_values:
        yield "p_value", min(p_values)


def _list_tags(report: Report | MultilabelReport) -> dict[str, str]:
    """The text of a report: its verdict and, for a single-label report, the recommended method."""
    words = {} if report.verdict is None else {"regime": report.verdict.regime, "verdict": report.verdict.sentences[0]}
    chosen = getattr(report, "chosen", None)
    if chosen is not None:
        words["method"] = chosen.name
    return {f"{FOLDER}/{name}": text for name, text in words.items()}


def _write_files(report: Report | MultilabelReport, folder: Path) -> None:
    report.save(folder / _PAGE)
    report.save(folder / _RECORD)
    if report.calibrator is not None:
        report.calibrator.save(folder / _CALIBRATOR)


def _find_package(run: Any) -> str:
    """The package that a run, a client or a module comes from."""
    name: str = run.__name__ if isinstance(run, ModuleType) else type(run).__module__
    return name.partition(".")[0]


def _describe(run: Any) -> str:
    return f"the module {run.__name__}" if isinstance(run, ModuleType) else type(run).__name__


def _find_mlflow_run(run: Any, run_id: str | None) -> tuple[Any, str]:
    """The client to log with, and the id of the run."""
    mlflow = sys.modules["mlflow"]
    if hasattr(run, "log_batch"):
        if run_id is None:
            msg = "run_id must name the run if an MLflow client is given, got None"
            raise ValueError(msg)
        return run, run_id
    if run is mlflow:
        active = mlflow.active_run()
        if run_id is None and active is None:
            msg = "mlflow has no active run: call report.log inside mlflow.start_run(), or name one with run_id="
            raise ValueError(msg)
        return mlflow.MlflowClient(), run_id or active.info.run_id
    own_id = getattr(getattr(run, "info", None), "run_id", None)
    if own_id is None:
        msg = f"run must be the module mlflow, an MLflow run or an MLflow client, got {_describe(run)}"
        raise TypeError(msg)
    if run_id not in (None, own_id):
        msg = f"run_id must be that of the run, {own_id!r}, or None, got {run_id!r}"
        raise ValueError(msg)
    return mlflow.MlflowClient(), own_id


def _find_wandb_run(run: Any, run_id: str | None) -> Any:
    """The run to log to: the active one if the module is given."""
    if run_id is not None:
        msg = f"run_id must be None for a run of Weights & Biases, which has its own, got {run_id!r}"
        raise ValueError(msg)
    if not isinstance(run, ModuleType):
        return run
    if run.run is None:
        msg = "wandb has no active run: call wandb.init() first"
        raise ValueError(msg)
    return run.run


def _log_to_mlflow(report: Report | MultilabelReport, client: Any, run_id: str, *, step: int) -> None:
    entities = sys.modules["mlflow"].entities
    now = int(1000 * time.time())
    metrics = [entities.Metric(name, value, now, step) for name, value in list_metrics(report).items()]
    tags = [entities.RunTag(name, text) for name, text in _list_tags(report).items()]
    for start in range(0, len(metrics), _MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + _MOST_METRICS], tags=tags if start == 0 else [])
    with tempfile.TemporaryDirectory() as folder:
        _write_files(report, Path(folder))
        client.log_artifacts(run_id, folder, artifact_path=FOLDER)


def _log_to_wandb(report: Report | MultilabelReport, run: Any, *, step: int | None) -> None:
    wandb = sys.modules["wandb"]
    with tempfile.TemporaryDirectory() as folder:
        _write_files(report, Path(folder))
        page = (Path(folder) / _PAGE).read_text(encoding="utf-8")
        artifact = wandb.Artifact(f"refocal-report-{run.id}", type="refocal-report")
        artifact.add_dir(folder)
        run.log_artifact(artifact)
    # the page also appears among the charts of the run; `inject` would add a style of Weights & Biases
    shown = {f"{FOLDER}/report": wandb.Html(io.StringIO(page), inject=False)}
    run.log({**list_metrics(report), **shown}, step=step)
    run.summary.update(_list_tags(report))
