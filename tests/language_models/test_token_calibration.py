"""Token calibration from hidden states, against the same measures of plain logits in float64."""

from __future__ import annotations

import math
import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from refocal import metrics, posterior_from_logits
from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, TemperatureScaling, load
from refocal.language_models import TokenCalibration, TokenReport
from refocal.losses import FLSD53, LinearFocalLoss, NoPosteriorError

pytestmark = [
    pytest.mark.usefixtures("each_device"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # from NumPy in Triton's interpreter
]


class Batch(NamedTuple):
    """Hidden states (B, S, D), head (V, D) and tokens (B, S)."""

    hidden: Tensor
    head: Tensor
    target: Tensor

    def logits(self, softcap: float = 0.0, bias: Tensor | None = None) -> np.ndarray:
        """All logits (B S, V) in float64."""
        found = self.hidden.double() @ self.head.double().T + (0 if bias is None else bias.double())
        found = softcap * torch.tanh(found / softcap) if softcap else found
        return found.reshape(-1, len(self.head)).cpu().numpy()

    def labels(self) -> np.ndarray:
        return self.target.reshape(-1).cpu().numpy()


def draw(classes: int, *, scale: float = 1.0, shape: tuple[int, int] = (6, 50), dtype: torch.dtype = torch.float64):
    """Tokens drawn from softmax(logits), and hidden states that give logits `scale` times as large."""
    generator = torch.Generator("cpu").manual_seed(classes)
    hidden, head = (
        torch.randn(size, 8, generator=generator, dtype=torch.float64, device="cpu")
        for size in (math.prod(shape), classes)
    )
    probs = torch.softmax(hidden @ head.T, dim=1)
    target = torch.multinomial(probs, 1, generator=generator)[:, 0].reshape(shape)
    here = torch.get_default_device()
    return Batch((scale * hidden).reshape(*shape, 8).to(here, dtype), head.to(here, dtype), target.to(here))


def report(batch: Batch, criterion: LinearFocalLoss | None = None, **settings) -> TokenReport:
    calibration = TokenCalibration(criterion, **settings)
    calibration.update(*batch)
    return calibration.compute()


def assert_same(first: TokenReport, second: TokenReport, *, rel: float = 1e-9) -> None:
    assert (first.tokens, first.documents) == (second.tokens, second.documents)
    assert first.readouts.keys() == second.readouts.keys()
    for name, mine in first.readouts.items():
        theirs = second.readouts[name]
        assert mine.ece == pytest.approx(theirs.ece, rel=rel)
        for field in ("nll", "accuracy", "confidence", "overconfidence"):
            assert getattr(mine, field) == pytest.approx(getattr(theirs, field), rel=rel, abs=1e-12, nan_ok=True)
    for field in ("temperature", "focal_temperature"):
        mine, theirs = getattr(first, field), getattr(second, field)
        assert (mine.nll, mine.ece) == pytest.approx((theirs.nll, theirs.ece), rel=rel)
        assert mine.calibrator.temperature_ == pytest.approx(theirs.calibrator.temperature_, rel=1e3 * rel)


READINGS = [
    LinearFocalLoss(2.0),
    LinearFocalLoss(1.5, softcap=4.0),
    LinearFocalLoss(2.0, weight=torch.linspace(0.5, 3, 40, device="cpu"), label_smoothing=0.1),
    LinearFocalLoss(torch.linspace(0, 4, 40, device="cpu").tolist(), detached=True),
    LinearFocalLoss(0.0),
]


@pytest.mark.parametrize("criterion", READINGS, ids=repr)
def test_readouts_are_those_of_the_logits(criterion):
    batch = draw(40, scale=1.5)
    bias = torch.linspace(-1, 1, 40, dtype=torch.float64)
    calibration = TokenCalibration(criterion.to(batch.head.device), fit=False)
    calibration.update(*batch, bias)
    found = calibration.compute()
    logits, labels = batch.logits(criterion.layer_settings.softcap, bias), batch.labels()
    psi = criterion.focal.posterior_map
    settings = {"weight": psi.weight, "label_smoothing": psi.label_smoothing, "detached": psi.detached}
    probs = {
        "softmax": posterior_from_logits(logits, gamma=0.0),
        "posterior": posterior_from_logits(logits, gamma=psi.gamma, **settings),
    }
    assert list(found.readouts) == (["softmax", "posterior"] if psi.gamma != 0.0 else ["softmax"])
    for name, readout in found.readouts.items():
        expected = probs[name]
        right = expected.argmax(axis=1) == labels
        assert readout.nll.value == pytest.approx(metrics.nll(expected, labels), rel=1e-12)
        assert readout.perplexity.value == pytest.approx(math.exp(readout.nll.value))
        assert readout.ece == pytest.approx(metrics.ece(expected, labels), rel=1e-10)
        assert readout.accuracy.value == pytest.approx(right.mean())
        assert readout.confidence.value == pytest.approx(expected.max(axis=1).mean(), rel=1e-12)
        assert readout.overconfidence.value == pytest.approx((expected.max(axis=1) - right).mean(), rel=1e-9)
    assert found.temperature is found.focal_temperature is None


@pytest.mark.parametrize("classes", [3, 90, 700])
@pytest.mark.parametrize("scale", [0.6, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_fits_are_those_of_the_logits(classes, scale, dtype):
    """The logits of float32 layers are rounded, by a relative error of 1e-7."""
    batch = draw(classes, scale=scale, shape=(4, 120), dtype=dtype)
    found = report(batch)
    logits, labels = batch.logits(), batch.labels()
    for fitted, exact in (
        (found.temperature, TemperatureScaling(input="logits", classes=classes)),
        (found.focal_temperature, FocalTemperatureScaling(input="logits", classes=classes)),
    ):
        exact.fit(logits, labels)
        assert fitted.calibrator.temperature_ == pytest.approx(exact.temperature_, rel=1e-3)
        assert fitted.calibrator.temperature_error_ == pytest.approx(exact.temperature_error_, rel=2e-2)
        nll = metrics.nll(exact.predict_proba(logits), labels)
        assert fitted.nll == pytest.approx(nll, abs=1e-6)
        # the calibrator is one of refocal's own, as good as it says
        own = fitted.calibrator.predict_proba(logits)
        assert metrics.nll(own, labels) == pytest.approx(nll, abs=1e-8)
        assert fitted.perplexity == pytest.approx(math.exp(fitted.nll))
    assert found.focal_temperature.calibrator.gamma_ == pytest.approx(exact.gamma_, abs=2e-3 * (1 + exact.gamma_error_))
    assert found.focal_temperature.nll <= found.temperature.nll


def test_the_interpolated_calibration_error_is_close_to_the_exact_one():
    """Noise makes the ECE of 10,000 calibrated tokens about 0.01; interpolation adds less than half of that."""
    batch = draw(50, scale=1.7, shape=(20, 500), dtype=torch.float32)
    found = report(batch)
    logits, labels = batch.logits(), batch.labels()
    assert found.readouts["softmax"].ece > 0.1
    for fitted in (found.temperature, found.focal_temperature):
        exact = metrics.ece(fitted.calibrator.predict_proba(logits), labels)
        assert fitted.ece == pytest.approx(exact, abs=5e-3)


def test_the_calibration_error_of_few_contexts_is_exact():
    """Tokens after the same context have the same confidence, and stay together."""
    batch = draw(20, scale=1.7, shape=(9, 200))
    batch = batch._replace(hidden=batch.hidden[:, :1].expand(9, 200, 8))
    found = report(batch)
    for fitted in (found.temperature, found.focal_temperature):
        exact = metrics.ece(fitted.calibrator.predict_proba(batch.logits()), batch.labels())
        assert fitted.ece == pytest.approx(exact, rel=1e-4)


def test_a_focal_model_is_repaired_by_the_focal_temperature():
    from refocal import minimizer

    batch = draw(30, shape=(8, 400))
    probs = posterior_from_logits(batch.logits(), gamma=0.0)
    focal = torch.as_tensor(np.log(minimizer(probs, gamma=3.0))).reshape(8, 400, 30)
    identity = torch.eye(30, dtype=torch.float64)
    found = report(Batch(focal, identity, batch.target), LinearFocalLoss(3.0))
    calibrator = found.focal_temperature.calibrator
    assert abs(calibrator.gamma_ - 3) < 3 * calibrator.gamma_error_
    assert found.readouts["posterior"].nll.value == pytest.approx(metrics.nll(probs, batch.labels()), rel=1e-9)
    assert found.compare("posterior", "softmax").high < 0
    assert found.focal_temperature.nll < found.temperature.nll


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_layers(dtype):
    batch = draw(300, scale=1.3, dtype=dtype)
    found = report(batch, LinearFocalLoss(2.0))
    rounded = (batch.hidden @ batch.head.T).reshape(-1, 300).double().cpu().numpy()
    labels = batch.labels()
    assert found.readouts["softmax"].nll.value == pytest.approx(metrics.nll(rounded, labels, input="logits"), rel=1e-5)
    exact = TemperatureScaling(classes=300).fit(rounded, labels)
    assert found.temperature.calibrator.temperature_ == pytest.approx(exact.temperature_, rel=1e-4)


def test_autocast_multiplies_in_16_bits():
    batch = draw(40, dtype=torch.float32)
    with torch.autocast(batch.head.device.type, dtype=torch.bfloat16):
        found = report(batch)
        expected = report(Batch(batch.hidden.bfloat16(), batch.head.bfloat16(), batch.target))
    assert_same(found, expected, rel=1e-6)


def test_splits_and_merges_change_nothing():
    batch = draw(200, scale=1.4)
    whole = report(batch, LinearFocalLoss(2.0))
    parts = [TokenCalibration(LinearFocalLoss(2.0, chunk_bytes=5_000)) for _ in range(2)]
    for row in range(6):
        parts[row % 2].update(batch.hidden[row : row + 1], batch.head, batch.target[row : row + 1])
    sent = pickle.loads(pickle.dumps(parts[1]))
    assert_same(parts[0].merge(sent).compute(), whole)
    assert_same(TokenCalibration(LinearFocalLoss(2.0)).merge(parts[0]).compute(), whole)


def test_tokens_that_do_not_count():
    batch = draw(40)
    batch.target[2, 10:] = -100
    batch.target[4] = -100
    hidden = batch.hidden.clone()
    hidden[4] = torch.nan  # of tokens that do not count
    found = report(batch._replace(hidden=hidden))
    assert (found.tokens, found.documents) == (210, 5)
    kept = batch.target.reshape(-1) != -100
    calibration = TokenCalibration()
    rows = torch.arange(6).repeat_interleave(50)[kept]
    calibration.update(batch.hidden.reshape(-1, 8)[kept], batch.head, batch.target.reshape(-1)[kept], documents=rows)
    assert_same(found, calibration.compute())


def test_nothing_to_measure():
    batch = draw(40)
    calibration = TokenCalibration(LinearFocalLoss(2.0))
    calibration.update(batch.hidden[:0], batch.head, batch.target[:0])
    calibration.update(batch.hidden[:, :0], batch.head, batch.target[:, :0])
    calibration.update(batch.hidden, batch.head, torch.full_like(batch.target, -100))
    with pytest.raises(ValueError, match="at least one token that counts"):
        calibration.compute()
    calibration.update(*batch)
    assert_same(calibration.compute(), report(batch, LinearFocalLoss(2.0)))


def test_one_token():
    batch = draw(40)
    found = report(Batch(batch.hidden[0, 0], batch.head, batch.target[0, 0]))
    assert (found.tokens, found.documents) == (1, 1)
    nll = found.readouts["softmax"].nll
    assert nll.value == pytest.approx(metrics.nll(batch.logits()[:1], batch.labels()[:1], input="logits"))
    assert math.isnan(nll.low)
    assert math.isnan(nll.high)
    assert found.temperature.calibrator.at_bound_
    assert "1 tokens of 1 documents" in str(found)


def test_two_classes_and_equal_logits():
    batch = draw(2, scale=2.0)
    exact = TemperatureScaling().fit(batch.logits(), batch.labels())
    assert report(batch).temperature.calibrator.temperature_ == pytest.approx(exact.temperature_, rel=1e-6)
    equal = report(batch._replace(hidden=torch.zeros_like(batch.hidden)))
    assert equal.temperature.calibrator.temperature_ == 1.0
    assert equal.temperature.calibrator.temperature_error_ == math.inf
    assert equal.focal_temperature.calibrator.gamma_ == 0.0
    assert equal.temperature.nll == pytest.approx(math.log(2))
    assert equal.readouts["softmax"].confidence.value == 0.5


@pytest.mark.parametrize(("scale", "bound"), [(10.0, 4.0), (0.1, 0.25)])
def test_a_temperature_beyond_the_lattice_is_flagged(scale, bound):
    found = report(draw(40, scale=scale))
    for fitted in (found.temperature, found.focal_temperature):
        assert fitted.calibrator.temperature_ == pytest.approx(bound)
        assert fitted.calibrator.temperature_error_ == math.inf
        assert fitted.calibrator.at_bound_


def test_masked_classes_are_left_out():
    """A head is often padded to a multiple of 64 classes, and its bias masks them."""
    batch = draw(200, scale=1.4)
    head = torch.cat([batch.head, torch.ones(56, 8, dtype=torch.float64)])
    bias = torch.zeros(256, dtype=torch.float64).index_fill_(0, torch.arange(200, 256), -torch.inf)
    calibration = TokenCalibration(LinearFocalLoss(2.0))
    calibration.update(batch.hidden, head, batch.target, bias)
    assert_same(calibration.compute(), report(batch, LinearFocalLoss(2.0)))
    with pytest.raises(ValueError, match="target must not be a masked class, with a logit of -inf, got 201"):
        calibration.update(batch.hidden, head, torch.full_like(batch.target, 201), bias)


def test_a_rejected_batch_changes_nothing():
    batch = draw(40)
    calibration = TokenCalibration(LinearFocalLoss(2.0, chunk_bytes=10_000))
    calibration.update(*batch)
    before = calibration.compute()
    for bad, found in ((torch.nan, "nan"), (torch.inf, "(inf|nan)")):
        hidden = batch.hidden.clone()
        hidden[-1, -1, 0] = bad
        with pytest.raises(ValueError, match=f"finite or -inf .masked., got {found} as the largest of a row"):
            calibration.update(hidden, batch.head, batch.target)
    with pytest.raises(IndexError, match=r"\[0, 40\), got 40"):
        calibration.update(batch.hidden, batch.head, torch.full_like(batch.target, 40))
    assert_same(calibration.compute(), before, rel=0)


def test_intervals_take_documents_as_samples():
    """The variance of a ratio of sums over documents, written out."""
    batch = draw(40, shape=(12, 30))
    batch.target[3, 5:] = -100
    found = report(batch, LinearFocalLoss(2.0))
    logits, labels = batch.logits(), batch.labels()
    counted = labels != -100
    document = np.repeat(np.arange(12), 30)
    losses = {
        name: -posterior_from_logits(logits, gamma=gamma, log=True)[np.arange(360), np.where(counted, labels, 0)]
        for name, gamma in (("softmax", 0.0), ("posterior", 2.0))
    }
    losses["difference"] = losses["posterior"] - losses["softmax"]
    intervals = {name: readout.nll for name, readout in found.readouts.items()}
    intervals["difference"] = found.compare("posterior", "softmax")
    for name, interval in intervals.items():
        mean = losses[name][counted].mean()
        squares = sum((losses[name][counted & (document == one)] - mean).sum() ** 2 for one in range(12))
        half = 2.2009851600829136 * math.sqrt(12 / 11 * squares) / counted.sum()  # Student's t, 11 degrees of freedom
        assert interval == pytest.approx((mean, mean - half, mean + half), rel=1e-9)


def test_a_flat_batch_is_one_document():
    batch = draw(40)
    calibration = TokenCalibration(fit=False)
    for hidden, target in zip(batch.hidden[:4], batch.target[:4], strict=True):
        calibration.update(hidden, batch.head, target)
    assert calibration.compute().documents == 4


def test_documents_may_continue_in_other_batches():
    batch = draw(40, shape=(6, 50))
    names = torch.tensor([7, 7, 3, 9, 9, 9])
    expected = TokenCalibration()
    for rows in ([0, 1], [2], [3, 4, 5]):
        expected.update(batch.hidden[rows].reshape(1, -1, 8), batch.head, batch.target[rows].reshape(1, -1))
    by_sequence, by_token = TokenCalibration(), TokenCalibration()
    for rows in ([0, 3], [1, 2], [4, 5]):
        part = batch.hidden[rows], batch.head, batch.target[rows]
        by_sequence.update(*part, documents=names[rows])
        by_token.update(*part, documents=names[rows][:, None].expand(2, 50).cpu().numpy())
    assert expected.compute().documents == 3
    assert_same(by_sequence.compute(), expected.compute())
    assert_same(by_token.compute(), expected.compute())
    halves = [TokenCalibration(), TokenCalibration()]
    for half, columns in zip(halves, (slice(0, 20), slice(20, 50)), strict=True):
        half.update(batch.hidden[:, columns], batch.head, batch.target[:, columns], documents=names.tolist())
    assert_same(halves[0].merge(halves[1]).compute(), expected.compute())


def test_calibrators_are_measured_on_other_text(tmp_path):
    batch, other = draw(60, scale=1.8), draw(60, scale=1.8, shape=(5, 40))
    fitted = report(batch)
    fitted.temperature.calibrator.save(tmp_path / "temperature.json")
    calibrators = {
        "temperature": load(tmp_path / "temperature.json"),
        "focal": fitted.focal_temperature.calibrator,
        "published": TemperatureScaling(objective="focal", gamma=2.0, apply_posterior=True),
    }
    calibrators["published"].fit(batch.logits(), batch.labels())
    found = report(other, calibrators=calibrators, fit=False)
    assert list(found.readouts) == ["softmax", "temperature", "focal", "published"]
    for name, calibrator in calibrators.items():
        probs = calibrator.predict_proba(other.logits())
        assert found.readouts[name].nll.value == pytest.approx(metrics.nll(probs, other.labels()), rel=1e-9)
        assert found.readouts[name].ece == pytest.approx(metrics.ece(probs, other.labels()), rel=1e-9)
    assert found.compare("temperature", "softmax").high < 0


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that PyTorch makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_memory_does_not_grow_with_the_number_of_tokens():
    classes, width = 5_000, 4
    head = torch.randn(classes, width)
    sizes, largest = [], []
    for sequences in (1, 3):
        calibration = TokenCalibration(LinearFocalLoss(2.0, chunk_bytes=1_000_000))  # 50 tokens
        hidden = torch.randn(sequences, 200, width)
        with LargestTensor() as seen:
            calibration.update(hidden, head, torch.randint(classes, (sequences, 200)))
        largest.append(seen.elements)
        sizes.append(len(pickle.dumps(calibration)))
    assert largest[0] == largest[1] < 3 * 200 * classes / 5
    assert sizes[0] == sizes[1]


def test_settings_are_checked():
    batch = draw(40)
    calibration = TokenCalibration()
    calibration.update(*batch)
    for arguments, error, message in (
        ({"criterion": nn.CrossEntropyLoss()}, TypeError, "criterion must be a LinearFocalLoss or None, got CrossEntr"),
        ({"criterion": LinearFocalLoss(FLSD53)}, NoPosteriorError, "changes with the sample"),
        ({"bins": 0}, ValueError, "bins must"),
        ({"calibrators": {"softmax": TemperatureScaling()}}, ValueError, "names other than 'softmax' and 'posterior'"),
        ({"calibrators": {"a": FocalPosterior(gamma=2.0)}}, TypeError, "got FocalPosterior for 'a'"),
        ({"calibrators": {"a": TemperatureScaling()}}, NotFittedError, "not fitted"),
    ):
        with pytest.raises(error, match=message):
            TokenCalibration(**arguments)
    probs = TemperatureScaling(input="probs").fit([[0.2, 0.8], [0.7, 0.3], [0.6, 0.4]], [1, 0, 1])
    with pytest.raises(ValueError, match="""take logits, got input="probs" for 'a'"""):
        TokenCalibration(calibrators={"a": probs})
    fitted = calibration.compute().temperature.calibrator
    with pytest.raises(ValueError, match="the 40 classes of the calibrator 'a', got 30"):
        report(draw(30), calibrators={"a": fitted})
    with pytest.raises(ValueError, match="head must have 40 classes as before, got 30"):
        calibration.update(*draw(30))
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1, got 95"):
        calibration.compute(level=95)
    with pytest.raises(ValueError, match="second must be"):
        calibration.compute().compare("softmax", "posterior")


def test_documents_and_merged_accumulators_are_checked():
    batch = draw(40)
    calibration = TokenCalibration()
    calibration.update(*batch)
    with pytest.raises(TypeError, match="documents must be whole numbers, got the type float64"):
        calibration.update(*batch, documents=np.zeros(6))
    with pytest.raises(ValueError, match=r"the shape \(6, 50\) of target, or \(6,\), one per sequence, got \(5,\)"):
        calibration.update(*batch, documents=np.zeros(5, dtype=int))
    for settings, message in (
        ({"bins": 10}, "bins = 10 instead of 15"),
        ({"fit": False}, "fit = False instead of True"),
        ({"criterion": LinearFocalLoss(0.0, softcap=5.0)}, "softcap = 5.0 instead of 0.0"),
        ({"criterion": LinearFocalLoss(0.0, ignore_index=0)}, "ignore_index = 0 instead of -100"),
        ({"criterion": LinearFocalLoss(2.0)}, "readouts = softmax, posterior instead of softmax"),
    ):
        with pytest.raises(ValueError, match=f"^other must have the same settings, got {message}$"):
            calibration.merge(TokenCalibration(**settings))
    with pytest.raises(ValueError, match=r"got gamma of posterior = 2\.0 instead of 3\.0$"):
        TokenCalibration(LinearFocalLoss(3.0)).merge(TokenCalibration(LinearFocalLoss(2.0)))
    weight = torch.ones(5000)
    first = TokenCalibration(LinearFocalLoss(2.0, weight=weight.clone()))
    weight[2500] = 9.0  # in the middle, which a printed array leaves out
    with pytest.raises(ValueError, match=r"^other must have the same settings, got another weight of posterior$"):
        first.merge(TokenCalibration(LinearFocalLoss(2.0, weight=weight)))
    assert first.merge(TokenCalibration(LinearFocalLoss(2.0, weight=torch.ones(5000)))) is first
    with pytest.raises(TypeError, match="other must be a TokenCalibration, got NoneType"):
        calibration.merge(None)
    other = TokenCalibration()
    other.update(*draw(30))
    with pytest.raises(ValueError, match="head must have 40 classes as before, got 30"):
        calibration.merge(other)


def test_a_hopeless_model_has_an_infinite_perplexity():
    batch = draw(40, scale=1e3)
    found = report(batch._replace(target=(batch.target + 1) % 40))
    assert found.readouts["softmax"].nll.value > 1000
    assert found.readouts["softmax"].perplexity.value == math.inf
    assert found.temperature.calibrator.at_bound_


def test_the_report_as_a_table():
    batch = draw(40, scale=2.0)
    first, second, *rows = str(report(batch, LinearFocalLoss(2.0))).splitlines()
    assert first == "300 tokens of 6 documents"
    assert second.split() == ["NLL", "95%", "limits", "perplexity", "accuracy", "confidence", "ECE"]
    assert [row.split("  ")[0] for row in rows[:2]] == ["softmax", "posterior"]
    calibration = TokenCalibration(fit=False)
    calibration.update(*batch)
    assert "99.5% limits" in str(calibration.compute(level=0.995))
    assert rows[2].startswith("T = ")
    assert rows[3].startswith("gamma = ")
    assert len({len(row) for row in rows}) == 1


def test_a_model_of_a_known_source():
    """Focal loss on a Markov chain: Psi reads off the entropy of the source, the softmax does not."""
    generator = torch.Generator("cpu").manual_seed(0)
    states = 12
    transition = torch.softmax(2.5 * torch.randn(states, states, generator=generator, device="cpu"), dim=1)
    text = [torch.randint(states, (400,), generator=generator, device="cpu")]
    for _ in range(60):
        text.append(torch.multinomial(transition[text[-1]], 1, generator=generator)[:, 0])
    text = torch.stack(text, dim=1).to(torch.get_default_device())
    seen, unseen = text[:300], text[300:]
    truth = -torch.log(transition).to(text.device)[unseen[:, :-1], unseen[:, 1:]].mean().item()

    torch.manual_seed(0)
    body, head = nn.Embedding(states, states), nn.Linear(states, states, bias=False)
    criterion = LinearFocalLoss(gamma=2.0)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        criterion(body(seen[:, :-1]), head.weight, seen[:, 1:]).backward()
        optimizer.step()
    found = report(Batch(body(unseen[:, :-1]), head.weight, unseen[:, 1:]), criterion)
    softmax, posterior = found.readouts["softmax"], found.readouts["posterior"]
    assert posterior.nll.value == pytest.approx(truth, abs=0.01)
    assert softmax.nll.value > posterior.nll.value + 0.05
    assert found.compare("softmax", "posterior").low > 0
    assert softmax.overconfidence.high < 0  # focal loss makes models underconfident
    assert abs(posterior.overconfidence.value) < 0.02
    assert found.focal_temperature.nll == pytest.approx(truth, abs=0.01)
    assert found.focal_temperature.calibrator.gamma_ == pytest.approx(2.0, abs=0.5)
