from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from refocal.losses import (  # noqa: E402
    FLA53,
    FLA532,
    FLSD53,
    AdaFocal,
    FocalLoss,
    SampleWise,
    Scheduled,
    fls531,
    fls532,
    focal_loss,
)


def test_published_policies_at_their_edges():
    p = torch.tensor([0.0, 0.19, 0.1901, 0.2, 0.5, 0.5001, 1.0], dtype=torch.double)
    assert FLSD53(p).tolist() == [5, 5, 5, 3, 3, 3, 3]
    assert FLA53(p).tolist() == [5, 5, 3, 3, 3, 3, 3]
    assert FLA532(p).tolist() == [5, 5, 3, 3, 3, 2, 2]


def test_sample_wise_loss_is_focal_loss_with_each_samples_gamma():
    logits = torch.tensor([[0.0, 2.0], [0.5, 0.0]], dtype=torch.double)  # p = .119 and .622
    losses = focal_loss(logits, torch.tensor([0, 0]), gamma=FLSD53)
    for index, gamma in enumerate((5.0, 3.0)):
        alone = focal_loss(logits[index : index + 1], torch.tensor([0]), gamma=gamma)
        torch.testing.assert_close(losses[index : index + 1], alone)


def test_schedules():
    for policy, last in ((fls531(), 1.0), (fls532(), 2.0)):
        seen = []
        for _ in range(350):
            seen.append(policy(torch.tensor(0.5)))
            policy.step_epoch()
        assert (seen[0], seen[99], seen[100], seen[249], seen[250], seen[349]) == (5, 5, 3, 3, last, last)
    other = fls532()
    other.load_state_dict(policy.state_dict())
    assert other(torch.tensor(0.5)) == 2.0


def test_a_scheduled_loss_has_the_posterior_of_the_last_epoch_it_trained():
    criterion = FocalLoss(Scheduled((2,), (5.0, 2.0)))
    logits, target = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    used = []  # gamma of each epoch so far
    for gamma in (5.0, 5.0, 2.0, 2.0):
        torch.testing.assert_close(criterion(logits, target), FocalLoss(gamma)(logits, target))
        used.append(gamma)
        criterion.gamma.step_epoch()
        torch.testing.assert_close(criterion.posterior(logits), FocalLoss(used[-1]).posterior(logits))
    fresh = FocalLoss(Scheduled((2,), (5.0, 2.0)))
    torch.testing.assert_close(fresh.posterior(logits), FocalLoss(5.0).posterior(logits))


@pytest.mark.parametrize("target", [torch.tensor([0, 1, 1]), torch.tensor([[0.7, 0.3], [0.2, 0.8], [1.0, 0.0]])])
@pytest.mark.thorough
def test_a_scheduled_loss_is_compiled_once_for_all_epochs(target):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    criterion = FocalLoss(Scheduled((2, 4), (5.0, 2.0, 0.0)))
    compiled = torch.compile(criterion, backend=counter, fullgraph=True)
    logits = torch.tensor([[1.0, 0.0], [0.5, 2.0], [0.0, 0.0]], requires_grad=True)
    for _ in range(6):
        losses = [each(logits, target) for each in (compiled, criterion)]
        slopes = [torch.autograd.grad(loss, logits)[0] for loss in losses]
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(*slopes)
        criterion.gamma.step_epoch()
    assert counter.frame_count == 1
    resumed = FocalLoss(Scheduled((2, 4), (5.0, 2.0, 0.0))).half()
    resumed.load_state_dict(criterion.state_dict())
    compiled = torch.compile(resumed, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, target), criterion(logits, target))


def predictions(confidence, accuracy, count=100):
    """Two-class predictions with this confidence and this accuracy."""
    probs = torch.tensor([[confidence, 1 - confidence]]).repeat(count, 1)
    labels = (torch.arange(count) >= round(accuracy * count)).long()
    return probs, labels


def test_adafocal_starts_as_published():
    stated = AdaFocal(bins=15, rate=1.0, initial_gamma=1.0, switch=0.2, gamma_min=-2.0, gamma_max=20.0)
    assert AdaFocal().extra_repr() == stated.extra_repr()
    assert AdaFocal().gammas.tolist() == [1.0] * 15
    for end in (-2.0, 20.0):  # the range is closed
        assert AdaFocal(initial_gamma=end).gammas.tolist() == [end] * 15


def test_adafocal_follows_its_update_rule():
    policy = AdaFocal(bins=1, rate=2.0)
    policy.step_epoch(*predictions(0.8, 0.5))
    assert policy.gammas.item() == pytest.approx(math.exp(2 * 0.3), rel=1e-5)
    policy.gammas.fill_(0.21)
    policy.step_epoch(*predictions(0.6, 0.9))  # underconfident: gamma shrinks below the switch and changes its sign
    assert policy.gammas.item() == pytest.approx(-0.2)
    policy.step_epoch(*predictions(0.6, 0.9))  # still underconfident: |gamma| of the inverse loss grows
    assert policy.gammas.item() == pytest.approx(-0.2 * math.exp(2 * 0.3), rel=1e-5)
    policy.gammas.fill_(-0.21)
    policy.step_epoch(*predictions(0.9, 0.5))
    assert policy.gammas.item() == pytest.approx(0.2)
    policy.gammas.fill_(19.9)
    policy.step_epoch(*predictions(0.9, 0.1))
    assert policy.gammas.item() == 20


def test_adafocal_bins_hold_equal_mass_and_keep_unseen_gammas():
    policy = AdaFocal(bins=4)
    confidence = torch.linspace(0.5, 1, 101)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    policy.step_epoch(probs, torch.zeros(101, dtype=torch.long))
    index = torch.bucketize(confidence, policy.edges)
    assert torch.bincount(index).tolist() == [26, 25, 25, 25]
    for count, sizes in ((100, [25] * 4), (4, [1] * 4), (3, [1, 1, 1])):
        policy.step_epoch(probs[:count], torch.zeros(count, dtype=torch.long))
        held = torch.bincount(torch.bucketize(confidence[:count], policy.edges))
        assert sorted(held[held > 0].tolist()) == sizes
    before = policy.gammas.clone()
    policy.step_epoch(*predictions(0.8, 0.5))  # ties fill only one bin
    assert (policy.gammas == before).sum() == 3


def test_adafocal_loss_and_its_state():
    policy = AdaFocal(bins=2)
    policy.edges.fill_(0.5)
    policy.gammas.copy_(torch.tensor([3.0, -1.5]))
    criterion = FocalLoss(policy, reduction="none")
    logits = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # p = .269 and .731
    p = torch.softmax(logits, dim=1)[:, 0]
    expected = torch.stack([-((1 - p[0]) ** 3) * p[0].log(), -((1 + p[1]) ** 1.5) * p[1].log()])
    torch.testing.assert_close(criterion(logits, torch.tensor([0, 0])), expected)
    resumed = FocalLoss(AdaFocal(bins=2), reduction="none")
    resumed.load_state_dict(criterion.state_dict())
    torch.testing.assert_close(resumed(logits, torch.tensor([0, 0])), expected)


@pytest.mark.gpu
def test_adafocal_is_updated_in_deterministic_mode():
    policy = AdaFocal(bins=1, rate=2.0).cuda()
    torch.use_deterministic_algorithms(True)
    try:
        policy.step_epoch(*predictions(0.8, 0.5))
    finally:
        torch.use_deterministic_algorithms(False)
    assert policy.gammas.item() == pytest.approx(math.exp(2 * 0.3), rel=1e-5)


def test_bad_policies():
    with pytest.raises(ValueError, match="gammas must have one value more than edges, got 2 and 2"):
        SampleWise((0.1, 0.2), (1.0, 2.0))
    with pytest.raises(ValueError, match="edges must increase"):
        SampleWise((0.5, 0.2), (1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="closed must be 'left' or 'right'"):
        SampleWise((0.5,), (1.0, 2.0), closed="both")
    with pytest.raises(ValueError, match="milestones must be positive and increase"):
        Scheduled((2, 1), (1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="milestones must be positive and increase"):
        Scheduled((0, 1), (1.0, 2.0, 3.0))
    assert Scheduled((), (3.0,)).closed_form_gamma == 3.0  # one gamma from the first epoch to the last
    with pytest.raises(ValueError, match="bins must be at least 1"):
        AdaFocal(bins=0)
    with pytest.raises(ValueError, match="need gamma_min <= -switch < 0 < switch"):
        AdaFocal(switch=-1.0)
    with pytest.raises(ValueError, match="need gamma_min <= -switch < 0 < switch"):
        AdaFocal(gamma_min=-0.1)  # a sign that changed would change back at the next step
    for value in (3.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="give probabilities, not logits"):
            AdaFocal().step_epoch(torch.tensor([[value, 0.5]]), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"probs and labels must have shapes \(N, K\) and \(N,\)"):
        AdaFocal().step_epoch(torch.zeros(3), torch.zeros(3))
    with pytest.raises(TypeError, match=r"probs must have a floating-point dtype, got torch\.int64"):
        AdaFocal().step_epoch(torch.eye(2, dtype=torch.long), torch.tensor([0, 1]))
    with pytest.raises(TypeError, match="AdaFocal learns from a validation set: step_epoch needs probs and labels"):
        AdaFocal().step_epoch()
    with pytest.raises(ValueError, match="epochs must be at least 0, got -1"):
        fls531().resume(-1)
    with pytest.raises(TypeError, match=r"epochs must be a whole number, at least 0, got 1\.5"):
        fls531().resume(1.5)
    for maker in (fls531, AdaFocal):
        with pytest.raises(TypeError, match=r"one value per class or a policy, got <.*>: call it to make a policy"):
            FocalLoss(maker)


def test_adafocal_leaves_out_ignored_labels():
    probs, labels = predictions(0.8, 0.5)
    expected, found = AdaFocal(bins=3), AdaFocal(bins=3)
    expected.step_epoch(probs, labels)
    for index in (-100, 7):
        found = AdaFocal(bins=3)
        nothing = torch.full((50, 2), math.nan)
        options = {} if index == -100 else {"ignore_index": index}
        found.step_epoch(torch.cat([nothing, probs]), torch.cat([torch.full((50,), index), labels]), **options)
        torch.testing.assert_close(found.state_dict(), expected.state_dict())
    with pytest.raises(ValueError, match="labels must not all be ignore_index=-100"):
        found.step_epoch(probs, torch.full((100,), -100))


@pytest.mark.parametrize("label", [2, -1, -100])
def test_adafocal_refuses_labels_that_are_no_class(label):
    policy = AdaFocal(bins=3)
    probs, labels = predictions(0.8, 0.5)
    labels[17] = label
    with pytest.raises(ValueError, match=rf"labels must lie in 0 \.\.\. 1 or be ignore_index=5, got {label}"):
        policy.step_epoch(probs, labels, ignore_index=5)
    assert policy.gammas.tolist() == [1.0] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_adafocal_under_autocast_and_in_half_precision_adapts_bins_of_any_size(dtype):
    given = predictions(0.8, 0.5, count=200_000)
    for policy in (AdaFocal(bins=1, rate=2.0), AdaFocal(bins=1, rate=2.0).to(dtype)):
        with torch.autocast("cpu", dtype=dtype):
            policy.step_epoch(*given)
        assert policy.gammas.item() == pytest.approx(math.exp(2 * 0.3), rel=2 * torch.finfo(policy.gammas.dtype).eps)
