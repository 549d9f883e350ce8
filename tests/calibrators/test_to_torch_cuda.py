"""`to_torch()` on each device: eager, compiled, exported and traced modules agree with `predict_proba`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from labeled_logits import SATURATED, SHIPPED, draw_calibrated
from sklearn.base import clone

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.gpu),
]
on_every_device = pytest.mark.parametrize("device", DEVICES)
every = pytest.mark.parametrize("name", list(SHIPPED))


@pytest.fixture(scope="module")
def fitted():
    """Each calibrator, fitted once."""
    logits, labels = draw_calibrated(400, 3, dtype=np.float32)
    return {name: clone(calibrator).fit(1.5 * logits, labels) for name, calibrator in SHIPPED.items()}


def scores(device, dtype=torch.float32):
    logits, _ = draw_calibrated(40, 3, seed=1, dtype=np.float32)
    return torch.tensor(np.concatenate([logits, SATURATED]), dtype=dtype, device=device)


def predict(calibrator, batch):
    return calibrator.predict_proba(batch.cpu().numpy())


@every
@on_every_device
def test_module_agrees_with_the_cpu(name, device, fitted):
    calibrator = fitted[name]
    module = calibrator.to_torch().to(device)
    batch = scores(device)
    expected = calibrator.predict_proba(batch.cpu().numpy())
    found = module(batch)
    assert found.device.type == device
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.cpu().numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(module(scores(device, torch.float64)).cpu().numpy(), expected, atol=1e-12)
    images = batch.reshape(9, 5, 3)
    torch.testing.assert_close(module(images).reshape(-1, 3), found, atol=1e-6, rtol=0)
    assert module(scores(device, torch.bfloat16)).dtype == torch.bfloat16


@every
@on_every_device
@pytest.mark.thorough
def test_compiled_module_gives_the_same_numbers(name, device, fitted):
    module, batch = fitted[name].to_torch().to(device), scores(device)
    torch._dynamo.reset()  # one graph per calibrator, whatever was compiled before
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), module(batch), atol=1e-6, rtol=0)
    np.testing.assert_allclose(compiled(batch).cpu().numpy(), predict(fitted[name], batch), atol=1e-6)


@every
@on_every_device
@pytest.mark.thorough
def test_exported_module_gives_the_same_numbers(name, device, fitted):
    module, batch = fitted[name].to_torch().to(device), scores(device)
    exported = torch.export.export(module, (batch,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},)).module()
    for rows in (len(batch), 7):
        torch.testing.assert_close(exported(batch[:rows]), module(batch[:rows]), atol=1e-6, rtol=0)
        np.testing.assert_allclose(exported(batch[:rows]).cpu().numpy(), predict(fitted[name], batch[:rows]), atol=1e-6)


@every
@on_every_device
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")  # a FutureWarning since PyTorch 2.15
def test_traced_module_gives_the_same_numbers(name, device, fitted):
    module, batch = fitted[name].to_torch().to(device), scores(device)
    traced = torch.jit.trace(module, batch[:4])
    for rows in (len(batch), 7, 1):
        np.testing.assert_allclose(traced(batch[:rows]).cpu().numpy(), predict(fitted[name], batch[:rows]), atol=1e-6)
    assert list(traced.state_dict()) == list(module.state_dict())
