"""Posterior maps under tracing, fake tensors and compilation: they must not read values, and must stay exact."""

from __future__ import annotations

import inspect
import io

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from refocal import losses as L  # noqa: E402
from refocal.losses.posterior_maps import FocalMap, InverseFocalMap, SigmoidMap, SoftmaxMap  # noqa: E402

MAPS = {
    "focal": FocalMap(2.0),
    "sharpening": FocalMap(-0.5),
    "per class": FocalMap([0.0, 1.0, 2.0], weight=[1.0, 2.0, 3.0]),
    "smoothed": FocalMap(2.0, label_smoothing=0.1, detached=True),
    "inverse": InverseFocalMap(0.5),
    "inverse weighted": InverseFocalMap(0.5, weight=[1.0, 2.0, 3.0]),
    "softmax": SoftmaxMap(),
    "sigmoid": SigmoidMap(2.0, 0.25),
}
each_map = pytest.mark.parametrize("posterior_map", MAPS.values(), ids=MAPS)


def logits(count, *, seed=0):
    return 3 * torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


@each_map
def test_tensors_without_values(posterior_map):
    mode = FakeTensorMode()
    with mode:
        assert posterior_map(torch.empty(4, 3)).shape == (4, 3)
    fake = mode.from_tensor(logits(4))
    assert posterior_map(fake).shape == (4, 3)
    assert posterior_map(logits(4).to("meta")).is_meta


@pytest.mark.parametrize(
    ("posterior_map", "tracing_mode"),
    [(MAPS["focal"], "real"), *((each, "symbolic") for each in MAPS.values())],
    ids=["focal, real values", *MAPS],
)
def test_a_recorded_graph(posterior_map, tracing_mode):
    graph = make_fx(posterior_map, tracing_mode=tracing_mode)(logits(4))
    other = logits(4, seed=1)
    torch.testing.assert_close(graph(other), posterior_map(other))


@each_map
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")  # a FutureWarning since PyTorch 2.15
def test_torchscript_takes_batches_of_any_size(posterior_map):
    traced = torch.jit.trace(posterior_map, logits(4))
    many = logits(30_000, seed=1)
    torch.testing.assert_close(traced(many), posterior_map(many))


@each_map
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from PyTorch's older exporter
@pytest.mark.skipif("dynamo" not in inspect.signature(torch.onnx.export).parameters, reason="one exporter is left")
def test_the_older_exporter_to_onnx(posterior_map):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    file = io.BytesIO()
    names = {"input_names": ["logits"], "output_names": ["probs"], "dynamic_axes": {"logits": {0: "rows"}}}
    torch.onnx.export(posterior_map, (logits(4),), file, dynamo=False, **names)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    other = logits(50, seed=1)
    other[0, 1] = other[0, 0] + 1e-4  # nearly a tie
    (probs,) = session.run(None, {"logits": other.numpy()})
    torch.testing.assert_close(torch.from_numpy(probs), posterior_map(other), rtol=1e-4, atol=1e-6)


WEIGHT = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    "criterion",
    [
        L.FocalLoss(2.0, weight=WEIGHT),
        L.FocalLoss([0.0, 1.0, 2.0], weight=WEIGHT, label_smoothing=0.1),
        L.InverseFocalLoss(0.5, weight=WEIGHT),
        L.ProperFocalLoss(2.0, weight=WEIGHT),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_posterior_of_a_weighted_loss_is_compiled_whole(criterion):
    torch.compiler.reset()
    compiled = torch.compile(criterion.posterior, backend="aot_eager", fullgraph=True)
    for given in (logits(4), logits(4).double()):
        torch.testing.assert_close(compiled(given), criterion.posterior(given))
    expected = criterion.posterior(logits(4))
    criterion.load_state_dict({"weight": WEIGHT.flip(0)})
    changed = criterion.posterior(logits(4))
    assert (changed - expected).abs().max() > 0.01
    torch.testing.assert_close(compiled(logits(4)), changed)
    criterion.load_state_dict({"weight": WEIGHT})
