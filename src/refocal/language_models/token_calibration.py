"""Calibration of a language model's token probabilities, from hidden states, in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refocal import _check
from refocal.calibrators import FocalTemperatureScaling, TemperatureScaling
from refocal.language_models.documents import DocumentSums
from refocal.language_models.lattices import GAMMAS, SOFTMAX_PLACE, evaluate_lattice
from refocal.language_models.outlines import BETAS, RowOutlines, outline_rows
from refocal.language_models.readouts import ReadoutRows, TokenCalibrator, list_readouts, list_settings, read_rows
from refocal.language_models.surfaces import Surface, interpolate_error
from refocal.language_models.token_report import FittedReadout, TokenReadout, TokenReport, nll_place
from refocal.losses import LinearFocalLoss
from refocal.losses.linear.posteriors import LabeledStates, cap, logits_of_chunks
from refocal.stats.binning import BINS, Bins, bin_sums, width_index

_BLOCK = 1 << 18  # logits that are processed together on a CPU; a few such arrays fit into its cache
_BLOCKS = 8  # of a chunk on other devices, so that temporaries are about as large as the chunk
_GROUPS = 16  # groups of nearly equal confidence per bin
_PENDING_ROWS = 1024  # outlines that wait for each other: the lattice takes many short steps, for any number of rows


class TokenCalibration:
    """Measure and repair the calibration of a language model's token probabilities, in one pass over a text.

    Call `update` once for each batch, with what the loss takes: hidden states, head and target. Logits are computed in
    chunks, and none are kept, so the memory does not grow with the number of tokens. `compute` returns a `TokenReport`:

    - NLL, perplexity, accuracy and ECE of the softmax, and of the posterior Psi^gamma if the criterion has one. The NLL
      has a confidence interval with documents as samples.
    - Fitted `TemperatureScaling` and `FocalTemperatureScaling`, with their NLL and ECE on the same tokens. Sums at 25
      temperatures from 1/4 to 4 and 17 values of gamma from -0.63 to 8.03 are kept, and interpolated. A fit that ends
      at such a bound has `at_bound_` set.

    `merge` adds the accumulators of several processes. Their sums are NumPy arrays, whatever device the model is on.

    Args:
        criterion: The loss that the model was trained with, which also has the `softcap`, the `ignore_index` and the
            `chunk_bytes` of the last layer. None for cross-entropy.
        calibrators: Fitted `TemperatureScaling` or `FocalTemperatureScaling`, by name, to be measured as well. Measure
            a calibrator on other text than it was fitted to.
        bins: Number of bins of the ECE.
        fit: Whether to fit calibrators. Without the fit, a pass takes less time.

    Example:
        >>> import torch
        >>> from refocal.losses import LinearFocalLoss
        >>> generator = torch.Generator().manual_seed(0)
        >>> hidden, head = torch.randn(4, 250, 8, generator=generator), torch.randn(50, 8, generator=generator)
        >>> target = (hidden @ head.T).argmax(dim=-1)
        >>> calibration = TokenCalibration(LinearFocalLoss(gamma=2))
        >>> calibration.update(hidden, head, target)
        >>> calibration.compute().readouts["softmax"].accuracy.value
        1.0

    Reference: Guo et al. (2017); Komisarenko and Kull (2024), sections 4.2 and 5.
    """

    def __init__(
        self,
        criterion: LinearFocalLoss | None = None,
        *,
        calibrators: Mapping[str, TokenCalibrator] | None = None,
        bins: int = BINS,
        fit: bool = True,
    ) -> None:
        self.criterion = LinearFocalLoss(0.0) if criterion is None else _check_criterion(criterion)
        self.calibrators = dict(calibrators or {})
        self.bins = _check.count(bins, "bins")
        self.fit = fit
        self.classes: int | None = None  # once they are known
        self._readouts = list_readouts(self.criterion, self.calibrators)
        self._sums = _TokenSums(len(self._readouts), self.bins)

    @torch.no_grad()
    def update(
        self, hidden: Tensor, head: Tensor, target: Tensor, bias: Tensor | None = None, *, documents: Any = None
    ) -> None:
        """Add a batch. A batch that is rejected changes nothing.

        Args:
            hidden: Hidden states (..., D) that enter the last layer.
            head: Weights of the last layer (V, D).
            target: The next tokens (...), shifted by the caller; those equal to `ignore_index` do not count.
            bias: Bias of the last layer (V,).
            documents: Whole numbers that name the documents, one per token, shape (...), or one per sequence, the same
                without the last axis. A document may continue in later batches, so a few numbers per document are
                kept. None if each sequence of the batch is a document of its own; a batch with a flat target (N,) then
                is one sequence, so one document.
        """
        states = self.criterion.select(hidden, head, target, bias)
        self._check_classes(len(head))
        numbers = _read_documents(documents, tuple(target.shape))
        kept = states.keep.cpu().numpy()
        batch = _TokenSums(len(self._readouts), self.bins)
        vectors = [np.empty((0, batch.size))]
        pending: list[RowOutlines] = []
        for readouts, outlines in self._read(states):
            vectors.append(batch.add_readouts(readouts))
            pending += outlines
            if sum(len(part.gap) for part in pending) >= _PENDING_ROWS:
                batch.add_lattice(RowOutlines.join(pending))
                pending = []
        if pending:
            batch.add_lattice(RowOutlines.join(pending))
        batch.documents.add(np.concatenate(vectors), numbers[kept], named=documents is not None)
        self.classes = len(head)
        self._sums.merge(batch)

    def merge(self, other: TokenCalibration) -> TokenCalibration:
        """Add the sums of another accumulator with the same settings, in place."""
        _check_other(other)
        differing = _list_differences(self._settings(), other._settings())
        if differing:
            msg = f"other must have the same settings, got {'; '.join(differing)}"
            raise ValueError(msg)
        if other.classes is not None:
            self._check_classes(other.classes)
            self.classes = other.classes
        self._sums.merge(other._sums)
        return self

    def compute(self, *, level: float = 0.95) -> TokenReport:
        """The report of all tokens so far, with intervals of this level."""
        level = _check.share(level, "level")
        moments = self._sums.documents.compute_moments()
        tokens = round(moments.total[0])
        if not tokens:
            msg = "compute() needs at least one token that counts: call update() first"
            raise ValueError(msg)
        readouts = {}
        for number, name in enumerate(self._readouts):
            weights = np.zeros((4, self._sums.size))
            weights[[0, 1, 2], nll_place(number) + np.array([0, 2, 1])] = 1
            weights[3] = weights[2] - weights[1]
            nll, accuracy, confidence, excess = (moments.compute_interval(row, level=level) for row in weights)
            error = Bins(*self._sums.bins[number]).expected_calibration_error
            readouts[name] = TokenReadout(nll, accuracy, confidence, excess, error)
        plain, focal = self._fit(tokens) if self.fit else (None, None)
        return TokenReport(tokens, moments.documents, readouts, plain, focal, level, moments)

    def _fit(self, tokens: int) -> tuple[FittedReadout, FittedReadout]:
        surface = Surface(self._sums.losses / tokens, tokens)
        plain = surface.fit_temperature()
        focal = surface.fit_focal_temperature(plain)
        with_one, with_two = TemperatureScaling(input="logits"), FocalTemperatureScaling(input="logits")
        with_one.store(plain)
        with_two.store(focal)
        assert self.classes is not None
        for calibrator in (with_one, with_two):
            calibrator.n_features_in_, calibrator.classes_ = self.classes, np.arange(self.classes)
        plain_error, focal_error = (
            interpolate_error(self._sums.groups, self._sums.confidences, place, bins=self.bins)
            for place in ((0.0, plain.beta), (focal.gamma, focal.beta))
        )
        return FittedReadout(with_one, plain.nll, plain_error), FittedReadout(with_two, focal.nll, focal_error)

    def _settings(self) -> dict[str, Any]:
        """What accumulators must have in common to be merged."""
        common = {"softcap": self.criterion.layer_settings.softcap, "ignore_index": self.criterion.focal.ignore_index}
        readouts = {name: list_settings(readout) for name, readout in self._readouts.items()}
        own = {f"{key} of {name}": value for name, found in readouts.items() for key, value in found.items()}
        return {"bins": self.bins, "fit": self.fit, **common, "readouts": ", ".join(readouts), **own}

    def _check_classes(self, classes: int) -> None:
        if self.classes not in (None, classes):
            msg = f"head must have {self.classes} classes as before, got {classes}"
            raise ValueError(msg)
        for name, calibrator in self.calibrators.items():
            if calibrator.n_features_in_ != classes:
                msg = (
                    f"head must have the {calibrator.n_features_in_} classes of the calibrator {name!r}, got {classes}"
                )
                raise ValueError(msg)

    def _read(self, states: LabeledStates) -> Iterator[tuple[list[ReadoutRows], list[RowOutlines]]]:
        """The readouts of the rows of each chunk and, for a fit, their outlines, in parts."""
        for rows, logits in logits_of_chunks(states.hidden, states.layer):
            wide = torch.promote_types(logits.dtype, torch.float32)
            on_cpu = logits.device.type == "cpu"
            step = max(1, _BLOCK // logits.shape[1] if on_cpu else len(logits) // _BLOCKS)
            readouts: list[list[ReadoutRows]] = [[] for _ in self._readouts]
            outlines = []
            for start in range(0, len(logits), step):
                block = cap(logits[start : start + step].to(wide), states.layer.softcap)
                target = states.target[rows][start : start + step]
                _check_logits(block, target)
                for parts, log_probs in zip(readouts, self._readouts.values(), strict=True):
                    parts.append(read_rows(log_probs, block, target))
                if self.fit:
                    outlines.append(outline_rows(block, target))
            yield [ReadoutRows(*map(torch.cat, zip(*parts, strict=True))) for parts in readouts], outlines


class _TokenSums:
    """All sums over tokens, for some readouts and a number of bins.

    Attributes:
        size: The size of the vector of a document.
        documents: Sums by document.
        bins: Tokens, confidence and hits (readouts, 3, bins) in the bins of each readout.
        losses: The NLL (gammas, betas) on the lattice.
        groups: Tokens and hits (2, groups) in groups of nearly equal softmax confidence.
        confidences: The confidence (gammas, betas, groups) of these groups on the lattice.
    """

    def __init__(self, readouts: int, bins: int) -> None:
        self.size = nll_place(readouts)
        self.documents = DocumentSums(self.size)
        self.bins = np.zeros((readouts, 3, bins))
        self.losses = np.zeros((len(GAMMAS), len(BETAS)))
        self.groups = np.zeros((2, bins * _GROUPS))
        self.confidences = np.zeros((*self.losses.shape, bins * _GROUPS))

    def add_readouts(self, readouts: list[ReadoutRows]) -> np.ndarray:
        """Add the bins of rows (n,), and return the vectors (n, size) that belong to their documents."""
        columns = [np.ones(len(readouts[0].hits))]
        bins = self.bins.shape[-1]
        for number, rows in enumerate(readouts):
            losses, hits = _to_numpy(rows.losses), rows.hits.cpu().numpy()
            confidences = np.minimum(_to_numpy(rows.confidences), 1.0)
            self.bins[number] += bin_sums(width_index(confidences, bins=bins), confidences, hits, size=bins)
            columns += [losses, confidences, hits]
        return np.stack(columns, axis=1)

    def add_lattice(self, outlines: RowOutlines) -> None:
        """Add the losses and confidences at all pairs (gamma, T)."""
        size = self.groups.shape[1]
        first = size * np.arange(self.losses.size)[:, None]  # the first group of each pair
        start = 0
        for part in evaluate_lattice(outlines):
            self.losses += _to_numpy(part.losses).sum(axis=-1)
            confidences = _to_numpy(part.confidences)
            softmax = np.minimum(confidences[SOFTMAX_PLACE], 1.0)
            group = width_index(softmax, bins=size)
            hits = outlines.is_top[start : start + len(group), 0].cpu().numpy()
            samples, _, right = bin_sums(group, softmax, hits, size=size)
            self.groups += np.stack([samples, right])
            sums = np.bincount((first + group).ravel(), confidences.ravel(), minlength=self.confidences.size)
            self.confidences += sums.reshape(self.confidences.shape)
            start += len(group)

    def merge(self, other: _TokenSums) -> None:
        """Add the sums of another with the same sizes."""
        self.documents.merge(other.documents)
        for name in ("bins", "losses", "groups", "confidences"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def _to_numpy(values: Tensor) -> np.ndarray:
    """Values in float64; they are moved first, because some devices do not have it."""
    return values.cpu().double().numpy()


def _check_other(other: object) -> None:
    if not isinstance(other, TokenCalibration):
        msg = f"other must be a TokenCalibration, got {type(other).__name__}"
        raise TypeError(msg)


def _list_differences(own: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Name the settings that differ. Values for each class are not shown, since there may be very many."""
    differing = [name for name in own.keys() & found.keys() if own[name] != found[name]]
    return [
        f"another {name}"
        if isinstance(own[name], list) or isinstance(found[name], list)
        else f"{name} = {found[name]} instead of {own[name]}"
        for name in sorted(differing)
    ]


def _check_criterion(criterion: object) -> LinearFocalLoss:
    if not isinstance(criterion, LinearFocalLoss):
        msg = f"criterion must be a LinearFocalLoss or None, got {type(criterion).__name__}"
        raise TypeError(msg)
    return criterion


def _check_logits(logits: Tensor, target: Tensor) -> None:
    """Reject logits that have no likelihood."""
    largest = logits.amax(dim=1)
    bad = ~torch.isfinite(largest)
    if bool(bad.any()):
        found = float(largest[bad][0])
        msg = f"hidden and head must give logits that are finite or -inf (masked), got {found} as the largest of a row"
        raise ValueError(msg)
    own = logits.gather(1, target[:, None])[:, 0]
    masked = target[torch.isinf(own)]
    if len(masked):
        msg = f"target must not be a masked class, with a logit of -inf, got {int(masked[0])}"
        raise ValueError(msg)


def _read_documents(documents: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The number of the document of each token, flat."""
    length = math.prod(shape[-1:])
    if documents is None:
        return np.repeat(np.arange(math.prod(shape[:-1])), length)
    names = documents.cpu().numpy() if isinstance(documents, Tensor) else np.asarray(documents)
    if names.dtype.kind not in "iu":
        msg = f"documents must be whole numbers, got the type {names.dtype}"
        raise TypeError(msg)
    if names.shape == shape:
        return names.ravel()
    if names.shape == shape[:-1]:
        return np.repeat(names.ravel(), length)
    msg = f"documents must have the shape {shape} of target, or {shape[:-1]}, one per sequence, got {names.shape}"
    raise ValueError(msg)
