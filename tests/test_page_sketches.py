"""Sketches on the pages: blocks marked `py`, which leave out what readers have. They run with stand-ins for that."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import refocal
from refocal import demo
from refocal.calibrators import FocalTemperatureScaling

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from refocal.losses import FocalLoss, Scheduled  # noqa: E402

DOCS = Path(__file__).parents[1] / "docs"
TEST = demo.load().select("test")


def have_a_detector():
    """DETR's interface, as far as the page uses it: the processor takes the sigmoid of logits for probabilities."""

    def find_boxes(outputs, *, threshold, target_sizes):
        scores = outputs.logits.sigmoid().amax(dim=2)
        return [{"scores": each[each > threshold]} for each, _ in zip(scores, target_sizes, strict=True)]

    logits = torch.logit(torch.tensor([0.2, 0.39, 0.41, 0.9])).reshape(1, 4, 1)
    return {
        "torch": torch,
        "sigmoid_posterior": refocal.sigmoid_posterior,
        "model": lambda **_: SimpleNamespace(logits=logits),
        "inputs": {"pixels": torch.zeros(1, 3, 8, 8)},
        "processor": SimpleNamespace(post_process_object_detection=find_boxes),
        "sizes": [(8, 8)],
    }


def check_boxes(names):
    (found,) = names["found"]
    torch.testing.assert_close(found["scores"].float(), torch.tensor([0.53, 1.0]), atol=0.01, rtol=0)


def have_a_trainer():
    pytest.importorskip("transformers", reason="transformers is not installed: `make test-integrations` runs this page")
    from refocal.integrations import transformers

    class Trainer:
        def __init__(self, *_, compute_loss_func, compute_metrics):
            self.loss, self.metrics = compute_loss_func, compute_metrics

        def train(self):
            """Compute one loss, and one evaluation."""
            assert self.loss({"logits": torch.zeros(2, 3)}, torch.tensor([0, 1])) > 0
            found = self.metrics(SimpleNamespace(predictions=np.zeros((9, 3)), label_ids=np.arange(9) % 3))
            assert "nll_posterior" in found

    return {
        "FocalLoss": FocalLoss,
        "Trainer": Trainer,
        "TrainerLoss": transformers.TrainerLoss,
        "CalibrationMetrics": transformers.CalibrationMetrics,
        "model": lambda **_: SimpleNamespace(logits=torch.zeros(2, 3)),
        "inputs": {"input_ids": torch.zeros(2, 5)},
    }


def check_probs(names):
    torch.testing.assert_close(names["probs"], torch.full((2, 3), 1 / 3))


def have_a_schedule():
    return {"TrainerCallback": object, "criterion": FocalLoss(Scheduled([2], [5.0, 3.0]))}


def check_schedule(names):
    callback, policy = names["StepGamma"](), names["criterion"].gamma
    callback.on_train_begin(None, SimpleNamespace(epoch=1.0), None)
    assert float(policy(torch.ones(1))) == 5
    callback.on_epoch_end(None, SimpleNamespace(epoch=2.0), None)
    assert float(policy(torch.ones(1))) == 3


def have_a_callback():
    collected = []
    return {
        "CalibrationCallback": lambda *, collect: collected.append(collect),
        "collected": collected,
        "model": torch.sin,
    }


def check_collecting(names):
    first, second = names["collected"]
    assert first({"preds": 1}, {"label": 2}) == (1, 2)
    torch.testing.assert_close(second(None, (torch.zeros(2), 3)), (torch.zeros(2), 3))


def have_a_metric():
    pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    from refocal.metrics.torchmetrics import CalibrationMetric

    return {"CalibrationMetric": CalibrationMetric}


def check_metric(names):
    logged = {}
    module = type("Module", (), {name: names[name] for name in ("__init__", "validation_step")})
    module.__call__ = lambda _, images: images
    made = module()
    made.log_dict = logged.update
    names["validation_step"](made, (torch.zeros(5, 10), torch.arange(5)), 0)
    names["on_validation_epoch_end"](made)
    assert logged["val/nll"] == pytest.approx(np.log(10), rel=1e-5)


def have_trackers():
    logged = []
    run = SimpleNamespace()
    start = contextlib.nullcontext
    return {
        "report": SimpleNamespace(log=logged.append),
        "logged": logged,
        "mlflow": SimpleNamespace(start_run=start),
        "wandb": SimpleNamespace(init=lambda **_: start(run)),
    }


def check_logged(names):
    assert names["logged"] == [names["mlflow"], names["run"]]


def have_a_network_as_a_graph():
    """A graph of an older opset, which passes logits through, and the graph of a calibrator."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    head = FocalTemperatureScaling().fit(TEST.scores, TEST.labels)
    head.to_onnx("head.onnx")
    values = {name: onnx.helper.make_tensor_value_info(name, 1, ["rows", 10]) for name in ("images", "scores")}
    weights = onnx.numpy_helper.from_array(np.eye(10, dtype=np.float32), "weights")
    node = onnx.helper.make_node("MatMul", ["images", "weights"], ["scores"])
    graph = onnx.helper.make_graph([node], "network", [values["images"]], [values["scores"]], [weights])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, "network.onnx")
    return {"expected": head.predict_proba(TEST.scores)}


def check_joined(names):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = onnxruntime.InferenceSession("joined.onnx", providers=["CPUExecutionProvider"])
    (probs,) = session.run(None, {"images": TEST.scores.astype(np.float32)})
    np.testing.assert_allclose(probs, names["expected"], rtol=0, atol=1e-6)


SKETCHES = {
    "how-to/detection.md": [(have_a_detector, check_boxes)],
    "how-to/hugging-face.md": [(have_a_trainer, check_probs), (have_a_schedule, check_schedule)],
    "how-to/lightning.md": [(have_a_callback, check_collecting)],
    "how-to/metrics.md": [(have_a_metric, check_metric)],
    "reference/report.md": [(have_trackers, check_logged)],
    "tutorials/ship-to-onnx.md": [(have_a_network_as_a_graph, check_joined)],
}


def list_sketches():
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"^```py\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)):
            yield str(page.relative_to(DOCS)), number, block


def test_every_sketch_has_stand_ins():
    found = [(page, number) for page, number, _ in list_sketches()]
    assert found == [(page, number) for page, parts in SKETCHES.items() for number in range(len(parts))]


@pytest.mark.parametrize(
    ("page", "number", "block"), [pytest.param(*each, id=f"{each[0]} {each[1]}") for each in list_sketches()]
)
def test_a_sketch_runs(page, number, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    have, check = SKETCHES[page][number]
    names = have()
    exec(compile(block, page, "exec"), names)
    check(names)
