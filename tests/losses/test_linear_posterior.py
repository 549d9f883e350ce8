"""Posteriors from hidden states against the posterior map of the logits in float64."""

import copy
from typing import Any

import pytest
import torch
from linear_cases import MARKS
from torch import Tensor

from refocal import _check, posterior_from_logits
from refocal.losses import FLSD53, LinearFocalLoss, NoPosteriorError

pytestmark = MARKS


def draw(rows: int, width: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    options = {"generator": torch.Generator("cpu").manual_seed(classes), "device": "cpu"}
    here = torch.get_default_device()
    hidden, head, bias = (torch.randn(shape, **options) for shape in ((rows, width), (classes, width), (classes,)))
    return hidden.to(here), 3 * head.to(here), bias.to(here)


def exact(criterion: LinearFocalLoss, hidden: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
    """Log-posteriors (N, V) in float64."""
    logits = hidden.double() @ head.double().t() + (0 if bias is None else bias.double())
    softcap, psi = criterion.layer_settings.softcap, criterion.focal.posterior_map
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    options = {"weight": psi.weight, "label_smoothing": psi.label_smoothing, "detached": psi.detached}
    return posterior_from_logits(logits, gamma=psi.gamma, log=True, **options)


PLAIN = [LinearFocalLoss(gamma, chunk_bytes=2_000) for gamma in (0.0, 0.5, 2.0, 5.0)]
OTHERS = [
    LinearFocalLoss(2.0, softcap=4.0, chunk_bytes=2_000),
    LinearFocalLoss(2.0, weight=torch.linspace(0.5, 3, 40)),
    LinearFocalLoss(torch.linspace(0, 4, 40).tolist()),
    LinearFocalLoss(2.0, label_smoothing=0.1),
    LinearFocalLoss(2.0, detached=True),
]


@pytest.mark.parametrize("criterion", PLAIN + OTHERS, ids=repr)
def test_log_posterior_of_targets(criterion: LinearFocalLoss) -> None:
    criterion = copy.deepcopy(criterion).to(torch.get_default_device())
    hidden, head, bias = draw(33, 6, 40)
    log_probs = exact(criterion, hidden, head, bias)
    for target in (torch.arange(33) % 40, log_probs.argmax(dim=1), log_probs.argmin(dim=1)):
        found = criterion.log_posterior(hidden, head, target, bias)
        torch.testing.assert_close(found.double(), log_probs.gather(1, target[:, None])[:, 0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("criterion", PLAIN + OTHERS, ids=repr)
def test_the_largest_posteriors(criterion: LinearFocalLoss) -> None:
    criterion = copy.deepcopy(criterion).to(torch.get_default_device())
    hidden, head, bias = draw(33, 6, 40)
    log_probs = exact(criterion, hidden, head, bias)
    for top in (1, 3, 40):
        probs, classes = criterion.posterior(hidden.reshape(3, 11, 6), head, bias, top=top)
        expected = log_probs.exp().topk(top)
        assert probs.shape == classes.shape == (3, 11, top)
        torch.testing.assert_close(probs.double().reshape(33, top), expected.values, rtol=3e-5, atol=1e-7)
        assert torch.equal(classes.reshape(33, top), expected.indices)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("softcap", [None, 4.0])
def test_several_classes_share_the_top_score(gamma: float, softcap: float | None) -> None:
    head = torch.tensor([[1.0], [1.0], [0.0], [-1.0], [1.0]])
    hidden = torch.tensor([[1.0], [2.0], [-1.0], [10.0]])
    criterion = LinearFocalLoss(gamma, softcap=softcap)
    log_probs = exact(criterion, hidden, head)
    for label in range(5):
        found = criterion.log_posterior(hidden, head, torch.full((4,), label))
        torch.testing.assert_close(found.double(), log_probs[:, label], rtol=1e-5, atol=1e-6)
    probs = criterion.posterior(hidden, head, top=5).probs
    torch.testing.assert_close(probs.double(), log_probs.exp().topk(5).values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("softcap", [4.0, 30.0, 50.0])
@pytest.mark.parametrize("distance", [8, 12, 20])
def test_bounded_scores_next_to_certainty(softcap: float, distance: float) -> None:
    """The top class has almost all mass, so that the rounding of its score must not matter."""
    top = torch.linspace(0.6, 0.9, 100)[:, None] * softcap
    scores = torch.cat([top, top - distance, top - distance - 1], dim=1)
    criterion = LinearFocalLoss(2.0, softcap=softcap)
    log_probs = exact(criterion, scores, torch.eye(3))
    for label in range(3):
        found = criterion.log_posterior(scores, torch.eye(3), torch.full((100,), label))
        torch.testing.assert_close(found.double(), log_probs[:, label], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    "classes",
    [  # a kernel reads blocks of 4,096 classes, and above 65,536 classes blocks of 16,384
        8_192,
        9_001,
        pytest.param(70_001, marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("softcap", [None, 4.0])
def test_more_classes_than_a_block(softcap: float | None, classes: int) -> None:
    """The top score of each row stands in two blocks."""
    hidden, head, bias = draw(4, 6, classes)
    top = (hidden @ head.t() + bias).argmax(dim=1)
    for layer in (head, bias):
        layer[(top + 5_000) % classes] = layer[top]
    criterion = LinearFocalLoss(2.0, softcap=softcap)
    log_probs = exact(criterion, hidden, head, bias)
    for target in (torch.arange(4), top, torch.arange(4) + classes - 4):
        found = criterion.log_posterior(hidden, head, target, bias)
        torch.testing.assert_close(found.double(), log_probs.gather(1, target[:, None])[:, 0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("gamma", [100.0, 200.0])  # the largest that a kernel computes, and one whose phi underflows
def test_large_gammas(gamma: float) -> None:
    scores = torch.tensor([[0.125, 0.0, -1.0], [1.0, 1.0, 0.5], [8.0, 0.0, 1.0], [60.0, 0.0, 59.5]])
    criterion = LinearFocalLoss(gamma)
    log_probs = exact(criterion, scores, torch.eye(3))
    for label in range(3):
        found = criterion.log_posterior(scores, torch.eye(3), torch.full((4,), label))
        torch.testing.assert_close(found.double(), log_probs[:, label], rtol=2e-5, atol=2e-5)
    probs = criterion.posterior(scores, torch.eye(3), top=2).probs
    torch.testing.assert_close(probs.double(), log_probs.exp().topk(2).values, rtol=5e-5, atol=1e-7)


def test_scores_far_apart_and_ties() -> None:
    head = torch.tensor([[1.0], [-1.0], [0.0], [0.0]])
    hidden = torch.tensor([[200.0], [60.0], [1e4], [0.0], [25.0]])
    criterion = LinearFocalLoss(2.0)
    log_probs = exact(criterion, hidden, head)
    for label in range(4):
        found = criterion.log_posterior(hidden, head, torch.full((5,), label))
        torch.testing.assert_close(found.double(), log_probs[:, label], rtol=1e-5, atol=1e-6)


def test_16_bit_layers_give_float32_posteriors() -> None:
    hidden, head, bias = (each.bfloat16() for each in draw(33, 6, 40))
    criterion = LinearFocalLoss(2.0)
    target = torch.arange(33)
    found = criterion.log_posterior(hidden, head, target, bias)
    assert found.dtype == torch.float32
    logits = torch.addmm(bias, hidden, head.t()).double()  # rounded to 16 bits
    log_probs = posterior_from_logits(logits, gamma=2.0, log=True)
    torch.testing.assert_close(found.double(), log_probs[target, target], rtol=2e-5, atol=2e-6)


def test_ignored_targets_and_perplexity() -> None:
    hidden, head, _ = draw(33, 6, 40)
    criterion = LinearFocalLoss(2.0)
    target = torch.arange(33).reshape(3, 11)
    target[1, 4] = -100
    found = criterion.log_posterior(hidden.reshape(3, 11, 6), head, target)
    assert found[1, 4] == 0
    log_probs = exact(criterion, hidden, head)
    assert found[2, 3].item() == pytest.approx(log_probs[25, 25].item(), rel=1e-5)
    assert not criterion.log_posterior(hidden[:0], head, target.flatten()[:0]).numel()


@pytest.mark.parametrize("criterion", OTHERS[1:3], ids=repr)
def test_settings_are_checked_once_for_all_chunks(criterion: LinearFocalLoss, monkeypatch: pytest.MonkeyPatch) -> None:
    """To check one value per class for each few rows would take longer than to map them."""
    hidden, head, _ = draw(33, 6, 40)
    criterion = copy.deepcopy(criterion).to(torch.get_default_device())
    counts = {}
    for name in ("gamma", "weight"):
        check = getattr(_check, name)

        def counted(*args: object, name: str = name, check: Any = check, **options: object) -> object:
            counts[name] = counts.get(name, 0) + 1
            return check(*args, **options)

        monkeypatch.setattr(_check, name, counted)
    criterion.log_posterior(hidden, head, torch.arange(33))
    criterion.posterior(hidden, head, top=2)
    assert counts == {"gamma": 2, "weight": 2}


def test_errors() -> None:
    hidden, head, _ = draw(5, 6, 40)
    with pytest.raises(ValueError, match="top"):
        LinearFocalLoss(2.0).posterior(hidden, head, top=41)
    with pytest.raises(IndexError, match=r"\[0, 40\), got 40"):
        LinearFocalLoss(2.0).log_posterior(hidden, head, torch.full((5,), 40))
    with pytest.raises(ValueError, match="at least two classes"):
        LinearFocalLoss(2.0).posterior(hidden, head[:1], top=1)
    assert LinearFocalLoss(2.0).log_posterior(hidden, head, torch.ones(5, dtype=torch.uint8)).shape == (5,)
    with pytest.raises(NoPosteriorError, match="changes with the sample"):
        LinearFocalLoss(FLSD53).posterior(hidden, head, top=1)
